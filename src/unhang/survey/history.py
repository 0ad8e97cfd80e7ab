"""What the receipts say about the past, in the terms of the rooms that judge and rewrite."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from unhang.errors import UnhangError
from unhang.judge.decide import Past
from unhang.records import Token, paired
from unhang.shapes import catalog
from unhang.store.receipt import Entry, Fixed, Receipt
from unhang.store.state import folder

if TYPE_CHECKING:
    from unhang.rewrite.plan import Original


def past(receipts: Iterable[Receipt]) -> Mapping[tuple[str, str, str], Sequence[Past]]:
    """Return what earlier runs did to each function, the latest first.

    The key is its file's real path, the fix and its qualified name.
    """
    found: dict[tuple[str, str, str], list[Past]] = {}
    for receipt in receipts:
        for entry in receipt.files:
            for fixed in entry.fixes:
                one = Past(entry.patched, fixed.after, _accepted(fixed), receipt.links.get(entry.relative, ""))
                found.setdefault((entry.path, fixed.fix, fixed.function), []).append(one)
    return found


def _accepted(fixed: Fixed) -> tuple[Token, str] | None:
    if fixed.generation is None or fixed.date is None:
        return None
    before, after = (paired(shape, fixed.beside) for shape in (fixed.before, fixed.after))
    return Token(before, fixed.generation, after, bool(fixed.seen_right)), fixed.date


def originals(receipts: Iterable[Receipt], paths: Collection[str]) -> Mapping[str, Original]:
    """Return what the receipts keep of those of these real paths that have our rewrites; reads only pristine bytes.

    Raises UnhangError `bad-receipt` for a fix that this unhang does not know, and for bytes that are gone or altered.
    """
    found: dict[str, list[Entry]] = {}
    for entry in (entry for receipt in receipts for entry in receipt.files if entry.path in paths):
        found.setdefault(entry.path, []).append(entry)
    kept = {path: _original(entries) for path, entries in found.items()}
    return {path: original for path, original in kept.items() if original is not None}


def _original(entries: Sequence[Entry]) -> Original | None:
    """Return what the receipt keeps of a file; None if none of our rewrites is there."""
    from unhang.rewrite.plan import Original  # most runs need neither the planning
    from unhang.store import pristine, remains  # nor the transaction and its lock, which this loads

    known = {(target.fix, target.file, target.function) for fix in catalog.fixes().values() for target in fix.targets}
    for entry in entries:
        ours = (fixed for fixed in entry.fixes if fixed.pack is None)  # a pack may be gone
        if not known >= {(fixed.fix, fixed.file, fixed.function) for fixed in ours}:
            raise UnhangError(
                "bad-receipt", f"the receipt names a fix of {entry.path} that this unhang does not know",
                path=folder(entry.root), hint="use the unhang that wrote it, or reinstall what was patched",
            )  # fmt: skip
    left = remains.living(map(remains.look, entries))
    if left is None:
        return None
    entry, data = (left.entry, pristine.read(left.entry)) if left.edited else remains.rebased(left)
    return Original(entry.patched, data)
