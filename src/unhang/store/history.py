"""What the receipt says of earlier runs, as the judging and the planning take it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from unhang.errors import UnhangError
from unhang.judge.decide import Past
from unhang.shapes import catalog
from unhang.store import receipt as receipts
from unhang.store.receipt import Receipt

if TYPE_CHECKING:
    from unhang.rewrite.plan import Original


def past(receipt: Receipt | None) -> Mapping[tuple[str, str, str], Past]:
    """Return what the receipt says of each rewritten function, by the file's real path, the fix and the function."""
    return {
        (entry.path, fixed.fix, fixed.function): Past(entry.patched, fixed.after)
        for entry in (receipt.files if receipt else ())
        for fixed in entry.fixes
    }


def originals(state_dir: str, receipt: Receipt | None, paths: Collection[str]) -> Mapping[str, Original]:
    """Return what the receipt keeps of these files, by real path. Raises UnhangError ``bad-receipt``."""
    from unhang.rewrite.plan import Original  # `check` plans nothing

    known = {
        (target.fix, target.file, target.function): target for fix in catalog.fixes().values() for target in fix.targets
    }
    found = {}
    for entry in receipt.files if receipt else ():
        if entry.path not in paths:
            continue
        if not {(fixed.fix, fixed.file, fixed.function) for fixed in entry.fixes} <= set(known):
            raise UnhangError(
                "bad-receipt", f"the receipt names a fix of {entry.path} that this unhang does not know",
                path=state_dir, hint="use the unhang that wrote it, or reinstall what was patched",
            )  # fmt: skip
        steps = tuple((known[fixed.fix, fixed.file, fixed.function], fixed.after) for fixed in entry.fixes)
        found[entry.path] = Original(entry.patched, receipts.pristine(state_dir, entry), steps)
    return found
