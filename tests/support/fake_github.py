"""A local fake of the part of GitHub's API that the nightly run uses: issues with pages, labels, comments."""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


class GitHub:
    """The fake's issues, labels and comments, and the requests it got."""

    def __init__(self) -> None:
        self.issues: list[dict[str, Any]] = []
        self.labels: list[str] = []
        self.comments: list[tuple[int, str]] = []
        self.asked: list[str] = []
        self.tokens: set[str] = set()
        self.failing: str | None = None
        """Calls that begin with this fail with 503."""
        self.url = ""

    def add(self, **fields: Any) -> dict[str, Any]:
        """Add an issue, as somebody or an earlier night did."""
        issue = {"number": len(self.issues) + 1, "state": "open", "labels": [], "body": None, **fields}
        self.issues.append(issue)
        return issue

    def open_titles(self) -> list[str]:
        return [issue["title"] for issue in self.issues if issue["state"] == "open" and "pull_request" not in issue]

    def answer(self, method: str, path: str, content: Any) -> tuple[int, Any]:
        """Return the status and the body of the response."""
        where = urlsplit(path)
        query = {name: values[0] for name, values in parse_qs(where.query).items()}
        self.asked.append(f"{method} {where.path}")
        if self.failing and self.asked[-1].startswith(self.failing):
            return 503, {"message": "no server is available"}
        rest = where.path.removeprefix("/repos/them/unhang")
        if rest == "/issues" and method == "GET":
            return 200, self._listed(query)
        if rest == "/issues":
            # GitHub drops unknown labels for some users; this fake does for all
            labels = [label for label in content["labels"] if label in self.labels]
            return 201, self.add(**{**content, "labels": labels})
        if rest.startswith("/labels/"):
            return (200, {}) if rest.removeprefix("/labels/") in self.labels else (404, {"message": "Not Found"})
        if rest == "/labels":
            self.labels.append(content["name"])
            return 201, {}
        if match := re.fullmatch(r"/issues/(\d+)/comments", rest):
            self.comments.append((int(match[1]), content["body"]))
            return 201, {}
        if (match := re.fullmatch(r"/issues/(\d+)", rest)) and method == "PATCH":
            self.issues[int(match[1]) - 1].update(content)
            return 200, {}
        return 404, {"message": "Not Found"}

    def _listed(self, query: dict[str, str]) -> list[dict[str, Any]]:
        size, page = int(query["per_page"]), int(query["page"])
        labelled = [issue for issue in self.issues if query["labels"] in issue["labels"]]
        found = [issue for issue in labelled if query["state"] in (issue["state"], "all")]
        return found[size * (page - 1) : size * page]


@contextmanager
def serve() -> Iterator[GitHub]:
    """Serve the fake on a local port."""
    github = GitHub()

    class Handler(BaseHTTPRequestHandler):
        def _do(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            content = json.loads(self.rfile.read(length)) if length else None
            github.tokens.add(str(self.headers.get("Authorization")))
            status, body = github.answer(self.command, self.path, content)
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PATCH = _do

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    github.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield github
    finally:
        server.shutdown()
        server.server_close()
