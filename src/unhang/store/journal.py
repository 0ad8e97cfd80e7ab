"""The journal of a transaction: which files, from which bytes to which; read as if an enemy had written it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, NamedTuple

from unhang.errors import UnhangError

SCHEMA = 1
PREFIX = ".unhang-"


class File(NamedTuple):
    """One file, and the two of ours that stand beside it while it lasts."""

    path: str
    old: str | None
    """sha256; None: it was not there."""
    new: str | None
    """sha256; None: it is deleted."""
    prune: bool
    """After a deletion, its folder goes too if that leaves it empty."""
    temp: str
    """The new bytes."""
    backup: str
    """The old file, or (an empty one) the word that there was none."""


class Journal(NamedTuple):
    """One transaction."""

    token: str
    files: tuple[File, ...]
    made: tuple[str, ...]
    """Folders to make first, outer before inner."""

    def folders(self) -> list[str]:
        """Return every folder in which anything is created, renamed or deleted."""
        return sorted({os.path.dirname(path) for path in (*(file.path for file in self.files), *self.made)})


def compose(token: str, files: Iterable[tuple[str, str | None, str | None, bool]], made: Iterable[str]) -> Journal:
    """Return the journal of files (path, old, new, prune); what stands beside each is named after `token`."""
    result = []
    for number, (path, old, new, prune) in enumerate(files):
        beside = os.path.join(os.path.dirname(path), f"{PREFIX}{token}-{number}")
        result.append(File(path, old, new, prune, f"{beside}.new", f"{beside}.old"))
    return Journal(token, tuple(result), tuple(made))


def render(journal: Journal) -> bytes:
    """Return the content of its file."""
    files = [{"path": file.path, "old": file.old, "new": file.new, "prune": file.prune} for file in journal.files]
    content = {"schema": SCHEMA, "token": journal.token, "files": files, "made": journal.made}
    return json.dumps(content, indent=1).encode() + b"\n"


def parse(data: bytes, path: str) -> Journal:
    """Return the journal that `data`, the content of `path`, is. Raises UnhangError `bad-journal`."""
    try:
        return _parse(data)
    except ValueError as error:
        raise UnhangError(
            "bad-journal", f"{path} is not a journal that this version can trust: {error}", path=path,
            hint="nothing was touched; if no other version of unhang wrote it, delete that file",
        ) from error  # fmt: skip


def _parse(data: bytes) -> Journal:
    content: Any = None
    with suppress(ValueError, RecursionError):
        content = json.loads(data)
    _need(isinstance(content, dict), "it is not a JSON object")
    _need(
        type(content.get("schema")) is int and content["schema"] == SCHEMA, f"its schema is {content.get('schema')!r}"
    )
    token, files, made = content.get("token"), content.get("files"), content.get("made")
    _need(isinstance(token, str) and re.fullmatch("[0-9a-f]{16}", token) is not None, "it has no token")
    _need(isinstance(files, list) and all(isinstance(file, dict) for file in files), "it has no list of files")
    for file in files:
        _need(_is_path(file.get("path")), "a path is not absolute and plain")
        _need(all(_is_digest(file.get(key, "")) for key in ("old", "new")), "a digest is no sha256")
        _need(file["old"] != file["new"], "a file does not change")
        _need(isinstance(file.get("prune"), bool), "a flag is missing")
    paths = [file["path"] for file in files]
    _need(len(set(paths)) == len(paths), "a file comes twice")
    _need(isinstance(made, list) and all(_is_path(folder) for folder in made), "it has no list of folders")
    inside = all(any(path.startswith(folder + os.sep) for path in paths) for folder in made)
    _need(inside, "a folder holds no file of it")
    return compose(token, ((file["path"], file["old"], file["new"], file["prune"]) for file in files), made)


def _need(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(what)


def _is_path(value: Any) -> bool:
    whole = isinstance(value, str) and os.path.isabs(value) and "\0" not in value
    return whole and os.path.normpath(value) == value and value != os.sep


def _is_digest(value: Any) -> bool:
    return value is None or (isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None)
