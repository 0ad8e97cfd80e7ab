"""The receipt: what unhang did to an environment, with the pristine bytes, so that it can be undone to the byte.

In the state folder: `receipt.json`, and the bytes each file had before its first fix as `pristine/<sha256>`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from unhang import __version__
from unhang.errors import UnhangError
from unhang.store import disk
from unhang.store.state import RECEIPT

if TYPE_CHECKING:
    from unhang.store.transaction import FileChange

BLOBS = "pristine"
SCHEMA = 1


class Fixed(NamedTuple):
    """One function that a fix rewrote."""

    fix: str
    file: str
    function: str
    before: str
    """Its shape before."""
    after: str
    """Its shape after."""
    verified: bool
    """Whether the shape was listed, not allowed by `--unverified`."""


class Entry(NamedTuple):
    """One file that was rewritten."""

    path: str
    """The real path: `root` and `relative` joined."""
    relative: str
    """The real path relative to `root`, posix."""
    upstream: str
    version: str | None
    root: str
    """The installation's root, real and absolute."""
    pristine: str
    """sha256 (hex) of the bytes before the first fix."""
    patched: str
    """sha256 (hex) of the bytes we wrote."""
    record: str | None
    """The RECORD that lists it, `<root>/NAME.dist-info/RECORD`."""
    record_row: str | None
    """Its row before the first fix (`record.row`)."""
    fixes: tuple[Fixed, ...]


class Exclude(NamedTuple):
    """How the line that hides us from git went in, so that it can go out without a trace. Where it went is looked up,
    never trusted.
    """

    newline: bool
    """The file did not end in a newline, so that one went in before the line."""
    created: bool
    """There was no file."""
    made_dir: bool
    """There was no folder for it."""


class Receipt(NamedTuple):
    """All of it."""

    unhang: str
    """The version that wrote it last."""
    files: tuple[Entry, ...]
    exclude: Exclude | None = None


def sha256(data: bytes) -> str:
    """Return the hex digest by which receipts name bytes."""
    return hashlib.sha256(data).hexdigest()


def load(state_dir: str) -> Receipt | None:
    """Return the receipt kept in `state_dir`, None where there is none. Blobs are not read.

    Raises UnhangError `newer-receipt` (a later unhang wrote it) or `bad-receipt` (not to be trusted, and why). What it
    names lies below its entries' roots; whether those are roots to write to is for the caller to say.
    """
    path = os.path.join(state_dir, RECEIPT)
    try:
        data = disk.read(path)
    except OSError as error:
        raise _bad(path, f"it cannot be read: {error.strerror}") from error
    return None if data is None else parse(data, path)


def parse(data: bytes, path: str) -> Receipt:
    """Return the receipt that `data`, the content of `path`, is. Raises as `load`: a checkout may bring an enemy's."""
    content: Any = None
    with suppress(ValueError, RecursionError):
        content = json.loads(data)
    if not isinstance(content, dict):
        raise _bad(path, "it is not a JSON object")
    schema = content.get("schema")
    if type(schema) is int and schema > SCHEMA:
        raise UnhangError(
            "newer-receipt", f"{path} was written by unhang {content.get('unhang')}, which is newer than {__version__}",
            path=path, hint="use that version, or a later one: pip install --upgrade unhang",
        )  # fmt: skip
    try:
        if type(schema) is not int or schema != SCHEMA:
            raise ValueError(f"its schema is {schema!r}")
        files = tuple(_entry(value) for value in _typed(content, "files", list))
        if len({entry.path for entry in files}) != len(files):
            raise ValueError("a file comes twice")
        exclude = _typed(content, "exclude", dict, type(None))
        if exclude is not None:
            exclude = Exclude(*(_typed(exclude, field, bool) for field in Exclude._fields))
        return Receipt(_typed(content, "unhang", str), files, exclude)
    except ValueError as error:
        raise _bad(path, str(error)) from error


def pristine(state_dir: str, entry: Entry) -> bytes:
    """Return the bytes of the file before the first fix. Raises UnhangError `bad-receipt` if gone or altered."""
    path = os.path.join(state_dir, BLOBS, entry.pristine)
    data = _blob(path)
    if data is None:
        raise _bad(path, f"the original bytes of {entry.path} are gone")
    return data


def merge(receipt: Receipt | None, entries: Sequence[Entry]) -> Receipt:
    """Return the receipt after an apply that wrote `entries`.

    An entry whose `pristine` is what the receipt's entry for that path has as `patched` goes on top of it: the first
    pristine bytes and row are kept, and its fixes are joined. Any other replaces the old entry (fixes included).
    """
    files = {entry.path: entry for entry in (receipt.files if receipt else ())}
    for entry in entries:
        first = files.get(entry.path)
        if first is not None and first.patched == entry.pristine:
            again = {(fixed.fix, fixed.function) for fixed in entry.fixes}
            kept = tuple(fixed for fixed in first.fixes if (fixed.fix, fixed.function) not in again)
            entry = entry._replace(
                pristine=first.pristine, record=first.record, record_row=first.record_row, fixes=kept + entry.fixes
            )
        files[entry.path] = entry
    return Receipt(__version__, tuple(files[path] for path in sorted(files)), receipt.exclude if receipt else None)


def without(receipt: Receipt, paths: Collection[str]) -> Receipt:
    """Return the receipt without the entries of these paths."""
    return receipt._replace(unhang=__version__, files=tuple(e for e in receipt.files if e.path not in paths))


def render(receipt: Receipt) -> bytes:
    """Return the content of receipt.json; the same for the same receipt, whatever the order of its parts."""
    files = [
        {**entry._asdict(), "fixes": [fixed._asdict() for fixed in sorted(entry.fixes)]}
        for entry in sorted(receipt.files, key=lambda entry: entry.path)
    ]
    exclude = receipt.exclude._asdict() if receipt.exclude else None
    content = {"schema": SCHEMA, "unhang": receipt.unhang, "files": files, "exclude": exclude}
    return json.dumps(content, indent=1, sort_keys=True).encode() + b"\n"


def changes(state_dir: str, receipt: Receipt, blobs: Mapping[str, bytes]) -> list[FileChange]:
    """Return what brings the receipt on disk to `receipt`: receipt.json, pristine blobs, git's exclude file.

    `blobs` holds the bytes of each pristine that is not kept yet, by sha256. An empty receipt deletes all of it.
    Reads the state there is now. Raises UnhangError `bad-receipt` for a blob that is there with other bytes, ValueError
    for one that is neither there nor in `blobs`.
    """
    from unhang.store import git_exclude  # here and below: only who writes pays for it
    from unhang.store.transaction import FileChange

    state_dir = os.path.realpath(state_dir)
    folder, path = os.path.dirname(state_dir), os.path.join(state_dir, RECEIPT)
    with disk.about(path):
        before = disk.read(path)
    result = _blob_changes(os.path.join(state_dir, BLOBS), {entry.pristine for entry in receipt.files}, blobs)
    if os.path.basename(state_dir) == ".unhang":
        if receipt.files and before is None:
            added = git_exclude.add(folder)
            if added is not None:
                result.append(added[0])
                receipt = receipt._replace(exclude=added[1])
        elif not receipt.files and receipt.exclude:
            taken_out = git_exclude.take_out(folder, receipt.exclude)
            result += [taken_out] if taken_out else []
    after = render(receipt) if receipt.files else None
    return result + ([FileChange(path, before, after)] if before != after else [])


def _blob_changes(folder: str, wanted: set[str], blobs: Mapping[str, bytes]) -> list[FileChange]:
    from unhang.store.transaction import FileChange

    result = []
    for digest in sorted(wanted):
        path = os.path.join(folder, digest)
        if _blob(path) is None:
            data = blobs.get(digest)
            if data is None or sha256(data) != digest:
                raise ValueError(f"the bytes of blob {digest} are missing")
            result.append(FileChange(path, None, data))
    if os.path.islink(folder):
        raise _bad(folder, "it is a symlink, and what it leads to is not ours to delete")
    kept: list[str] = []
    with suppress(FileNotFoundError), disk.about(folder):
        kept = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    for name in kept:
        if name not in wanted and re.fullmatch("[0-9a-f]{64}", name):
            path = os.path.join(folder, name)
            with disk.about(path):
                result.append(FileChange(path, disk.read(path), None, prune=True))
    return result


def _blob(path: str) -> bytes | None:
    try:
        data = disk.read(path)
    except OSError as error:
        raise _bad(path, f"it cannot be read: {error.strerror}") from error
    if data is not None and sha256(data) != os.path.basename(path):
        raise _bad(path, "its bytes are not those its name promises")
    return data


def _entry(value: Any) -> Entry:
    entry = Entry(
        path=_path(value, "path"),
        relative=_typed(value, "relative", str),
        upstream=_typed(value, "upstream", str),
        version=_typed(value, "version", str, type(None)),
        root=_path(value, "root"),
        pristine=_digest(value, "pristine"),
        patched=_digest(value, "patched"),
        record=None if _typed(value, "record", str, type(None)) is None else _path(value, "record"),
        record_row=_typed(value, "record_row", str, type(None)),
        fixes=tuple(_fixed(fixed) for fixed in _typed(value, "fixes", list)),
    )
    if entry.path != os.path.join(entry.root, entry.relative):
        raise ValueError(f"{entry.path} is not {entry.relative!r} below {entry.root}")
    if entry.record is not None:
        folder, name = os.path.split(entry.record)
        if name != "RECORD" or not folder.endswith(".dist-info") or os.path.dirname(folder) != entry.root:
            raise ValueError(f"{entry.record} is no RECORD of {entry.root}")
    if entry.record_row is not None:
        from unhang.store import dist_info  # only where there is a row

        dist_info.restore(b"", entry.relative, entry.record_row)  # raises for the row of another file
    return entry


def _fixed(value: Any) -> Fixed:
    texts = {field: _typed(value, field, str) for field in Fixed._fields if field != "verified"}
    return Fixed(**texts, verified=_typed(value, "verified", bool))


def _typed(value: Any, key: str, *types: type) -> Any:
    found = value.get(key, ...) if isinstance(value, dict) else ...
    if type(found) not in types:
        raise ValueError(f"{key!r} is missing or of the wrong kind")
    return found


def _path(value: Any, key: str) -> str:
    path: str = _typed(value, key, str)
    if not os.path.isabs(path) or os.path.normpath(path) != path or "\0" in path:
        raise ValueError(f"{key!r} is not an absolute plain path: {path!r}")
    return path


def _digest(value: Any, key: str) -> str:
    digest: str = _typed(value, key, str)
    if not re.fullmatch("[0-9a-f]{64}", digest):
        raise ValueError(f"{key!r} is no sha256")
    return digest


def _bad(path: str, why: str) -> UnhangError:
    return UnhangError(
        "bad-receipt", f"{path} cannot be trusted: {why}", path=path,
        hint="nothing was changed; reinstall what was patched (pip install --force-reinstall), then delete that folder",
    )  # fmt: skip
