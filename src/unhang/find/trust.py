"""Whether to start an interpreter that was found, not named: only if nobody else could have put it there."""

from __future__ import annotations

import os
import stat
import sys
from typing import TYPE_CHECKING

from unhang.find.metadata import names, read

if TYPE_CHECKING:
    from collections.abc import Iterator

_LINKS = 40  # as many as Linux follows
_NO_FOLDER = ("#", "import ", "import\t")  # what a line of a .pth file begins with, if it is no folder
_ACL = "system.posix_acl_access"


def objection(python: str, prefix: str, down_to: str | None) -> str:
    """Return why an interpreter is not to be started; empty if only its user and root could have put it there.

    It looks at the interpreter, what its links lead to, the site-packages of its ``prefix``, what is in there, the
    folders that .pth files add, the standard library, and all folders above. A folder like /tmp is fine above, where
    people delete only what is theirs; but not in the environment, nor from its folder down to ``down_to``.
    """
    between = set(_between(os.path.dirname(prefix), down_to)) if down_to else set()
    inside = tuple({os.path.join(prefix, ""), os.path.join(os.path.realpath(prefix), "")})
    settings, plain = os.path.join(prefix, "pyvenv.cfg"), set[str]()
    ends = (python, settings, *_sites(prefix), *_of_the_base(settings), *between)

    def why(path: str) -> str:
        return _foreign(path, not (path in between or f"{path}/".startswith(inside)))

    paths = (path for end in ends for path in _steps(end, plain))
    return next(filter(None, map(why, dict.fromkeys(paths))), "")


def _between(above: str, below: str) -> Iterator[str]:
    """Yield a folder, those below it and ``below``."""
    while below != above and below != os.path.dirname(below):
        yield below
        below = os.path.dirname(below)
    yield above


def _of_the_base(settings: str) -> Iterator[str]:
    """Yield the standard library that a virtual environment runs, as its pyvenv.cfg says it, and what else it has."""
    pairs = (line.partition("=") for line in read(settings).splitlines())
    values = [(key.strip().lower(), value.strip()) for key, _, value in pairs]
    for base in (os.path.dirname(value) for key, value in values if key == "home" and os.path.isabs(value)):
        yield from (os.path.join(base, "lib", name) for name in names(os.path.join(base, "lib")) if _is_version(name))
        if ("include-system-site-packages", "true") in ((key, value.lower()) for key, value in values):
            yield from _sites(base)


def _sites(prefix: str) -> Iterator[str]:
    """Yield the site-packages of an environment, and the files and folders whose code may run when it starts."""
    yield prefix
    for lib in ("lib", "lib64"):
        for version in names(os.path.join(prefix, lib)):
            if _is_version(version):
                site = os.path.join(prefix, lib, version, "site-packages")
                yield site
                for file in (os.path.join(site, name) for name in names(site)):
                    yield file
                    lines = read(file).splitlines() if file.endswith(".pth") else []
                    folders = (line.rstrip() for line in lines if line.strip() and not line.startswith(_NO_FOLDER))
                    yield from (os.path.abspath(os.path.join(site, folder)) for folder in folders)


def _is_version(name: str) -> bool:
    return name.startswith(("python", "pypy"))


def _steps(path: str, plain: set[str]) -> Iterator[str]:
    """Yield each folder and link that leads to a path, and what it leads to; add what is no link to ``plain``."""
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
        if step in plain:
            at = step
        elif os.path.islink(step) and links < _LINKS:
            links += 1
            target = os.readlink(step)
            at = os.sep if os.path.isabs(target) else at
            left += reversed(target.split(os.sep))
        else:
            plain.add(step)
            at = step


def _foreign(path: str, may_be_sticky: bool) -> str:
    """Return whose a path is, or who may write it, besides the user and root; empty if nobody."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:  # ValueError: a NUL in a .pth file
        return f"{path}: {getattr(error, 'strerror', error)}"
    if status.st_uid not in (0, os.geteuid()):
        return f"{path} belongs to user {status.st_uid}"
    if stat.S_ISLNK(status.st_mode) or (
        may_be_sticky and stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    ):
        return ""
    if status.st_mode & stat.S_IWOTH:
        return f"everybody may write {path}"
    if status.st_mode & stat.S_IWGRP:
        if not _is_private(status.st_gid):
            return f"group {status.st_gid} may write {path}"
        if _has_acl(path):  # then these are the rights of whomever it names
            return f"{path} has an access control list, which may let others write"
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


def _has_acl(path: str) -> bool:
    try:
        return sys.platform == "linux" and _ACL in os.listxattr(path)
    except OSError:  # a file system without
        return False
