"""The calls of GitHub's REST API that the nightly run needs.

Uses the standard library only: the job that may write issues installs no packages.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

_TIMEOUT_S = 60
_PAGE = 100


class ApiError(Exception):
    """A call failed; the message names the call and the reason."""


class Repository:
    """One repository's issues and labels. Every method raises ApiError if its call fails."""

    def __init__(self, api: str, name: str, token: str) -> None:
        self._base = f"{api}/repos/{name}"
        self._token = token

    def issues(self, label: str, state: str) -> Iterator[dict[str, Any]]:
        """Yield the issues, without pull requests, with this label and state (``open``, ``closed`` or ``all``)."""
        page = 1
        while True:
            query = urlencode({"labels": label, "state": state, "per_page": _PAGE, "page": page})
            found = self._call("GET", f"/issues?{query}")
            yield from (issue for issue in found if "pull_request" not in issue)
            if len(found) < _PAGE:
                return
            page += 1

    def open(self, title: str, body: str, label: str) -> None:
        """Open an issue."""
        self._call("POST", "/issues", {"title": title, "body": body, "labels": [label]})

    def edit(self, number: int, change: Mapping[str, str]) -> None:
        """Change an issue's ``title``, ``body`` or ``state``."""
        self._call("PATCH", f"/issues/{number}", change)

    def comment(self, number: int, body: str) -> None:
        """Comment on an issue."""
        self._call("POST", f"/issues/{number}/comments", {"body": body})

    def ensure_label(self, name: str) -> None:
        """Create a label if it is missing: an issue without it would not be found again, and opened each night."""
        try:
            self._call("GET", f"/labels/{quote(name)}")
        except ApiError as error:
            if not isinstance(error.__cause__, urllib.error.HTTPError) or error.__cause__.code != 404:
                raise
            self._call("POST", "/labels", {"name": name})

    def _call(self, method: str, path: str, content: Mapping[str, Any] | None = None) -> Any:
        headers = {
            "Accept": "application/vnd.github+json",
            "Authorization": f"Bearer {self._token}",
            "X-GitHub-Api-Version": "2022-11-28",
        }
        data = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(self._base + path, data, headers, method=method)  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
                return json.loads(answer.read() or b"null")
        except (OSError, ValueError) as error:  # HTTPError and URLError are OSErrors
            raise ApiError(f"{method} {path}: {error}") from error
