"""A cache of what the sweep fetched: each wheel's digests of target files, and each distinct content once."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from unhang.compat.sweep.sources import Content, content


class CachedWheel(NamedTuple):
    """The target files of one wheel."""

    files: Mapping[str, Content | None]
    """Each target file by path; None if the wheel has no such file."""
    held: Sequence[str]
    """The upstreams of other projects that the wheel carries too."""


def default_folder() -> Path:
    """Return ``$XDG_CACHE_HOME/unhang/sweep``, or the same below ``~/.cache``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "unhang" / "sweep"


class Cache:
    """A folder with ``wheels/SHA256.json`` and ``contents/SHA256``. Threads and processes may share it.

    Every file is written by a rename, so a killed run leaves no partial file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._contents: dict[str, Content | None] = {}

    def wheel(self, sha256: str, paths: Iterable[str]) -> CachedWheel | None:
        """Return these files of a cached wheel; None if the cache lacks one of them or is damaged."""
        listing = self.read(f"wheels/{sha256}.json")
        if not isinstance(listing, dict) or "held" not in listing or not set(paths) <= set(listing.get("files", ())):
            return None
        files = {}
        for path in paths:
            digest = listing["files"][path]
            files[path] = None if digest is None else self.content(digest)
            if digest is not None and files[path] is None:
                return None
        return CachedWheel(files, listing["held"])

    def keep_wheel(self, sha256: str, wheel: CachedWheel) -> None:
        """Write a wheel's files, beside those cached before.

        The contents come first, so that a listing only names contents that exist.
        """
        for found in wheel.files.values():
            if found is not None:
                self.keep_content(found)
        before = self.read(f"wheels/{sha256}.json")
        files = dict(before["files"]) if isinstance(before, dict) else {}
        files |= {path: None if found is None else found.sha256 for path, found in wheel.files.items()}
        self.write(f"wheels/{sha256}.json", {"files": files, "held": wheel.held})

    def content(self, sha256: str) -> Content | None:
        """Return a content by its digest; None if it is not cached or is damaged."""
        if sha256 not in self._contents:
            try:
                found = content((self.folder / "contents" / sha256).read_bytes())
            except OSError:
                return None
            self._contents[sha256] = found if found.sha256 == sha256 else None
        return self._contents[sha256]

    def keep_content(self, found: Content) -> None:
        """Write a content, unless it is cached."""
        if self.content(found.sha256) is None:
            _replace(self.folder / "contents" / found.sha256, found.data)
            self._contents[found.sha256] = found

    def read(self, name: str) -> Any:
        """Return the value of a JSON file; None if it is missing or damaged."""
        try:
            return json.loads((self.folder / name).read_bytes())
        except (OSError, ValueError):
            return None

    def write(self, name: str, value: Any) -> None:
        """Write a JSON file."""
        _replace(self.folder / name, json.dumps(value, sort_keys=True).encode())

    def drop_older(self, folder: str, days: int, used: Collection[str]) -> None:
        """Mark the files in use, and drop the others of this folder that were not in use for so many days."""
        oldest = time.time() - days * 86400
        for path in (self.folder / folder).glob("*.json"):
            with contextlib.suppress(FileNotFoundError):  # another process was faster
                if f"{folder}/{path.name}" in used:
                    path.touch()
                elif path.stat().st_mtime < oldest:
                    path.unlink()


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
