"""A server that speaks the text protocol of NCCL's RAS, as NCCL 2.24 (text alone) and 2.28.7 (JSON too) do."""

import json
import socketserver
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any


class Server(socketserver.ThreadingTCPServer):
    """Answers with what a test has put into it; without a document it is an old one."""

    daemon_threads = allow_reuse_address = True
    text = ""
    document: Any = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class _Client(socketserver.StreamRequestHandler):
    server: Server

    def handle(self) -> None:
        is_json = False
        for line in self.rfile:
            command = line.decode().strip().lower()
            if command in ("status", "verbose status"):
                said = json.dumps(self.server.document, indent=2) if is_json else self.server.text
                self.wfile.write(said.encode())
                return
            is_json = command == "set format json" and bool(self.server.document)
            known = "OK" if is_json or command.startswith("timeout ") else f"ERROR: Unknown command {command}"
            said = "SERVER PROTOCOL 2" if command.startswith("client protocol") else known
            self.wfile.write(f"{said}\n".encode())


@contextmanager
def serving() -> Iterator[Server]:
    """Run a server; it ends with the block."""
    with Server(("127.0.0.1", 0), _Client) as server:
        Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server
        server.shutdown()
