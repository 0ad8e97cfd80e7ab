"""The files of one root are replaced, created and deleted together or not at all, whenever the process is killed.

During a transaction two temporary files lie beside each file: `.new` with its new bytes, and `.old` to restore it from.
The journal lists the files, and its name says how far the run got (see `state`).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import NamedTuple

from unhang.errors import UnhangError
from unhang.find.bytecode import NO_CACHES, Caches
from unhang.store import disk, lock
from unhang.store.disk import Content, Like, Link
from unhang.store.journal import File, Journal, compose, digest, render
from unhang.store.state import DONE, INTENT, JOURNAL_DRAFT, READY, interrupted
from unhang.store.steps import advance, changed, clean, roll_back, roll_forward
from unhang.suggest import RECOVERY, Hint

_RECOVERY = (*RECOVERY, ": each first finishes that run or rolls it back")


class FileChange(NamedTuple):
    """One file to replace, create or delete."""

    path: str
    """Absolute, below the root that keeps the state."""
    before: Content
    """What was there when the change was planned; None: it must not exist."""
    after: Content
    """What is to be there; None: it is deleted."""
    prune: bool = False
    """After a deletion, remove its folder too if that is empty then."""


def commit(changes: Sequence[FileChange], *, state_dir: str, caches: Caches = NO_CACHES) -> UnhangError | None:
    """Write all changes to disk, or none; call it inside `lock.exclusive(state_dir)`.

    Returns why the temporary files and the journal are still there, if so: everything is in place all the same, and the
    next run's `recover` removes them.

    Stale bytecode of the changed `.py` files goes too, also in `caches`. Raises UnhangError, with every file as it was:
    `changed-underneath`, `vanished`, `not-writable`, `disk-full`, `write-failed`; or `interrupted` if an earlier run
    needs `recover`, or if the rollback of this one failed too (the message says which).
    """
    state_dir = lock.required(state_dir)
    if interrupted(state_dir):
        raise _interrupted("an earlier run here was interrupted", state_dir)
    root = os.path.dirname(state_dir)
    todo = [_resolved(change, root) for change in changes]
    if len({change.path for change in todo}) != len(todo):
        raise ValueError("one file is changed twice in one transaction")
    for change in todo:
        _check_unchanged(change)
    todo = [change for change in todo if change.before != change.after]
    if not todo:
        return None
    journal = _plan(root, todo)
    try:
        _prepare(state_dir, journal, todo)
        advance(state_dir, INTENT, READY)
        roll_forward(journal, caches)
        advance(state_dir, READY, DONE)
    except BaseException as error:  # Ctrl-C too
        _undo(state_dir, journal, caches, error)
        raise
    # Everything is in place now, whatever becomes of the clean-up.
    try:
        clean(state_dir, journal, DONE)
    except OSError as error:
        path = os.path.join(state_dir, DONE)
        message = f"the temporary files of this run could not be removed: {disk.refusal(error, path).message}"
        return UnhangError("interrupted", message, path=path, hint=Hint("everything is in place; ", *_RECOVERY))
    return None


def _resolved(change: FileChange, root: str) -> FileChange:
    folder, name = os.path.split(change.path)
    path = os.path.join(os.path.realpath(folder), name)
    if not os.path.isabs(change.path) or not path.startswith(os.path.join(root, "")):
        raise ValueError(f"not an absolute path below {root}: {change.path}")
    return change._replace(path=path)


def _check_unchanged(change: FileChange) -> None:
    """Raise UnhangError if a file is not as it was when the change was planned."""
    try:
        now = disk.content(change.path)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ELOOP):
            raise changed(change.path, "is not a regular file any more") from error
        raise disk.refusal(error, change.path) from error
    if now == change.before:
        return
    if now is None:
        raise UnhangError(
            "vanished", f"{change.path} was there a moment ago and is gone", path=change.path,
            hint="another program is changing this environment; when it is done, run the same command again",
        )  # fmt: skip
    raise changed(change.path, "was changed by another program a moment ago")


def _plan(root: str, changes: Sequence[FileChange]) -> Journal:
    made = set()
    for change in changes:
        folder = os.path.dirname(change.path)
        while not os.path.isdir(folder):
            made.add(os.path.relpath(folder, root))
            folder = os.path.dirname(folder)
    files = (
        (os.path.relpath(c.path, root), digest(c.before), digest(c.after), c.prune and c.after is None) for c in changes
    )
    return compose(root, os.urandom(8).hex(), files, sorted(made))


def _prepare(state_dir: str, journal: Journal, changes: Sequence[FileChange]) -> None:
    """Write the journal, then all that is needed to go forward or back, and have it on disk."""
    draft = os.path.join(state_dir, JOURNAL_DRAFT)
    with disk.about(os.path.join(state_dir, INTENT)):
        disk.write(draft, render(journal), like=disk.like_folder(state_dir), replace=True)
        disk.run(os.rename, draft, os.path.join(state_dir, INTENT))
        disk.sync_dir(state_dir)
    for folder in journal.made:
        with disk.about(folder):
            disk.make_dir(folder)
    for file, change in zip(journal.files, changes, strict=True):
        with disk.about(file.path):
            new = disk.like_folder(os.path.dirname(file.path))
            old = new if change.before is None else disk.like_file(file.path)
            if change.before is None:
                # says that the file was not there, and that a rollback may delete it
                disk.write(file.backup, b"", like=new)
            else:
                _back_up(file, change.before, old)
            if change.after is not None:
                is_state = file.path.startswith(os.path.join(state_dir, ""))
                _put(file.temp, change.after, new if is_state else old)
    for folder in journal.folders():
        with disk.about(os.path.join(folder, "")):
            disk.sync_dir(folder)


def _back_up(file: File, content: bytes | Link, like: Like) -> None:
    try:
        # A hardlink: when it is renamed back, the file has its time, owner and other links again.
        disk.run(os.link, file.path, file.backup, follow_symlinks=False)
    except OSError:  # no hardlinks here, or not to files of other owners
        _put(file.backup, content, like)


def _put(path: str, content: bytes | Link, like: Like) -> None:
    if isinstance(content, Link):
        disk.make_link(path, content, like)
    else:
        disk.write(path, content, like=like)


def _undo(state_dir: str, journal: Journal, caches: Caches, error: BaseException) -> None:
    """Restore everything after a failure.

    The journal's name on disk says how far the run got: an interrupt may fall between a rename and the next line.
    """
    try:
        if os.path.exists(os.path.join(state_dir, DONE)):
            disk.run(os.rename, os.path.join(state_dir, DONE), os.path.join(state_dir, READY))
        if os.path.exists(os.path.join(state_dir, READY)):
            roll_back(journal, caches)
            advance(state_dir, READY, INTENT)
        disk.remove(os.path.join(state_dir, JOURNAL_DRAFT))
        clean(state_dir, journal, INTENT)
    except BaseException as second:  # a second Ctrl-C too
        first, then = (str(one) or type(one).__name__ for one in (error, second))
        raise _interrupted(f"{first}; rolling back failed too ({then}), and a journal is left", state_dir) from error


def _interrupted(message: str, state_dir: str) -> UnhangError:
    return UnhangError("interrupted", message, path=state_dir, hint=Hint(*_RECOVERY))
