"""What is left of a receipt's rewrites in a file: all, some of them beside somebody's edit, or none.

A receipt is about one release, and about functions. An upgrade or a reinstall makes it void; an edit elsewhere in the
file does not.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from unhang import packs
from unhang.find import metadata
from unhang.judge.observe import below_package
from unhang.rewrite import own_lines
from unhang.rewrite.own_lines import UNREADABLE
from unhang.shapes import shape
from unhang.store import disk, dist_info, links, pristine
from unhang.store.receipt import Entry, Fixed, bad, sha256
from unhang.store.state import RECEIPT, folder


class Remains(NamedTuple):
    """What is left of an entry's rewrites in its file now."""

    entry: Entry
    """With the RECORD where it lies now."""
    now: bytes = b""
    """The bytes of the file."""
    void: str = ""
    """Why none of the rewrites is left; empty if one is."""
    intact: tuple[Fixed, ...] = ()
    """Those whose function has the very lines that we wrote."""
    edited: tuple[Fixed, ...] = ()
    """Those whose function has been edited since, or whose receipt does not tell."""
    is_release: bool = True
    """Whether the file is of the release that was patched, as far as its RECORD or its version says."""

    @property
    def whole(self) -> bool:
        """Whether the file is byte for byte as we left it."""
        return sha256(self.now) == self.entry.patched


def look(entry: Entry) -> Remains:
    """Return what is left of an entry's rewrites. Raises UnhangError if its file cannot be read."""
    with disk.about(entry.path):
        now = links.read(entry.path)
    if now is None:
        return Remains(entry, void=f"{entry.path} is gone; nothing is left to revert in it")
    version, record = _release(entry)
    if entry.record is not None and record is not None:
        old, new = (os.path.basename(os.path.dirname(path)) for path in (entry.record, record))
        if metadata.normal(old) != metadata.normal(new):
            names = [name.removesuffix(".dist-info") for name in (old, new)]
            why = "{0} is of {2} now, and was patched in {1}: nothing of {2} was undone".format(entry.path, *names)
            return Remains(entry, void=why)
        entry = entry._replace(record=record)
    is_release = (entry.record is not None and record is not None) or version == entry.version
    if sha256(now) == entry.patched:
        return Remains(entry, now, intact=entry.fixes, is_release=is_release)
    states = _states(entry, now)
    intact, edited = (tuple(fixed for fixed in entry.fixes if states[fixed] is state) for state in (True, False))
    restored = f"{entry.path} was reinstalled or restored since; none of our changes are left in it"
    return Remains(entry, now, "" if intact or edited else restored, intact, edited, is_release)


def rebased(remains: Remains) -> tuple[Entry, bytes]:
    """Return the entry for the file as it is, and the bytes that a revert would give: somebody's edit is part of both.

    None of its functions may be edited. Raises UnhangError `bad-receipt` as `pristine.read`.
    """
    entry, now = remains.entry, remains.now
    plain = pristine.read(entry)
    if remains.whole:
        return entry, plain
    plain = put_back(entry, now, plain, remains.intact)
    row = entry.record_row
    if row is not None:
        data = dist_info.update(row.encode("utf-8", "surrogateescape"), {entry.relative.replace(os.sep, "/"): plain})
        row = data.decode("utf-8", "surrogateescape")
    return entry._replace(pristine=sha256(plain), patched=sha256(now), record_row=row, fixes=remains.intact), plain


def put_back(entry: Entry, now: bytes, plain: bytes, fixes: Iterable[Fixed]) -> bytes:
    """Return the bytes of a file, now, with the functions of these fixes as `plain` has them.

    Raises UnhangError `bad-receipt` if it has not, as a forged receipt may.
    """
    try:
        return own_lines.put_back(now, plain, {fixed.function for fixed in fixes})
    except UNREADABLE as error:
        path = os.path.join(folder(entry.root), RECEIPT)
        raise bad(path, f"the original bytes of {entry.path} lack a function that it names") from error


def signed(entry: Entry, plain: bytes, after: bytes) -> Entry:
    """Return the entry with the digests of its functions' lines; without, if putting these back is not all of it."""
    before = {fixed.function: fixed.before for fixed in reversed(entry.fixes)}  # that of the first of several
    lines: dict[str, str] = {}
    with suppress(*UNREADABLE):
        now = own_lines.expected(after, {fixed.function: fixed.after for fixed in entry.fixes})
        then = own_lines.expected(plain, before)
        if now.keys() == before.keys() and own_lines.replaced(after, now, then) == plain:
            lines = {name: place.digest for name, place in now.items()}
    return entry._replace(fixes=tuple(fixed._replace(lines=lines.get(fixed.function)) for fixed in entry.fixes))


def _states(entry: Entry, now: bytes) -> dict[Fixed, bool | None]:
    """Return for each fix whether its function is intact (True), edited (False), or not ours any more (None)."""
    try:
        places = own_lines.of(now, {fixed.function for fixed in entry.fixes})
    except UNREADABLE:
        return dict.fromkeys(entry.fixes, False)  # broken by an edit, which must not be lost
    recorded = _is_recorded(entry)

    def state(fixed: Fixed) -> bool | None:
        mark, place = f"# unhang {fixed.fix}:".encode(), places.get(fixed.function)
        if place is None:
            return False if mark in now else None
        if place.digest == fixed.lines:
            return True
        # Upstream's own fix may have the shape of ours. It has no mark, and the RECORD is not the one that we wrote.
        is_edited = mark in place.text or (recorded and shape.digest(place.function) == fixed.after)
        return False if is_edited else None

    return {fixed: state(fixed) for fixed in entry.fixes}


def _is_recorded(entry: Entry) -> bool:
    """Return whether the RECORD has the hash of what we wrote: nothing was installed over it since."""
    if entry.record is None:
        return False
    with disk.about(entry.record):
        row = dist_info.row(links.read(entry.record) or b"", entry.relative.replace(os.sep, "/"))
    ours = base64.urlsafe_b64encode(bytes.fromhex(entry.patched)).rstrip(b"=").decode()
    return f"sha256={ours}" in (row or "")


def _release(entry: Entry) -> tuple[str | None, str | None]:
    """Return the version that the entry's package states now, and the RECORD that lists it."""
    upstream = packs.upstreams().get(entry.upstream)
    if upstream is None:
        return None, None
    above = [os.pardir] * len(below_package(upstream.name, entry.fixes[0].file))
    return metadata.release(upstream, entry.root, os.path.normpath(os.path.join(entry.path, *above)))
