"""Links in place of files: `apply` puts a file of its own there, and `revert` the link again.

Nothing is ever written through a link. A receipt has the text of each link that was replaced.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from unhang.errors import UnhangError
from unhang.store import disk
from unhang.store.disk import Content, Link
from unhang.store.transaction import FileChange

_TOO_LARGE = 64 * 1024 * 1024  # a RECORD of 60,000 files has six million bytes


def read(path: str) -> bytes | None:
    """Return the bytes of a regular file, also where a link leads to it; None if there is none. Raises OSError.

    It never waits for a pipe, and reads no device.
    """
    if not os.path.islink(path):
        return disk.read(path)
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "a link to something that is not a regular file", path)
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if os.fstat(file.fileno()).st_size > _TOO_LARGE:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
        return file.read(_TOO_LARGE)


def itself(path: str, data: bytes) -> Content:
    """Return what is at a path: a link, else the file with these bytes.

    A copy of what a link leads to might show somebody what only we may read.
    """
    return Link(os.readlink(path)) if os.path.islink(path) else data


def read_record(path: str) -> bytes | None:
    """Return the bytes of a RECORD as ``read``. Raises UnhangError ``unreadable``."""
    try:
        return read(path)
    except OSError as error:
        message = f"cannot read {path}, whose hashes must be right after a change: {error.strerror}"
        hint = "nothing was changed; run this as a user who can read it, or reinstall the package"
        raise UnhangError("unreadable", message, path=path, hint=hint) from error


def replaced(changes: Iterable[FileChange]) -> list[FileChange]:
    """Return changes that were planned from what links lead to, as changes of the links themselves. Raises OSError."""
    contents = [(change, disk.content(change.path)) for change in changes]
    return [change._replace(before=now) if isinstance(now, Link) else change for change, now in contents]


def texts(changes: Iterable[FileChange], root: str) -> dict[str, str]:
    """Return the text of each link that the changes replace, by its path below the root."""
    return {
        os.path.relpath(change.path, root): change.before.text for change in changes if isinstance(change.before, Link)
    }


def restored(changes: Sequence[FileChange], root: str, links: Mapping[str, str]) -> list[FileChange]:
    """Return the changes with the links again that lead to the very bytes that a file would get."""
    after = {change.path: change.after for change in changes}

    def with_link(change: FileChange) -> FileChange:
        text = links.get(os.path.relpath(change.path, root))
        return change if text is None or not fits(change.path, text, after) else change._replace(after=Link(text))

    return list(map(with_link, changes))


def fits(path: str, text: str, after: Mapping[str, Content]) -> bool:
    """Return whether a link of this text leads to the bytes that ``after`` has for its path.

    ``after`` holds what is to be at each path that changes: one link may lead to another.
    """
    target = os.path.join(os.path.dirname(path), text)
    other = os.path.normpath(target)
    with suppress(OSError):
        return (after[other] if other in after else read(target)) == after[path]
    return False
