"""Recovery: finish or roll back the transaction of a run that was killed."""

from __future__ import annotations

import os

from unhang.errors import UnhangError
from unhang.find.bytecode import NO_CACHES, Caches
from unhang.store import disk, lock
from unhang.store.journal import PREFIX, File, Journal, bad, digest, parse
from unhang.store.state import DONE, INTENT, JOURNAL_DRAFT, READY
from unhang.store.steps import advance, clean, roll_back, roll_forward, state_of


def recover(state_dir: str, caches: Caches = NO_CACHES) -> str | None:
    """Finish or roll back what a killed run left; call it first inside `lock.exclusive(state_dir)`.

    Returns a sentence that says which, None if there was nothing. Raises UnhangError `bad-journal` (not one of ours:
    nothing is changed), `cannot-recover` (files were edited since: nothing is changed), or as `transaction.commit`.
    """
    state_dir = lock.required(state_dir)
    with disk.about(os.path.join(state_dir, JOURNAL_DRAFT)):
        disk.remove(os.path.join(state_dir, JOURNAL_DRAFT))
    for stage in (DONE, READY, INTENT):
        path = os.path.join(state_dir, stage)
        with disk.about(path):
            try:
                data = disk.read(path)
            except disk.Unfit as error:
                raise bad(path, str(error.strerror)) from error
        if data is None:
            continue
        journal = parse(data, path, os.path.dirname(state_dir))
        if stage == READY:
            return _settle(state_dir, journal, caches)
        with disk.about(path):
            clean(state_dir, journal, stage)
        if stage == DONE:
            return "An earlier run was interrupted after its last change: its changes are in place, now complete."
        return "An earlier run was interrupted: nothing of it is left, every file is as it was before."
    return None


def _settle(state_dir: str, journal: Journal, caches: Caches) -> str:
    """Finish the transaction if every file allows it, else roll it back if every file allows that."""
    if all(_can_go_forward(file) for file in journal.files):
        roll_forward(journal, caches)
        advance(state_dir, READY, DONE)
        with disk.about(os.path.join(state_dir, DONE)):
            clean(state_dir, journal, DONE)
        return "An earlier run was interrupted halfway: it is now finished, all of its changes are in place."
    if all(_can_go_back(file) for file in journal.files):
        roll_back(journal, caches)
        advance(state_dir, READY, INTENT)
        with disk.about(os.path.join(state_dir, INTENT)):
            clean(state_dir, journal, INTENT)
        return "An earlier run was interrupted halfway: it is now rolled back, every file is as it was before."
    stuck = [file for file in journal.files if not _can_go_forward(file) and not _can_go_back(file)]
    path = (stuck or [file for file in journal.files if not _can_go_forward(file)])[0].path
    raise UnhangError(
        "cannot-recover", f"an earlier run was interrupted halfway, and {path} was changed since; nothing was changed",
        path=path, hint=f"restore that file (its old bytes may be in {PREFIX}*.old beside it), or reinstall it",
    )  # fmt: skip


def _can_go_forward(file: File) -> bool:
    state = state_of(file)
    if state == "old":
        return _has(file.backup, file.old) if file.new is None else _has(file.temp, file.new)
    # An edit after the file was replaced is an edit of the new version: there is nothing left to do.
    return state == "new" or (file.new is not None and not os.path.lexists(file.temp))


def _can_go_back(file: File) -> bool:
    state = state_of(file)
    if state == "new":
        return os.path.lexists(file.backup) if file.old is None else _has(file.backup, file.old)
    # An edit before the file was replaced stays.
    return state == "old" or file.new is None or os.path.lexists(file.temp)


def _has(path: str, sha256: str | None) -> bool:
    try:
        return digest(disk.content(path)) == sha256
    except OSError:
        return False
