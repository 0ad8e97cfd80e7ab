"""The receipt: which files unhang rewrote below a root, and what is needed to restore every byte.

It is `receipt.json` in the root's state folder, and names paths below the root, so that it is right in a copy of the
environment too. `pristine` keeps the bytes of each file before its first fix.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from unhang import __version__
from unhang.errors import UnhangError
from unhang.store import disk, folder, untrusted
from unhang.store.state import RECEIPT

SCHEMA = 2  # 1, before the first release, had absolute paths


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
    """Whether the shape was listed. If not, a person accepted this very rewrite, and the next two say more."""
    generation: int | None = None
    """The generation of the rewrites then; None in a receipt from before there were tokens, as the date."""
    date: str | None = None
    """The day of the rewrite, UTC: 2026-11-22."""


class Entry(NamedTuple):
    """One file that was rewritten."""

    path: str
    """The real path: `root` and `relative` joined."""
    relative: str
    """The path below `root`."""
    upstream: str
    version: str | None
    root: str
    """The root, real and absolute; not part of the file."""
    pristine: str
    """sha256 (hex) of the bytes before the first fix."""
    patched: str
    """sha256 (hex) of the bytes that unhang wrote."""
    record: str | None
    """The RECORD that lists the file, `<root>/NAME.dist-info/RECORD`; in the file without the root."""
    record_row: str | None
    """The file's row there before the first fix (`dist_info.row`)."""
    fixes: tuple[Fixed, ...]


class Receipt(NamedTuple):
    """All rewritten files of a root."""

    unhang: str
    """The version that last wrote it."""
    files: tuple[Entry, ...]


def sha256(data: bytes) -> str:
    """Return the hex digest by which receipts name bytes."""
    return hashlib.sha256(data).hexdigest()


def load(state_dir: str) -> Receipt | None:
    """Return the receipt in `state_dir`, None if there is none. Does not read the pristine bytes.

    Raises UnhangError `newer-receipt` (a later unhang wrote it), `bad-receipt` (not to be trusted, and why) or
    `bad-state` (the folder is a link, or somebody else's). All paths are below the root, the folder above `state_dir`.
    """
    folder.check(state_dir)
    path = os.path.join(state_dir, RECEIPT)
    try:
        data = disk.read(path)
    except OSError as error:
        raise cannot_read(path, error) from error
    return None if data is None else parse(data, path, os.path.dirname(state_dir))


def parse(data: bytes, path: str, root: str) -> Receipt:
    """Return the receipt of `root` that `data`, the content of `path`, describes. Raises as `load`."""
    try:
        content = untrusted.json_object(data)
        schema = content.get("schema")
        if type(schema) is int and schema > SCHEMA:
            raise UnhangError(
                "newer-receipt",
                f"{path} was written by unhang {content.get('unhang')}, which is newer than {__version__}",
                path=path,
                hint="use that version, or a later one: pip install --upgrade unhang",
            )
        if type(schema) is not int or schema != SCHEMA:
            raise ValueError(f"its schema is {schema!r}")
        files = tuple(_entry(value, root) for value in untrusted.field(content, "files", list))
        if len({entry.path for entry in files}) != len(files):
            raise ValueError("a file is listed twice")
        return Receipt(untrusted.field(content, "unhang", str), files)
    except ValueError as error:
        raise bad(path, str(error)) from error


def render(receipt: Receipt) -> bytes:
    """Return the content of receipt.json, which does not depend on the order of the receipt's parts."""
    files = [_row(entry) for entry in sorted(receipt.files, key=lambda entry: entry.path)]
    content = {"schema": SCHEMA, "unhang": receipt.unhang, "files": files}
    return json.dumps(content, indent=1, sort_keys=True).encode() + b"\n"


def _row(entry: Entry) -> dict[str, Any]:
    row: dict[str, Any] = entry._asdict()
    del row["root"], row["relative"]
    record = None if entry.record is None else os.path.relpath(entry.record, entry.root)
    fixes = [{k: v for k, v in fixed._asdict().items() if v is not None} for fixed in sorted(entry.fixes)]
    return {**row, "path": entry.relative, "record": record, "fixes": fixes}


def merge(receipt: Receipt | None, entries: Sequence[Entry]) -> Receipt:
    """Return the receipt after an apply that wrote `entries`.

    If an entry's `pristine` equals the `patched` of the receipt's entry for that path, it goes on top of that one: the
    first pristine bytes and row are kept, and the fixes are joined. Otherwise it replaces the old entry with its fixes.
    """
    files = {entry.path: entry for entry in (receipt.files if receipt else ())}
    for entry in entries:
        first = files.get(entry.path)
        if first is not None and first.patched == entry.pristine:
            again = {(fixed.fix, fixed.function) for fixed in entry.fixes}
            kept = tuple(fixed for fixed in first.fixes if (fixed.fix, fixed.function) not in again)
            # the upgrade of one fix writes the others again, as they were
            old = {fixed[:5]: fixed for fixed in first.fixes}
            fixes = kept + tuple(old.get(fixed[:5], fixed) for fixed in entry.fixes)
            entry = entry._replace(
                pristine=first.pristine, record=first.record, record_row=first.record_row, fixes=fixes
            )
        files[entry.path] = entry
    return Receipt(__version__, tuple(files[path] for path in sorted(files)))


def bad(path: str, why: str) -> UnhangError:
    """Return the error for a part of the receipt, the file `path`, that cannot be trusted."""
    return UnhangError(
        "bad-receipt", f"{path} cannot be trusted: {why}", path=path,
        hint="nothing was changed; reinstall what was patched (pip install --force-reinstall), and delete that folder "
        "only when `unhang check` reports the plain release",
    )  # fmt: skip


def cannot_read(path: str, error: OSError) -> UnhangError:
    """Return the error for a part of the receipt that cannot be read: it may be whole, and must not be deleted."""
    hint = "nothing was changed; run this as a user who can read it, or check the disk"
    return UnhangError("bad-receipt", f"{path} cannot be read: {error.strerror}", path=path, hint=hint)


def _entry(value: Any, root: str) -> Entry:
    field = untrusted.field
    relative = untrusted.path(value, "path")
    record = None if field(value, "record", str, type(None)) is None else untrusted.path(value, "record")
    if record is not None and not re.fullmatch(r"[^/]+\.dist-info/RECORD", record):
        raise ValueError(f"{record!r} is not a RECORD below the root")
    entry = Entry(
        path=os.path.join(root, relative),
        relative=relative,
        upstream=field(value, "upstream", str),
        version=field(value, "version", str, type(None)),
        root=root,
        pristine=untrusted.digest(value, "pristine"),
        patched=untrusted.digest(value, "patched"),
        record=None if record is None else os.path.join(root, record),
        record_row=field(value, "record_row", str, type(None)),
        fixes=tuple(_fixed(fixed) for fixed in field(value, "fixes", list)),
    )
    if not entry.fixes:
        raise ValueError(f"{relative!r} has no fixes")
    if entry.record_row is not None:
        from unhang.store import dist_info  # only if there is a row

        dist_info.restore(b"", entry.relative, entry.record_row)  # raises for the row of another file
    return entry


def _fixed(value: Any) -> Fixed:
    field = untrusted.field
    texts = {name: field(value, name, str) for name in Fixed._fields[:5]}
    fixed = Fixed(**texts, verified=field(value, "verified", bool))
    if "date" not in value:
        return fixed
    generation, date = field(value, "generation", int), field(value, "date", str)
    # these become parts of a suggested command
    if not re.fullmatch(r"[0-9a-f]{16} [0-9a-f]{16} \d{4}-\d\d-\d\d", f"{fixed.before} {fixed.after} {date}", re.A):
        raise ValueError(f"an accepted rewrite of {fixed.function!r} is not described by two shapes and a date")
    return fixed._replace(generation=generation, date=date)
