"""What is left of a receipt's rewrites in a file, and whether its original is still needed.

An entry is *over* when the file is byte for byte the original, or what the RECORD of its distribution lists now. It is
*live* while one of its rewrites is in the file. Anything else is *dormant*: the file is gone, or is that of another
branch, release or backup. Our rewrite may come back, so the original stays.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from unhang.codemods.base import AnchorError
from unhang.codemods.exact import Swap
from unhang.errors import UnhangError
from unhang.find import metadata
from unhang.judge.decide import MARK, OURS
from unhang.judge.observe import below_package
from unhang.plugins import packs
from unhang.records import normal
from unhang.rewrite import own_lines
from unhang.rewrite.own_lines import UNREADABLE
from unhang.shapes import catalog, shape
from unhang.store import disk, dist_info, links, pristine
from unhang.store.receipt import Entry, Fixed, bad, sha256
from unhang.store.state import RECEIPT, folder


class Remains(NamedTuple):
    """What is left of an entry's rewrites in its file now."""

    entry: Entry
    """With the RECORD where it lies now."""
    now: bytes = b""
    """The bytes of the file."""
    absent: str = ""
    """Why none of the rewrites is there; empty if one is."""
    is_over: bool = False
    """Whether the original is not needed any more: the file has its bytes, or ``is_listed``."""
    is_listed: bool = False
    """Whether the file is as an installer has left it since, by its RECORD."""
    intact: tuple[Fixed, ...] = ()
    """Those whose function is as we wrote it, whatever its layout."""
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
    version, record = _release(entry)
    old, new = (path and os.path.basename(os.path.dirname(path)) for path in (entry.record, record))
    if old and new and normal(old) != normal(new):
        names = [name.removesuffix(".dist-info") for name in (old, new)]
        absent = "{0} is of {2} now, and was patched in {1}: nothing of {2} was undone".format(entry.path, *names)
    elif now is None:
        absent = f"{entry.path} is gone"
    else:
        absent, entry = "", entry._replace(record=record if old and new else entry.record)
    is_listed = now is not None and record is not None and _is_listed(entry, record, now)
    is_over = is_listed or (now is not None and sha256(now) == entry.pristine)
    if is_over and not absent:
        absent = f"{entry.path} was reinstalled or restored since; none of our changes are left in it"
    if absent or now is None:
        return Remains(entry, now or b"", absent, is_over, is_listed)
    is_release = bool(old and new) or version == entry.version
    if sha256(now) == entry.patched:
        return Remains(entry, now, intact=entry.fixes, is_release=is_release)
    left = states(entry, now)
    intact, edited = (tuple(fixed for fixed in entry.fixes if left[fixed] is state) for state in (True, False))
    absent = "" if intact or edited else f"none of our changes is in {entry.path} now"
    return Remains(entry, now, absent, intact=intact, edited=edited, is_release=is_release)


def living(found: Iterable[Remains]) -> Remains | None:
    """Return that one of a file's entries whose rewrites are there: of several, the one that the file is like most.

    None if none of them is there.
    """
    there = [remains for remains in found if not remains.absent]
    return max(there, key=lambda it: (it.whole, len(it.intact), len(it.edited)), default=None)


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
        name = entry.relative.replace(os.sep, "/")
        data = dist_info.update(row.encode("utf-8", "surrogateescape"), {name: plain})
        row = dist_info.quoted(data, name).decode("utf-8", "surrogateescape")
    return entry._replace(pristine=sha256(plain), patched=sha256(now), record_row=row, fixes=remains.intact), plain


def put_back(entry: Entry, now: bytes, plain: bytes, fixes: Iterable[Fixed]) -> bytes:
    """Return the bytes of a file, now, with the functions of these fixes as `plain` has them.

    Raises UnhangError `bad-receipt` if it has not, as a forged receipt may.
    """
    try:
        fixes = list(fixes)
        for fixed in fixes:
            if fixed.edits:
                now = own_lines.undone(now, fixed.file, swaps(fixed), fixed.fix)
        return own_lines.put_back(now, plain, {fixed.function for fixed in fixes if not fixed.edits})
    except (*UNREADABLE, AnchorError) as error:
        path = os.path.join(folder(entry.root), RECEIPT)
        raise bad(path, f"the original bytes of {entry.path} lack a function that it names") from error


def signed(entry: Entry, plain: bytes, after: bytes) -> Entry:
    """Return the entry with the digests of its functions' lines, and the words that it brought into them.

    Without the digests, if putting these lines back is not all of it.
    """
    functions = [fixed for fixed in entry.fixes if not fixed.edits]
    before = {fixed.function: fixed.before for fixed in reversed(functions)}  # that of the first of several
    lines: dict[str, str] = {}
    words: dict[str, str] = {}
    is_all = False
    with suppress(*UNREADABLE, AnchorError):
        bare = after
        for fixed in reversed(entry.fixes):
            bare = own_lines.undone(bare, fixed.file, swaps(fixed), fixed.fix) if fixed.edits else bare
        shapes = {fixed.function: fixed.after for fixed in functions}
        if functions:
            now, then = own_lines.expected(after, shapes), own_lines.expected(plain, before)
            bare = own_lines.replaced(bare, own_lines.expected(bare, shapes), then)
        is_all = bare == plain
        if is_all and functions:
            lines = {name: place.digest for name, place in now.items()}
            brought = {name: own_lines.words(it) - own_lines.words(then.get(name)) for name, it in now.items()}
            words = {name: "\n".join(sorted(filter(str.isprintable, texts))) for name, texts in brought.items()}

    def signed_(fixed: Fixed) -> Fixed:
        if fixed.edits:
            return fixed if is_all else fixed._replace(edits=())
        return fixed._replace(lines=lines.get(fixed.function), words=words.get(fixed.function) or None)

    return entry._replace(fixes=tuple(map(signed_, entry.fixes)))


def states(entry: Entry, now: bytes) -> dict[Fixed, bool | None]:
    """Return for each fix whether its function is ours (True), ours and edited (False), or not ours now (None)."""
    functions = {fixed.function for fixed in entry.fixes if fixed.edits is None}
    try:
        places = own_lines.of(now, functions) if functions else {}
    except UNREADABLE:
        return dict.fromkeys(entry.fixes, False)  # broken by an edit, which must not be lost
    is_recorded = _is_recorded(entry)

    def state(fixed: Fixed) -> bool | None:
        mark, place = f"# unhang {fixed.fix}:".encode(), places.get(fixed.function)
        if fixed.edits is not None:
            return _is_undoable(fixed, now, mark)
        if place is None:
            return False if mark in now else None
        if place.digest == fixed.lines:
            return True
        if shape.digest(place.function) != fixed.after:
            return False if mark in place.text else None
        if mark not in place.text and not is_recorded and not _is_ours_alone(fixed):
            return None
        return _is_tidied(entry, fixed, now)

    return {fixed: state(fixed) for fixed in entry.fixes}


def _is_undoable(fixed: Fixed, now: bytes, mark: bytes) -> bool | None:
    """Return as ``states`` for the edits of a diff."""
    with suppress(ValueError):
        in_part = own_lines.is_edited(now, fixed.file, swaps(fixed), fixed.fix) if fixed.edits else mark in now
        return True if in_part is None else False if in_part or mark in now else None
    return False


def swaps(fixed: Fixed) -> list[Swap]:
    """Return the edits of a diff as they were written."""
    return [Swap(*it) for it in fixed.edits or ()]


def _is_ours_alone(fixed: Fixed) -> bool:
    """Return whether no release of upstream is known to have the shape of a rewrite."""
    if fixed.fix not in catalog.fixes():
        return True  # of a pack that is not in effect
    known = catalog.shape_table().shapes.get((fixed.fix, fixed.function, fixed.after))
    return known is None or known.state == OURS


def _is_tidied(entry: Entry, fixed: Fixed, now: bytes) -> bool:
    """Return whether a function was only laid out anew since we wrote it, and can be put back alone."""
    with suppress(UnhangError, *UNREADABLE):
        ours = [text for it in entry.fixes if it.function == fixed.function for text in (it.words or "").split("\n")]
        return fixed.lines is not None and own_lines.is_tidied(now, pristine.read(entry), fixed.function, ours)
    return False


def _is_listed(entry: Entry, record: str, now: bytes) -> bool:
    """Return whether a RECORD lists the file as it is now, in a row that an installer wrote."""
    data, name = links.read_record(record) or b"", entry.relative.replace(os.sep, "/")
    return MARK not in now and sha256(now) != entry.patched and dist_info.lists(data, name, now)


def _is_recorded(entry: Entry) -> bool:
    """Return whether the RECORD has the hash of what we wrote: nothing was installed over it since."""
    if entry.record is None:
        return False
    row = dist_info.row(links.read_record(entry.record) or b"", entry.relative.replace(os.sep, "/"))
    return dist_info.has_digest(row or "", entry.patched)


def _release(entry: Entry) -> tuple[str | None, str | None]:
    """Return the version that the entry's package states now, and the RECORD that lists it."""
    upstream = packs.upstreams().get(entry.upstream)
    if upstream is None:
        return None, None
    above = [os.pardir] * len(below_package(upstream.name, entry.fixes[0].file))
    return metadata.release(upstream, entry.root, os.path.normpath(os.path.join(entry.path, *above)))
