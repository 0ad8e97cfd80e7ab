"""The receipt: which files unhang rewrote below a root, and what is needed to restore every byte.

It is `receipt.json` in the root's state folder, and names paths below the root, so that it is right in a copy of the
environment too. `pristine` keeps the bytes of each file before its first fix.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from unhang import __version__
from unhang.errors import UnhangError
from unhang.store import disk, folder, untrusted
from unhang.store.state import RECEIPT
from unhang.suggest import Command, Hint

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
    """Whether the shape was listed. If not, a person accepted this very rewrite, and the next three say more."""
    generation: int | None = None
    """The generation of the rewrites then; None of a listed shape, as the date."""
    date: str | None = None
    """The day of the rewrite, UTC: 2026-11-22."""
    lines: str | None = None
    """The sha256 of the function's lines as they were written (`own_lines`); None if they cannot be put back alone."""
    beside: str | None = None
    """The shape of the function that it depends on, if that one was not listed."""
    seen_right: bool | None = None
    """True if the token said that the rewrite was seen right."""
    pack: str | None = None
    """The pack of the fix, and its version; None for unhang's own."""
    values: str | None = None
    """The values of its parameters, ``NAME=VALUE`` one a line; None if it has none."""
    edits: tuple[tuple[tuple[str, ...], ...], ...] | None = None
    """The edits of a diff as they were written, each as a ``codemods.exact.Swap``; None of a function."""
    words: str | None = None
    """The comments and docstrings that it brought, one a line, but for marks; None if it has none, or from before."""


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

    @property
    def names(self) -> tuple[str, ...]:
        """What a change of the file writes: the file, and its RECORD if there is one; paths below the root."""
        return (self.relative, *([os.path.relpath(self.record, self.root)] if self.record else []))


class Receipt(NamedTuple):
    """All rewritten files of a root, until it is proved that their originals are not needed any more: see `remains`."""

    unhang: str
    """The version that last wrote it."""
    files: tuple[Entry, ...]
    """By path. A file may have several, the latest first: a checkout goes from branch to branch, and back."""
    links: Mapping[str, str] = {}
    """The text of each link that a file of ours, or a RECORD, has replaced, by its path below the root."""


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
        latest = [_entry(value, root) for value in untrusted.field(content, "files", list)]
        if len({entry.path for entry in latest}) != len(latest):
            raise ValueError("a file is listed twice")
        earlier = [_entry(value, root) for value in untrusted.field({"earlier": [], **content}, "earlier", list)]
        files = _by_path([*latest, *earlier])
        return Receipt(untrusted.field(content, "unhang", str), files, _links(content))
    except ValueError as error:
        raise bad(path, str(error)) from error


def render(receipt: Receipt) -> bytes:
    """Return the content of receipt.json, which does not depend on the order of the receipt's parts."""
    latest: dict[str, Entry] = {}
    earlier = [entry for entry in _by_path(receipt.files) if latest.setdefault(entry.path, entry) is not entry]
    content: dict[str, Any] = {"schema": SCHEMA, "unhang": receipt.unhang, "files": list(map(_row, latest.values()))}
    if earlier:  # apart, for an older unhang takes no receipt that lists a file twice
        content["earlier"] = list(map(_row, earlier))
    if links := _kept(receipt.links, receipt.files):
        content["links"] = links
    return json.dumps(content, indent=1, sort_keys=True).encode() + b"\n"


def _row(entry: Entry) -> dict[str, Any]:
    row: dict[str, Any] = entry._asdict()
    del row["root"], row["relative"]
    record = None if entry.record is None else os.path.relpath(entry.record, entry.root)
    fixes = [{k: v for k, v in fixed._asdict().items() if v is not None} for fixed in sorted(entry.fixes)]
    return {**row, "path": entry.relative, "record": record, "fixes": fixes}


def merge(receipt: Receipt | None, entries: Sequence[Entry]) -> Receipt:
    """Return the receipt after a run that wrote `entries`.

    If an entry's `pristine` equals the `patched` of one of the receipt's entries for that path, it goes on top of that
    one, and takes its place: the first pristine bytes and row are kept, and the fixes are joined. All others stay.
    """
    files, fresh = list(receipt.files) if receipt else [], set()
    for entry in entries:
        first = next((old for old in files if (old.path, old.patched) == (entry.path, entry.pristine)), None)
        if first is not None:
            again = {(fixed.fix, fixed.function) for fixed in entry.fixes}
            kept = tuple(fixed for fixed in first.fixes if (fixed.fix, fixed.function) not in again)
            entry = entry._replace(
                pristine=first.pristine, record=first.record, record_row=first.record_row, fixes=kept + entry.fixes
            )
        else:
            fresh.add(entry.path)  # installed or checked out since: what it has replaced is another link, if any
        files = [entry, *(old for old in files if old is not first and not _is_same(old, entry))]
    links = _kept(receipt.links, (old for old in files if old.path not in fresh)) if receipt else {}
    return Receipt(__version__, _by_path(files), links)


def _is_same(one: Entry, other: Entry) -> bool:
    """Return whether two entries are of the same bytes, before and after."""
    return (one.path, one.pristine, one.patched) == (other.path, other.pristine, other.patched)


def _by_path(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    return tuple(sorted(entries, key=lambda entry: entry.path))


def _kept(links: Mapping[str, str], entries: Iterable[Entry]) -> dict[str, str]:
    """Return the links that a file of these entries, or its RECORD, has replaced."""
    names = {name for entry in entries for name in entry.names}
    return {name: text for name, text in links.items() if name in names}


def bad(path: str, why: str) -> UnhangError:
    """Return the error for a part of the receipt, the file `path`, that cannot be trusted."""
    return UnhangError(
        "bad-receipt", f"{path} cannot be trusted: {why}", path=path,
        hint=Hint(
            "it was not used; reinstall what was patched (pip install --force-reinstall), run ", Command("check"),
            ", then move that folder elsewhere",
        ),
    )  # fmt: skip


def cannot_read(path: str, error: OSError) -> UnhangError:
    """Return the error for a part of the receipt that cannot be read: it may be whole, and must not be deleted."""
    if isinstance(error, disk.Unfit):
        return bad(path, str(error.strerror))
    hint = "nothing was changed; run this as a user who can read it, or check the disk"
    if os.path.islink(path):  # as in a farm of links to an environment that was patched
        hint = "nothing was changed; unhang makes no link there: move that folder elsewhere"
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


def _edit(value: Any) -> tuple[tuple[str, ...], ...]:
    parts = tuple(map(tuple, value)) if type(value) is list and {*map(type, value)} == {list} else ()
    if len(parts) != 5 or any(type(row) is not str or "\n" in row for part in parts for row in part):
        raise ValueError("an edit is not described by its lines")
    return parts


def _links(content: dict[str, Any]) -> dict[str, str]:
    if "links" not in content:
        return {}
    links: dict[str, str] = untrusted.field(content, "links", dict)
    for path, text in links.items():
        if not untrusted.is_plain(path) or type(text) is not str or not 0 < len(text) < 4096 or "\0" in text:
            raise ValueError(f"{path!r} was no link")
        os.fsencode(text)  # raises for a lone surrogate, which JSON can express
    return links


def _fixed(value: Any) -> Fixed:
    field = untrusted.field
    texts = {name: field(value, name, str) for name in Fixed._fields[:5]}
    lines = untrusted.digest(value, "lines") if "lines" in value else None
    fixed = Fixed(**texts, verified=field(value, "verified", bool), lines=lines)
    if "pack" in value:
        fixed = fixed._replace(pack=field(value, "pack", str))
        if not re.fullmatch(r"[a-z0-9-]{1,40} [a-z0-9.+]{1,60}", fixed.pack or "", re.A):
            raise ValueError(f"{fixed.pack!r} is no pack")
    if "edits" in value:
        fixed = fixed._replace(edits=tuple(map(_edit, field(value, "edits", list))))
    for key in value.keys() & {"values", "words"}:
        fixed = fixed._replace(**{key: field(value, key, str)})
        if not all(map(str.isprintable, value[key].split("\n"))):
            raise ValueError(f"{key!r} has what is no text")
    if fixed.verified:
        return fixed
    generation, date = field(value, "generation", int), field(value, "date", str)
    if not 0 < generation < 10**9:
        raise ValueError("'generation' is out of range")
    beside = field(value, "beside", str) if "beside" in value else None
    words = " ".join([fixed.before, fixed.after, beside or fixed.after, date])
    # these become parts of a suggested command
    if not re.fullmatch(r"([0-9a-f]{16} ){3}\d{4}-\d\d-\d\d", words, re.A):
        raise ValueError(f"an accepted rewrite of {fixed.function!r} is not described by its shapes and a date")
    seen_right = field(value, "seen_right", bool) if "seen_right" in value else None
    return fixed._replace(generation=generation, date=date, beside=beside, seen_right=seen_right)
