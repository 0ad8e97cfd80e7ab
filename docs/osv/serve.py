"""Serves a folder of advisories as OSV does, for scanners that ask a service: `python serve.py DIR [PORT]`.

It listens on this machine alone, until Ctrl-C. Needs `packaging`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version


def read(folder: Path) -> dict[str, Any]:
    """Return the advisories of a folder, by id."""
    return {path.stem: json.loads(path.read_bytes()) for path in sorted(folder.glob("x_*.json"))}


def affecting(advisories: Mapping[str, Any], name: str, version: str) -> list[str]:
    """Return the ids of the advisories that affect a version of a PyPI package, as OSV's schema defines that."""
    packages = [(key, package) for key, advisory in advisories.items() for package in advisory["affected"]]
    mine = [(key, package) for key, package in packages if package["package"]["name"] == canonicalize_name(name)]
    return [
        key
        for key, package in mine
        if version in package["versions"] or any(_contains(item["events"], version) for item in package["ranges"])
    ]


def _contains(events: list[dict[str, str]], text: str) -> bool:
    try:
        version = Version(text)
    except InvalidVersion:
        return False
    is_in = False
    for event in events:  # unhang writes them in order
        if "introduced" in event:
            is_in = is_in or version >= Version(event["introduced"])
        elif "fixed" in event:
            is_in = is_in and version < Version(event["fixed"])
        else:
            is_in = is_in and version <= Version(event["last_affected"])
    return is_in


def server(advisories: Mapping[str, Any], port: int) -> ThreadingHTTPServer:
    """Return the service, not yet started."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            """Answer `/v1/query`, as pip-audit asks it, and `/v1/querybatch`, as uv does."""
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            found = [
                affecting(advisories, query["package"]["name"], query["version"])
                for query in asked.get("queries", [asked])
            ]
            if "queries" in asked:
                short = [[{"id": key, "modified": advisories[key]["modified"]} for key in keys] for keys in found]
                self._answer({"results": [{"vulns": vulns} if vulns else {} for vulns in short]})
            else:
                self._answer({"vulns": [advisories[key] for key in found[0]]} if found[0] else {})

        def do_GET(self) -> None:
            """Answer `/v1/vulns/ID`."""
            content = advisories.get(self.path.rpartition("/")[2])
            self._answer(content if content else {"code": 5, "message": "Bug not found."}, 200 if content else 404)

        def _answer(self, content: Any, status: int = 200) -> None:
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Cache-Control", "no-store")  # the folder may be written again
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *words: object) -> None:
            """Say nothing."""

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


def main() -> None:
    """Serve the folder that the command line names."""
    folder, port = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    advisories = read(folder)
    if not advisories:
        sys.exit(f"there is no advisory in {folder}: unhang matrix --output-format osv -o {folder}")
    service = server(advisories, port)
    print(f"{len(advisories)} advisories at http://127.0.0.1:{service.server_port}", flush=True)
    try:
        service.serve_forever()
    except KeyboardInterrupt:
        service.server_close()


if __name__ == "__main__":
    main()
