"""What was fetched, kept: for each wheel the digests of its target files, and each of their contents once."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from unhang.compat.sweep.sources import Content, content


class Wheel(NamedTuple):
    """What the sweep reads of one wheel."""

    files: Mapping[str, Content | None]
    """The target files, by path; None where it has no such file."""
    training: bool
    """Whether it carries Megatron-LM's ``megatron/training`` too."""


def default_folder() -> Path:
    """Where the cache is unless the user says otherwise: below ``XDG_CACHE_HOME``, or ``~/.cache``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "unhang" / "sweep"


class Cache:
    """A folder with ``wheels/SHA256.json`` and ``contents/SHA256``: any file there is whole, whenever a run was killed.

    Threads and processes may share it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._contents: dict[str, Content | None] = {}

    def wheel(self, sha256: str, paths: Iterable[str]) -> Wheel | None:
        """What is kept of a wheel; None where that does not answer for all these paths, or is damaged."""
        listing = self.read(f"wheels/{sha256}.json")
        if not isinstance(listing, dict) or not set(paths) <= set(listing.get("files", ())):
            return None
        files = {path: None if digest is None else self.content(digest) for path, digest in listing["files"].items()}
        if any(files[path] is None and listing["files"][path] is not None for path in paths):
            return None
        return Wheel({path: files[path] for path in paths}, listing["training"])

    def keep_wheel(self, sha256: str, wheel: Wheel) -> None:
        """Keep what was read of a wheel: the contents first, so that a listing never names what is not there."""
        for found in wheel.files.values():
            if found is not None:
                self.keep_content(found)
        files = {path: None if found is None else found.sha256 for path, found in sorted(wheel.files.items())}
        self.write(f"wheels/{sha256}.json", {"files": files, "training": wheel.training})

    def content(self, sha256: str) -> Content | None:
        """A content by its digest; None where it is not there, or is not what its name says."""
        if sha256 not in self._contents:
            try:
                found = content((self.folder / "contents" / sha256).read_bytes())
            except OSError:
                return None
            self._contents[sha256] = found if found.sha256 == sha256 else None
        return self._contents[sha256]

    def keep_content(self, found: Content) -> None:
        """Keep a content."""
        if self.content(found.sha256) is None:
            _replace(self.folder / "contents" / found.sha256, found.data)
            self._contents[found.sha256] = found

    def read(self, name: str) -> Any:
        """A JSON file of the cache; None where it is not there, or is damaged: then it is made anew."""
        try:
            return json.loads((self.folder / name).read_bytes())
        except (OSError, ValueError):
            return None

    def write(self, name: str, value: Any) -> None:
        """Keep a JSON file in the cache."""
        _replace(self.folder / name, json.dumps(value, sort_keys=True).encode())


def code_digest(folders: Iterable[str]) -> str:
    """The digest of all Python code in these folders: what it once said of a content, it still says."""
    whole = hashlib.sha256()
    for folder in folders:
        for path in sorted(Path(folder).glob("*.py")):
            whole.update(f"{path.name} {path.stat().st_size}\n".encode() + path.read_bytes())
    return whole.hexdigest()


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
