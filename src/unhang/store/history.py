"""What the receipts say about the past, in the terms of the rooms that judge and rewrite."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from unhang.errors import UnhangError
from unhang.judge.decide import Past
from unhang.records import Token
from unhang.shapes import catalog
from unhang.store.receipt import Entry, Fixed, Receipt
from unhang.store.state import folder

if TYPE_CHECKING:
    from unhang.rewrite.plan import Original


def past(receipts: Iterable[Receipt]) -> Mapping[tuple[str, str, str], Past]:
    """Return what an earlier run did to each function, by its file's real path, the fix and its qualified name."""
    return {
        (entry.path, fixed.fix, fixed.function): Past(entry.patched, fixed.after, _accepted(fixed))
        for receipt in receipts
        for entry in receipt.files
        for fixed in entry.fixes
    }


def _accepted(fixed: Fixed) -> tuple[Token, str] | None:
    if fixed.generation is None or fixed.date is None:
        return None
    return Token(fixed.before, fixed.generation, fixed.after), fixed.date


def originals(receipts: Iterable[Receipt], paths: Collection[str]) -> Mapping[str, Original]:
    """Return what the receipts keep of those of these real paths that they list; reads only their pristine bytes.

    Raises UnhangError `bad-receipt` for a fix that this unhang does not know, and for bytes that are gone or altered.
    """
    return {entry.path: _original(entry) for receipt in receipts for entry in receipt.files if entry.path in paths}


def _original(entry: Entry) -> Original:
    from unhang.rewrite.plan import Original  # most runs need neither the planning
    from unhang.store import pristine  # nor the transaction and its lock, which this loads

    known = {
        (target.fix, target.file, target.function): target for f in catalog.fixes().values() for target in f.targets
    }
    keys = [(fixed.fix, fixed.file, fixed.function) for fixed in entry.fixes]
    if not known.keys() >= set(keys):
        raise UnhangError(
            "bad-receipt", f"the receipt names a fix of {entry.path} that this unhang does not know",
            path=folder(entry.root), hint="use the unhang that wrote it, or reinstall what was patched",
        )  # fmt: skip
    steps = tuple((known[key], fixed.after) for key, fixed in zip(keys, entry.fixes))
    return Original(entry.patched, pristine.read(entry), steps)
