"""Whether an interpreter that was found, not named, is a program to start: only where nobody else could have put it."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from unhang.find.metadata import names, read

if TYPE_CHECKING:
    from collections.abc import Iterator

_LINKS = 40  # as many as Linux follows
_CODE = (".py", ".pth")
_PATH = ("/", ".")  # what a line of a .pth file with a folder begins with


def objection(python: str, prefix: str, down_to: str | None) -> str:
    """Return why an interpreter is not to be started; empty if only its user and root could have put it there.

    It looks at the interpreter, what its links lead to, the site-packages of its ``prefix``, the code in there, the
    folders that .pth files add, and all folders above. A folder like /tmp is fine above, where people delete only what
    is theirs; but not from that of the environment down to ``down_to``.
    """
    between = set(_between(os.path.dirname(prefix), down_to)) if down_to else set()
    paths = (path for end in (python, *_sites(prefix), *between) for path in _steps(end))
    return next((why for path in dict.fromkeys(paths) if (why := _foreign(path, path not in between))), "")


def _between(above: str, below: str) -> Iterator[str]:
    """Yield a folder, those below it and ``below``."""
    while below != above and below != os.path.dirname(below):
        yield below
        below = os.path.dirname(below)
    yield above


def _sites(prefix: str) -> Iterator[str]:
    """Yield the site-packages of an environment, and the files and folders whose code may run when it starts."""
    yield prefix
    for lib in ("lib", "lib64"):
        for version in names(os.path.join(prefix, lib)):
            if version.startswith(("python", "pypy")):
                site = os.path.join(prefix, lib, version, "site-packages")
                yield site
                for file in (os.path.join(site, name) for name in names(site) if name.endswith(_CODE)):
                    yield file
                    lines = read(file).splitlines() if file.endswith(".pth") else []
                    yield from (os.path.abspath(os.path.join(site, line)) for line in lines if line.startswith(_PATH))


def _steps(path: str) -> Iterator[str]:
    """Yield each folder and link that leads to a path, and what it leads to."""
    at, left, links = os.sep, [*reversed(path.split(os.sep))], 0
    yield at
    while left:
        name = left.pop()
        if name in ("", os.curdir):
            continue
        if name == os.pardir:
            at = os.path.dirname(at)
            continue
        step = os.path.join(at, name)
        yield step
        if os.path.islink(step) and links < _LINKS:
            links += 1
            target = os.readlink(step)
            at = os.sep if os.path.isabs(target) else at
            left += reversed(target.split(os.sep))
        else:
            at = step


def _foreign(path: str, may_be_sticky: bool) -> str:
    """Return whose a path is, or who may write it, besides the user and root; empty if nobody."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{path}: {error.strerror}"
    if status.st_uid not in (0, os.geteuid()):
        return f"{path} belongs to user {status.st_uid}"
    if stat.S_ISLNK(status.st_mode) or (
        may_be_sticky and stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    ):
        return ""
    if status.st_mode & stat.S_IWOTH:
        return f"everybody may write {path}"
    if status.st_mode & stat.S_IWGRP and not _is_private(status.st_gid):
        return f"group {status.st_gid} may write {path}"
    return ""


def _is_private(group: int) -> bool:
    """Return whether a group is the user's alone, as many systems make one for each user."""
    import grp  # few runs ask
    import pwd

    try:
        entry, user = grp.getgrgid(group), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return group == user.pw_gid and entry.gr_name == user.pw_name and not {*entry.gr_mem} - {user.pw_name}
