"""The pristine bytes of rewritten files, in the state folder as `pristine/<sha256>`, and how the receipt is saved."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from unhang.store import disk, state
from unhang.store.receipt import Entry, Receipt, bad, cannot_read, render, sha256
from unhang.store.state import PRISTINE, RECEIPT
from unhang.store.transaction import FileChange


def read(entry: Entry) -> bytes:
    """Return the bytes of a file before its first fix. Raises UnhangError `bad-receipt` if they are gone or altered."""
    path = os.path.join(state.folder(entry.root), PRISTINE, entry.pristine)
    data = _checked(path)
    if data is None:
        raise bad(path, f"the original bytes of {entry.path} are gone")
    return data


def changes(state_dir: str, receipt: Receipt, originals: Mapping[str, bytes]) -> list[FileChange]:
    """Return the changes that save `receipt` and its pristine bytes; an empty receipt deletes both.

    `originals` contains, by sha256, all pristine bytes that are not saved yet. Reads the current state. Raises
    UnhangError `bad-receipt` for saved bytes that were altered, ValueError for bytes that are missing from both.
    """
    state_dir = os.path.realpath(state_dir)
    path = os.path.join(state_dir, RECEIPT)
    with disk.about(path):
        before = disk.read(path)
    after = render(receipt) if receipt.files else None
    folder, wanted = os.path.join(state_dir, PRISTINE), {entry.pristine for entry in receipt.files}
    result = [*_added(folder, wanted, originals), *_deleted(folder, wanted)]
    return result + ([FileChange(path, before, after)] if before != after else [])


def _added(folder: str, wanted: set[str], originals: Mapping[str, bytes]) -> list[FileChange]:
    result = []
    for digest in sorted(wanted):
        path = os.path.join(folder, digest)
        if _checked(path) is None:
            data = originals.get(digest)
            if data is None or sha256(data) != digest:
                raise ValueError(f"the pristine bytes {digest} are missing")
            result.append(FileChange(path, None, data))
    return result


def _deleted(folder: str, wanted: set[str]) -> list[FileChange]:
    if os.path.islink(folder):
        raise bad(folder, "it is a symlink, so unhang may not delete what it leads to")
    with disk.about(folder):
        names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    result = []
    for name in names:
        if name not in wanted and re.fullmatch("[0-9a-f]{64}", name):
            path = os.path.join(folder, name)
            with disk.about(path):
                result.append(FileChange(path, disk.read(path), None, prune=True))
    return result


def _checked(path: str) -> bytes | None:
    try:
        data = disk.read(path)
    except OSError as error:
        raise cannot_read(path, error) from error
    if data is not None and sha256(data) != os.path.basename(path):
        raise bad(path, "its bytes do not match the sha256 in its name")
    return data
