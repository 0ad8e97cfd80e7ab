"""The pristine bytes of rewritten files, in the state folder as `pristine/<sha256>`, and how the receipt is saved."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from unhang.store import disk, state
from unhang.store.receipt import Entry, Receipt, bad, cannot_read, load, render, sha256
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
    """Return the changes that save `receipt`, and those of its pristine bytes that are in `originals`, by sha256.

    Pristine bytes that the receipt which is there names, and `receipt` does not, go. An empty receipt is deleted.
    Reads the current state. Raises UnhangError `bad-receipt` for saved bytes that were altered, and as `load`;
    ValueError if the bytes of a new entry are missing.
    """
    state_dir = os.path.realpath(state_dir)
    path = os.path.join(state_dir, RECEIPT)
    with disk.about(path):
        before = disk.read(path)
    after = render(receipt) if receipt.files else None
    old = load(state_dir)
    saved, wanted = ({entry.pristine for entry in it.files} if it else set() for it in (old, receipt))
    new = {digest: originals.get(digest) for digest in wanted - saved}
    if wrong := [digest for digest, data in new.items() if data is None or sha256(data) != digest]:
        raise ValueError(f"the pristine bytes {', '.join(wrong)} are missing")
    folder = os.path.join(state_dir, PRISTINE)
    result = [*_added(folder, {name: originals[name] for name in wanted & originals.keys()})]
    result += _deleted(folder, saved - wanted)
    return result + ([FileChange(path, before, after)] if before != after else [])


def unlisted(state_dir: str) -> list[str]:
    """Return the paths of the original bytes that no receipt names, as where a part of the folder was lost.

    Raises UnhangError as `load`.
    """
    found, folder = load(state_dir), os.path.join(state_dir, PRISTINE)
    named = {entry.pristine for entry in found.files} if found else set()
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return [os.path.join(folder, name) for name in sorted(names) if name not in named]


def _added(folder: str, originals: Mapping[str, bytes]) -> list[FileChange]:
    paths = ((os.path.join(folder, digest), data) for digest, data in sorted(originals.items()))
    return [FileChange(path, None, data) for path, data in paths if _checked(path) is None]


def _deleted(folder: str, unwanted: Iterable[str]) -> list[FileChange]:
    result = []
    for path in (os.path.join(folder, name) for name in sorted(unwanted)):
        with disk.about(path):
            data = disk.read(path)
        if data is not None:
            result.append(FileChange(path, data, None, prune=True))
    return result


def _checked(path: str) -> bytes | None:
    try:
        data = disk.read(path)
    except OSError as error:
        raise cannot_read(path, error) from error
    if data is not None and sha256(data) != os.path.basename(path):
        raise bad(path, "its bytes do not match the sha256 in its name")
    return data
