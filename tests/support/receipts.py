"""Made-up receipts."""

from pathlib import Path

from unhang.store import pristine
from unhang.store.lock import exclusive
from unhang.store.receipt import Entry, Fixed, Receipt, sha256
from unhang.store.transaction import FileChange, commit

A, B, C = b"pristine\n", b"patched\n", b"patched twice\n"
FIRST = Fixed("fix-one", "m.py", "f", "s0", "s1", True)
SECOND = Fixed("fix-two", "m.py", "g", "t0", "t1", True)


def entry(
    before: bytes = A, after: bytes = B, *fixes: Fixed, relative: str = "p/m.py", root: str = "/site", row: str = "1"
) -> Entry:
    """One rewritten file, by default with the first fix."""
    listed = f"{root}/p-1.dist-info/RECORD"
    return Entry(
        f"{root}/{relative}", relative, "verl", "0.7.1", root, sha256(before), sha256(after), listed,
        f"{relative},sha256={row},{row}", fixes or (FIRST,),
    )  # fmt: skip


def without(receipt: Receipt, *paths: str) -> Receipt:
    return receipt._replace(files=tuple(entry for entry in receipt.files if entry.path not in paths))


def save(state: Path, new: Receipt, *blobs: bytes) -> list[FileChange]:
    """Save a receipt as a run does, in `state`, which is ROOT/.unhang; return the changes."""
    with exclusive(str(state)):
        changes = pristine.changes(str(state), new, {sha256(data): data for data in blobs})
        commit(changes, state_dir=str(state))
    return changes
