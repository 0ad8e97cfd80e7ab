"""The temporary folder of a run. Its lock ends with the run, so that the next one can remove what a killed one left."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_PREFIX = "unhang-wheel-"


@contextmanager
def folder() -> Iterator[str]:
    """Make a temporary folder for the length of a ``with``, and remove those of killed runs. Raises OSError."""
    _remove_left()
    path, lock = _make()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


@contextmanager
def alone(folder: str) -> Iterator[bool]:
    """Wait until no other run is in this ``with`` for this folder; gives False if the file system has no locks."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            is_locked = True
        except OSError:
            is_locked = False
        yield is_locked
    finally:
        os.close(descriptor)


def _make() -> tuple[str, int]:
    """Return a new folder, and the descriptor that holds its lock."""
    while True:
        path = os.path.realpath(tempfile.mkdtemp(prefix=_PREFIX))
        lock = -1
        with suppress(FileNotFoundError):  # another run took it for a killed one's before it was locked
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            with suppress(OSError):  # without locks, it stays after a kill
                fcntl.flock(lock, fcntl.LOCK_EX)
            if os.path.samestat(os.stat(path), os.fstat(lock)):
                return path, lock
        if lock >= 0:
            os.close(lock)


def _remove_left() -> None:
    """Remove our user's folders that no run holds. A folder of somebody else, or a link, stays."""
    top = tempfile.gettempdir()
    with suppress(OSError), os.scandir(top) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX):
                with suppress(OSError):
                    _remove_if_left(os.path.join(top, entry.name))


def _remove_if_left(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(descriptor)
