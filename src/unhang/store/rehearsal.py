"""Why a root could not be written: asked of the file system itself, with files that have no name."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress

from unhang.store import disk, folder, lock, state

_UNNAMED = getattr(os, "O_TMPFILE", 0)  # Linux
_NO_UNNAMED = errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT
"""What opening a file without a name raises where the system, or a file system such as NFS, has none."""
_GET_FLAGS, _IMMUTABLE = 0x80086601, 0x10 | 0x20  # FS_IOC_GETFLAGS; immutable or append-only


def try_out(root: str, files: Mapping[str, bytes], stale: Iterable[str]) -> None:
    """Raise the UnhangError with which writing these files, and deleting stale bytecode, would fail; change nothing.

    It cannot know all: another run may have the lock, and a disk may fail later.
    """
    state_dir = state.folder(root)
    folder.check(state_dir)
    path = os.path.join(state_dir, state.LOCK)
    with disk.about(path), _unnamed(state_dir if os.path.isdir(state_dir) else root) as descriptor:
        if descriptor is not None:
            lock.take(descriptor, path)
    for path, data in files.items():
        with disk.about(path):
            above = os.path.dirname(path)
            with _unnamed(above) as descriptor:
                if descriptor is not None:
                    disk.imitate(descriptor, disk.like_file(path))
                    _make_room(descriptor, 2 * len(data))  # the old bytes are kept, too
            if _is_fixed(path, os.stat(above)):
                raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    for path in stale:
        with disk.about(path), _unnamed(os.path.dirname(path)):
            pass


@contextmanager
def _unnamed(above: str) -> Iterator[int | None]:
    """Give an open file in a folder, without a name; None where the file system has no such files. Raises OSError."""
    descriptor = None
    try:
        descriptor = os.open(above, _UNNAMED | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in _NO_UNNAMED:
            raise
        if os.statvfs(above).f_flag & os.ST_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS)) from error
    try:
        if not os.access(above, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _make_room(descriptor: int, size: int) -> None:
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):  # else the file system cannot tell
            raise


def _is_fixed(path: str, above: os.stat_result) -> bool:
    """Return whether a file may not be replaced although its folder may be written."""
    status = os.lstat(path)
    if above.st_mode & stat.S_ISVTX and os.geteuid() not in (0, above.st_uid, status.st_uid):
        return True
    with suppress(OSError):  # a file system without attributes, or a file that we may not read
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            answer = fcntl.ioctl(descriptor, _GET_FLAGS, bytes(8))
        finally:
            os.close(descriptor)
        return bool(int.from_bytes(answer[:4], sys.byteorder) & _IMMUTABLE)
    return False
