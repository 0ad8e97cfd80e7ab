"""Make the state folder, hide it from git, say whether to trust it, and remove it when it holds nothing that counts."""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from unhang.errors import UnhangError
from unhang.store import disk
from unhang.store.state import GITIGNORE, JOURNAL_DRAFT, LOCK, OURS, TEMPORARY
from unhang.suggest import line


def make(path: str, *, hidden: bool = True) -> None:
    """Make the state folder, with the mode and owner of the folder above it; `hidden` puts a .gitignore into it.

    Raises UnhangError as `check`, OSError. Needs no lock.
    """
    try:
        disk.make_dir(path)
    except OSError:
        check(path)  # a link or a file in its place
        raise
    check(path)
    if hidden:
        hide(path)


def hide(path: str) -> None:
    """Put a .gitignore into the state folder, if there is none. A failure is no error: git may see the folder then."""
    file = os.path.join(path, GITIGNORE)
    with suppress(OSError):  # a full disk, for example, is reported by what follows
        # An empty one is from a run that was killed or failed here. Any other content is the user's choice.
        if not os.path.lexists(file) or os.lstat(file).st_size == 0:
            disk.write(file, b"*", like=disk.like_folder(path), replace=True)


def check(path: str) -> None:
    """Raise UnhangError `bad-state` unless a state folder, if there is one, is a folder that is `trusted`.

    So must be what unhang keeps in it.
    """
    try:
        status, above = os.lstat(path), os.stat(os.path.dirname(path))
        names = set(os.listdir(path)) if stat.S_ISDIR(status.st_mode) else set()
    except OSError:
        return  # there is none, or the next step says why it cannot be read
    if not stat.S_ISDIR(status.st_mode):
        what = "a symlink" if stat.S_ISLNK(status.st_mode) else "not a folder"
        raise bad_state(path, what)
    if not trusted(status, above):
        owner, theirs = disk.user(status.st_uid), disk.user(above.st_uid)
        message = f"{path} belongs to {owner}, who may not change the files beside it"
        hint = f"run the same command as {owner}; or, if you trust what is in there, give it to {theirs}, who owns the "
        hint += f"folder above it: {line('chown', '-R', theirs.removeprefix('uid '), path)}"
        raise UnhangError("bad-state", message, path=path, hint=hint)
    for name in names & OURS.keys():
        _check_entry(os.path.join(path, name), above, OURS[name])


def _check_entry(path: str, root: os.stat_result, kind: int) -> None:
    """Raise UnhangError `bad-state` unless something in a state folder is of the right kind, and not a stranger's."""
    try:
        found = os.lstat(path)
    except OSError:
        return  # another run has just removed it
    if kind not in (0, stat.S_IFMT(found.st_mode)):
        raise bad_state(path, "a symlink" if stat.S_ISLNK(found.st_mode) else "something else")
    if not trusted(found, root):
        raise bad_state(path, f"a file of {disk.user(found.st_uid)}")


def trusted(status: os.stat_result, root: os.stat_result) -> bool:
    """Return whether something in a root belongs to somebody who could change the root's other files anyway.

    That is the owner of the root, the superuser, we ourselves, each member of a group that may write there, and
    everybody where all may. Only a member can give what they own to a group.
    """
    if status.st_uid in (root.st_uid, os.geteuid(), 0):
        return True
    may_write = stat.S_IWOTH | (stat.S_IWGRP if status.st_gid == root.st_gid else 0)
    return bool(root.st_mode & may_write) and not root.st_mode & stat.S_ISVTX  # where each may change only their own


def bad_state(path: str, what: str) -> UnhangError:
    """Return the error for something in the state's place that unhang never makes."""
    hint = "nothing was changed; find out who made it, move it elsewhere, then run the same command again"
    return UnhangError("bad-state", f"{path} is {what}, which unhang never makes", path=path, hint=hint)


def unmake(path: str) -> None:
    """Remove a folder that `make` has just made, if nothing is in it yet. Needs no lock; a failure is no error."""
    with suppress(OSError):
        if os.listdir(path) == [GITIGNORE]:
            disk.remove(os.path.join(path, GITIGNORE))
        disk.remove_dir(path)


def clean_up(path: str) -> None:
    """Remove the lock, and the folder with it if it holds nothing that counts. Raises OSError. Needs the lock."""
    try:
        if not set(os.listdir(path)) - TEMPORARY:
            for name in (JOURNAL_DRAFT, GITIGNORE):
                with suppress(IsADirectoryError):  # not of ours
                    disk.remove(os.path.join(path, name))
    finally:
        disk.remove(os.path.join(path, LOCK))  # last: from here on other runs may come in
    disk.remove_dir(path)
