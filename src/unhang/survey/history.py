"""What the receipts say about the past, in the terms of the rooms that judge and rewrite."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from unhang.errors import UnhangError
from unhang.judge.decide import Past
from unhang.records import Token, paired
from unhang.shapes import catalog
from unhang.store.receipt import Entry, Fixed, Receipt
from unhang.store.state import folder

if TYPE_CHECKING:
    from unhang.rewrite.plan import Original


def past(receipts: Iterable[Receipt]) -> Mapping[tuple[str, str, str], Past]:
    """Return what an earlier run did to each function, by its file's real path, the fix and its qualified name."""
    return {
        (entry.path, fixed.fix, fixed.function): Past(
            entry.patched, fixed.after, _accepted(fixed), receipt.links.get(entry.relative, "")
        )
        for receipt in receipts
        for entry in receipt.files
        for fixed in entry.fixes
    }


def _accepted(fixed: Fixed) -> tuple[Token, str] | None:
    if fixed.generation is None or fixed.date is None:
        return None
    before, after = (paired(shape, fixed.beside) for shape in (fixed.before, fixed.after))
    return Token(before, fixed.generation, after, bool(fixed.seen_right)), fixed.date


def originals(receipts: Iterable[Receipt], paths: Collection[str]) -> Mapping[str, Original]:
    """Return what the receipts keep of those of these real paths that they list; reads only their pristine bytes.

    Raises UnhangError `bad-receipt` for a fix that this unhang does not know, and for bytes that are gone or altered.
    """
    found = {entry.path: _original(entry) for receipt in receipts for entry in receipt.files if entry.path in paths}
    return {path: original for path, original in found.items() if original is not None}


def _original(entry: Entry) -> Original | None:
    """Return what the receipt keeps of a file; None if the entry is void."""
    from unhang.rewrite.plan import Original  # most runs need neither the planning
    from unhang.store import pristine, remains  # nor the transaction and its lock, which this loads

    known = {(target.fix, target.file, target.function) for fix in catalog.fixes().values() for target in fix.targets}
    ours = (fixed for fixed in entry.fixes if fixed.pack is None)  # a pack may be gone
    if not known >= {(fixed.fix, fixed.file, fixed.function) for fixed in ours}:
        raise UnhangError(
            "bad-receipt", f"the receipt names a fix of {entry.path} that this unhang does not know",
            path=folder(entry.root), hint="use the unhang that wrote it, or reinstall what was patched",
        )  # fmt: skip
    left = remains.look(entry)
    if left.void:
        return None
    entry, data = (entry, pristine.read(entry)) if left.edited else remains.rebased(left)
    return Original(entry.patched, data)
