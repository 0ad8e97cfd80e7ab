"""Make the state folder, hide it from git, say whether to trust it, and remove it when it holds nothing that counts."""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from unhang.errors import UnhangError
from unhang.store import disk
from unhang.store.state import GITIGNORE, JOURNAL_DRAFT, LOCK, TEMPORARY


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
            disk.write(file, b"*", replace=True)


def check(path: str) -> None:
    """Raise UnhangError `bad-state` unless a state folder, if there is one, is to be trusted.

    It must be a folder, not a link, of somebody who could change the files beside it anyway: the owner of the folder
    above it, the superuser, or us.
    """
    try:
        found, above = os.lstat(path), os.stat(os.path.dirname(path))
    except OSError:
        return  # there is none, or the next step says why it cannot be read
    if not stat.S_ISDIR(found.st_mode):
        what = "a symlink" if stat.S_ISLNK(found.st_mode) else "not a folder"
        raise bad_state(path, what)
    if found.st_uid not in (above.st_uid, os.geteuid(), 0):
        owner = disk.user(found.st_uid)
        message = f"{path} belongs to {owner}, who does not own the folder above it"
        hint = f"run the same command as {owner} or as root, or delete that folder"
        raise UnhangError("bad-state", message, path=path, hint=hint)


def bad_state(path: str, what: str) -> UnhangError:
    """Return the error for something in the state's place that unhang never makes."""
    hint = "nothing was changed; find out who made it, delete it, then run the same command again"
    return UnhangError("bad-state", f"{path} is {what}, which unhang never makes", path=path, hint=hint)


def clean_up(path: str) -> None:
    """Remove the lock, and the folder with it if it holds nothing that counts. Raises OSError. Needs the lock."""
    try:
        if not set(os.listdir(path)) - TEMPORARY:
            for name in (JOURNAL_DRAFT, GITIGNORE):
                disk.remove(os.path.join(path, name))
    finally:
        disk.remove(os.path.join(path, LOCK))  # last: from here on other runs may come in
    disk.remove_dir(path)
