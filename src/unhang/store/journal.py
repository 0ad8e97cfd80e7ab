"""The journal of a transaction: its files, with the digests of their old and new bytes. Read with suspicion."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from unhang.errors import UnhangError
from unhang.store import untrusted
from unhang.store.disk import Content, Link

SCHEMA = 1
PREFIX = ".unhang-"
_LINK = "link:"


class File(NamedTuple):
    """One file, and the two temporary files beside it during the transaction. On disk, paths are below the root."""

    path: str
    """Absolute, as the next two."""
    old: str | None
    """The `digest` of what is there; None: nothing is."""
    new: str | None
    """The `digest` of what is to be there; None: it is deleted."""
    prune: bool
    """After a deletion, remove its folder too if that is empty then."""
    temp: str
    """Holds the new bytes."""
    backup: str
    """Holds the old file; if there was none, an empty file that says so."""


class Journal(NamedTuple):
    """One transaction."""

    root: str
    """The folder that holds all of its files, real and absolute."""
    token: str
    files: tuple[File, ...]
    made: tuple[str, ...]
    """Folders to make first, outer before inner."""

    def folders(self) -> list[str]:
        """Return every folder in which anything is created, renamed or deleted."""
        return sorted({os.path.dirname(path) for path in (*(file.path for file in self.files), *self.made)})


def digest(content: Content) -> str | None:
    """Return how a journal names what is at a path: the sha256 of a file, or that of a link's text, as a link's."""
    if isinstance(content, Link):
        return _LINK + hashlib.sha256(os.fsencode(content.text)).hexdigest()
    return None if content is None else hashlib.sha256(content).hexdigest()


def compose(
    root: str, token: str, files: Iterable[tuple[str, str | None, str | None, bool]], made: Iterable[str]
) -> Journal:
    """Return the journal of these files (path below the root, old, new, prune); `token` names their temporary files."""
    result = []
    for number, (relative, old, new, prune) in enumerate(files):
        path = os.path.join(root, relative)
        beside = os.path.join(os.path.dirname(path), f"{PREFIX}{token}-{number}")
        result.append(File(path, old, new, prune, f"{beside}.new", f"{beside}.old"))
    return Journal(root, token, tuple(result), tuple(os.path.join(root, folder) for folder in made))


def render(journal: Journal) -> bytes:
    """Return the content of the journal's file."""
    files = [
        {"path": os.path.relpath(file.path, journal.root), "old": file.old, "new": file.new, "prune": file.prune}
        for file in journal.files
    ]
    made = [os.path.relpath(folder, journal.root) for folder in journal.made]
    content = {"schema": SCHEMA, "token": journal.token, "files": files, "made": made}
    return json.dumps(content, indent=1).encode() + b"\n"


def parse(data: bytes, path: str, root: str) -> Journal:
    """Return the journal that `data`, the content of `path`, describes: a transaction on files below `root`.

    Raises UnhangError `bad-journal`, also for a file that a link would have outside of the root.
    """
    try:
        journal = _parse(untrusted.json_object(data), root)
        for folder in journal.folders():
            if os.path.realpath(folder) != folder:
                raise ValueError(f"a link is on the way to {folder!r}")
        return journal
    except ValueError as error:
        raise bad(path, str(error)) from error


def bad(path: str, why: str) -> UnhangError:
    """Return the error for a journal that cannot be trusted."""
    hint = "nothing was changed; unless another version of unhang wrote that file, move it elsewhere"
    message = f"{path} is not a journal that this version can trust: {why}"
    return UnhangError("bad-journal", message, path=path, hint=hint)


def _parse(content: dict[str, Any], root: str) -> Journal:
    if untrusted.field(content, "schema", int) != SCHEMA:
        raise ValueError(f"its schema is {content['schema']!r}")
    token = untrusted.field(content, "token", str)
    if not re.fullmatch("[0-9a-f]{16}", token):
        raise ValueError("'token' is not 16 hex digits")
    files = [_file(value) for value in untrusted.field(content, "files", list)]
    paths = [path for path, *_ in files]
    if len(set(paths)) != len(paths):
        raise ValueError("a file is listed twice")
    made = untrusted.field(content, "made", list)
    for folder in made:
        if type(folder) is not str or not untrusted.is_plain(folder):
            raise ValueError("'made' has an entry that is not a plain path below the root")
        if not any(path.startswith(folder + os.sep) for path in paths):
            raise ValueError(f"'made' has a folder that contains none of its files: {folder!r}")
    return compose(root, token, files, made)


def _file(value: Any) -> tuple[str, str | None, str | None, bool]:
    path = untrusted.path(value, "path")
    old, new = (_digest_or_none(value, key) for key in ("old", "new"))
    if old == new:
        raise ValueError(f"{path!r} does not change")
    return path, old, new, untrusted.field(value, "prune", bool)


def _digest_or_none(value: Any, key: str) -> str | None:
    found = untrusted.field(value, key, str, type(None))
    if found is None or not found.startswith(_LINK):
        return found and untrusted.digest(value, key)
    return _LINK + untrusted.digest({key: found.removeprefix(_LINK)}, key)
