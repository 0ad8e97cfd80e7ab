"""A server that speaks the text protocol of NCCL's RAS, as NCCL 2.24 (text alone) and 2.28.7 (JSON too) do."""

import json
import socketserver
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any


class Server(socketserver.ThreadingTCPServer):
    """Answers with what a test has put into it."""

    daemon_threads = allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Client)
        self.text, self.document = "", None
        """What it says of its job; without a document it is an old one."""

    text: str
    document: Any

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class _Client(socketserver.StreamRequestHandler):
    server: Server

    def handle(self) -> None:
        says, is_json = self.wfile.write, False
        for line in self.rfile:
            command = line.decode().strip().lower()
            if command.startswith("client protocol"):
                says(b"SERVER PROTOCOL 2\n")
            elif command.startswith("timeout "):
                says(b"OK\n")
            elif command == "set format json" and self.server.document:
                is_json = True
                says(b"OK\n")
            elif command in ("status", "verbose status"):
                says((json.dumps(self.server.document, indent=2) if is_json else self.server.text).encode())
                return
            else:
                says(f"ERROR: Unknown command {command}\n".encode())


@contextmanager
def serving() -> Iterator[Server]:
    """Run a server; it ends with the block."""
    with Server() as server:
        Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server
        server.shutdown()
