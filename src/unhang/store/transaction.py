"""All or nothing: a set of files is replaced, created and deleted together, or not at all, whatever instant kills us.

Beside every file stand, while it lasts, two of ours: `.new` with the new bytes, and `.old`, to put it back from. The
journal lists the files, and its name says how far the run came (see `state`).

No file is ever replaced or deleted for a journal's word alone: the `.new` or `.old` beside it must have the bytes whose
sha256 the journal names, and only who may write in that folder could have put it there.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal, NamedTuple

from unhang.errors import UnhangError
from unhang.records import Change
from unhang.store import bytecode, disk
from unhang.store.journal import PREFIX, File, Journal, compose, parse, render
from unhang.store.lock import exclusive, held
from unhang.store.state import DONE, INTENT, JOURNAL_DRAFT, READY, interrupted

__all__ = ["FileChange", "commit", "exclusive", "interrupted", "recover"]


class FileChange(NamedTuple):
    """One file of a transaction, which unlike `Change` may also create or delete."""

    path: str
    before: bytes | None
    """Its bytes as planned; None: it must not exist."""
    after: bytes | None
    """Its new bytes; None: it is deleted."""
    prune: bool = False
    """After a deletion: remove its folder too, where that leaves it empty."""


def recover(state_dir: str) -> str | None:
    """Finish or roll back what a killed run left; call it first inside `exclusive(state_dir)`.

    Returns a sentence that says which, None where there was nothing. Raises UnhangError `bad-journal` (not one of ours:
    nothing is touched), `cannot-recover` (files were changed since: nothing is touched), or as `commit` does.
    """
    state_dir = _mine(state_dir)
    with disk.about(os.path.join(state_dir, JOURNAL_DRAFT)):
        disk.remove(os.path.join(state_dir, JOURNAL_DRAFT))
    for stage in (DONE, READY, INTENT):
        path = os.path.join(state_dir, stage)
        with disk.about(path):
            data = disk.read(path)
        if data is None:
            continue
        journal = parse(data, path)
        if stage == READY:
            return _settle(state_dir, journal)
        with disk.about(path):
            _clean(state_dir, journal, stage)
        if stage == DONE:
            return "An earlier run was interrupted after its last change: its changes are in place, now complete."
        return "An earlier run was interrupted: nothing of it is left, every file is as it was before."
    return None


def commit(changes: Sequence[FileChange | Change], *, state_dir: str) -> None:
    """Bring all changes to disk, or none; call it inside `exclusive(state_dir)`.

    Stale bytecode of the changed `.py` files goes too. Raises UnhangError, with every file as it was:
    `changed-underneath`, `vanished`, `not-writable`, `disk-full`, `write-failed`; or `interrupted` where an earlier run
    waits for `recover`, or where the disk failed so badly that this one does (its message says so).
    """
    state_dir = _mine(state_dir)
    if interrupted(state_dir):
        raise _interrupted("an earlier run on this environment was interrupted", state_dir)
    todo = [_resolved(change) for change in changes]
    if len({change.path for change in todo}) != len(todo):
        raise ValueError("one file is changed twice in one transaction")
    for change in todo:
        _unchanged(change)
    todo = [change for change in todo if change.before != change.after]
    if not todo:
        return
    journal = _plan(todo)
    try:
        _prepare(state_dir, journal, todo)
        _advance(state_dir, INTENT, READY)
        _forward(journal)
        _advance(state_dir, READY, DONE)
    except BaseException as error:  # Ctrl-C too
        _undo(state_dir, journal, error)
        raise
    # From here on all is in place: what cannot be taken away waits, with journal.done, for the next run's `recover`.
    with suppress(OSError):
        _clean(state_dir, journal, DONE)


def _mine(state_dir: str) -> str:
    if not held(state_dir):
        raise RuntimeError("a transaction needs exclusive(state_dir) around it")
    return os.path.realpath(state_dir)


def _resolved(change: FileChange | Change) -> FileChange:
    if not os.path.isabs(change.path):
        raise ValueError(f"not an absolute path: {change.path}")
    folder, name = os.path.split(change.path)
    prune = change.after is None and isinstance(change, FileChange) and change.prune
    return FileChange(os.path.join(os.path.realpath(folder), name), change.before, change.after, prune)


def _unchanged(change: FileChange) -> None:
    """Raise where a file is not what it was when planned."""
    try:
        now = disk.read(change.path)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ELOOP):
            raise _changed(change.path, "is no regular file any more") from error
        raise disk.refusal(error, change.path) from error
    if now == change.before:
        return
    if now is None:
        raise UnhangError(
            "vanished", f"{change.path} was there a moment ago and is gone", path=change.path,
            hint="another program is changing this environment; when it is done, run the same command again",
        )  # fmt: skip
    raise _changed(change.path, "was changed by another program a moment ago")


def _changed(path: str, how: str) -> UnhangError:
    hint = "run the same command again: it starts from what is there now"
    return UnhangError("changed-underneath", f"{path} {how}; nothing was written", path=path, hint=hint)


def _interrupted(message: str, state_dir: str) -> UnhangError:
    hint = "run unhang apply or unhang revert: either first finishes it or takes it back"
    return UnhangError("interrupted", message, path=state_dir, hint=hint)


def _sha256(data: bytes | None) -> str | None:
    return None if data is None else hashlib.sha256(data).hexdigest()


def _plan(changes: Sequence[FileChange]) -> Journal:
    made = set()
    for change in changes:
        folder = os.path.dirname(change.path)
        while not os.path.isdir(folder):
            made.add(folder)
            folder = os.path.dirname(folder)
    files = ((change.path, _sha256(change.before), _sha256(change.after), change.prune) for change in changes)
    return compose(os.urandom(8).hex(), files, sorted(made))


def _advance(state_dir: str, stage: str, following: str) -> None:
    with disk.about(os.path.join(state_dir, following)):
        disk.run(os.rename, os.path.join(state_dir, stage), os.path.join(state_dir, following))
        disk.sync_dir(state_dir)


def _prepare(state_dir: str, journal: Journal, changes: Sequence[FileChange]) -> None:
    """Write the journal, then all that is needed to go forward or back, and have it on disk."""
    draft = os.path.join(state_dir, JOURNAL_DRAFT)
    with disk.about(os.path.join(state_dir, INTENT)):
        disk.write(draft, render(journal), replace=True)
        disk.run(os.rename, draft, os.path.join(state_dir, INTENT))
        disk.sync_dir(state_dir)
    for folder in journal.made:
        with disk.about(folder), suppress(FileExistsError):
            disk.run(os.mkdir, folder)
    for file, change in zip(journal.files, changes, strict=True):
        with disk.about(file.path):
            like = None if change.before is None else os.lstat(file.path)
            if change.before is None:
                disk.write(file.backup, b"")  # it says that the file is ours to delete again
            else:
                _back_up(file, change.before, like)
            if change.after is not None:
                disk.write(file.temp, change.after, like=like)
    for folder in journal.folders():
        with disk.about(os.path.join(folder, "")):
            disk.sync_dir(folder)


def _back_up(file: File, data: bytes, like: os.stat_result | None) -> None:
    try:
        # The file itself under a second name: put back, it has its time, owner and other hardlinks again.
        disk.run(os.link, file.path, file.backup, follow_symlinks=False)
    except OSError:  # no hardlinks here, or not of other people's files
        disk.write(file.backup, data, like=like)


def _forward(journal: Journal) -> None:
    """Put every new file in place. Bytecode goes before, since what has no time stamp would fit the new source too, and
    after, for what an import wrote in between.
    """
    _drop_bytecode(journal)
    for file in journal.files:
        with disk.about(file.path):
            state = _state(file)
            if state == "old" and file.new is None:
                disk.remove(file.path)
            elif state == "old":
                disk.run(os.replace, file.temp, file.path)
            elif state == "other" and (file.new is None or os.path.lexists(file.temp)):
                raise _changed(file.path, "was changed by another program a moment ago")
    for folder in journal.folders():
        with disk.about(os.path.join(folder, "")):
            disk.sync_dir(folder)
    _drop_bytecode(journal)


def _back(journal: Journal) -> None:
    """Put every old file back where it was replaced."""
    for file in journal.files:
        with disk.about(file.path):
            if _state(file) == "new":
                if file.old is None:
                    disk.remove(file.path)
                else:
                    disk.run(os.replace, file.backup, file.path)
    for folder in journal.folders():
        with disk.about(os.path.join(folder, "")):
            disk.sync_dir(folder)
    with suppress(UnhangError):  # it is for the new source, whose time and size are never those of the old
        _drop_bytecode(journal)


def _drop_bytecode(journal: Journal) -> None:
    for file in journal.files:
        for path in bytecode.cached(file.path):
            with disk.about(path):
                disk.remove(path)


def _clean(state_dir: str, journal: Journal, stage: str) -> None:
    """Take away what is ours, the journal last."""
    for file in journal.files:
        disk.remove(file.temp)
        disk.remove(file.backup)
    if stage == INTENT:  # else all that counts is on disk already, and these were only hidden files of ours
        for folder in journal.folders():
            disk.sync_dir(folder)
    unneeded = journal.made[::-1] if stage == INTENT else [os.path.dirname(f.path) for f in journal.files if f.prune]
    for folder in unneeded:
        disk.remove_dir(folder)
    disk.remove(os.path.join(state_dir, stage))
    disk.sync_dir(state_dir)


def _undo(state_dir: str, journal: Journal, error: BaseException) -> None:
    """Make everything as it was after a failure. The journal's name on disk says how far it came, for an interrupt may
    fall between a rename and the line after it.
    """
    try:
        if os.path.exists(os.path.join(state_dir, DONE)):
            disk.run(os.rename, os.path.join(state_dir, DONE), os.path.join(state_dir, READY))
        if os.path.exists(os.path.join(state_dir, READY)):
            _back(journal)
            _advance(state_dir, READY, INTENT)
        disk.remove(os.path.join(state_dir, JOURNAL_DRAFT))
        _clean(state_dir, journal, INTENT)
    except (OSError, UnhangError) as second:
        raise _interrupted(f"{error}; and taking it back failed too ({second})", state_dir) from error


# Recovery


def _state(file: File) -> Literal["old", "new", "other"]:
    try:
        now = _sha256(disk.read(file.path))
    except OSError:
        return "other"
    return "old" if now == file.old else "new" if now == file.new else "other"


def _has(path: str, digest: str | None) -> bool:
    try:
        return _sha256(disk.read(path)) == digest
    except OSError:
        return False


def _can_go_forward(file: File) -> bool:
    state = _state(file)
    if state == "old":
        return _has(file.backup, file.old) if file.new is None else _has(file.temp, file.new)
    # Changed since, but after it was replaced: then its new state is what was changed, and there is nothing to do.
    return state == "new" or (file.new is not None and not os.path.lexists(file.temp))


def _can_go_back(file: File) -> bool:
    state = _state(file)
    if state == "new":
        return os.path.lexists(file.backup) if file.old is None else _has(file.backup, file.old)
    # Changed since, but before it was replaced: it stays.
    return state == "old" or file.new is None or os.path.lexists(file.temp)


def _settle(state_dir: str, journal: Journal) -> str:
    if all(_can_go_forward(file) for file in journal.files):
        _forward(journal)
        _advance(state_dir, READY, DONE)
        with disk.about(os.path.join(state_dir, DONE)):
            _clean(state_dir, journal, DONE)
        return "An earlier run was interrupted halfway: it is now finished, all of its changes are in place."
    if all(_can_go_back(file) for file in journal.files):
        _back(journal)
        _advance(state_dir, READY, INTENT)
        with disk.about(os.path.join(state_dir, INTENT)):
            _clean(state_dir, journal, INTENT)
        return "An earlier run was interrupted halfway: it is now taken back, every file is as it was before."
    stuck = [file for file in journal.files if not _can_go_forward(file) and not _can_go_back(file)]
    path = (stuck or [file for file in journal.files if not _can_go_forward(file)])[0].path
    raise UnhangError(
        "cannot-recover", f"an earlier run was interrupted halfway, and {path} was changed since; nothing was touched",
        path=path, hint=f"put that file right (its old bytes may be beside it: {PREFIX}*.old), or reinstall it",
    )  # fmt: skip
