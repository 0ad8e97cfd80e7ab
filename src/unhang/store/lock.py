"""One writer for each root: an exclusive lock on a file in its state folder."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from unhang.errors import UnhangError
from unhang.store import disk, folder
from unhang.store.state import LOCK
from unhang.suggest import line

_POLL_S = 0.01, 0.05  # the first pause and the longest: many waiting runs must not slow down the one at work

_TAKEN = BlockingIOError, FileNotFoundError
"""What is raised if another run has the lock, or had it a moment ago."""

_held: set[str] = set()


def required(state_dir: str) -> str:
    """Return the real path of a state folder whose lock this process holds. Raises RuntimeError if it does not."""
    state_dir = os.path.realpath(state_dir)
    if state_dir not in _held:
        raise RuntimeError("a transaction needs exclusive(state_dir) around it")
    return state_dir


def is_held(state_dir: str) -> bool:
    """Return whether a run is writing here right now. Changes nothing, raises nothing."""
    try:
        descriptor = os.open(os.path.join(state_dir, LOCK), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


@contextmanager
def exclusive(state_dir: str, *, timeout: float = 60.0, hidden: bool = True) -> Iterator[list[UnhangError]]:
    """Be the only writer of the root that keeps its state in `state_dir`, for the length of a `with`.

    Plan inside the `with`: a plan made before the wait may be out of date. Makes `state_dir` (`hidden` from git), and
    removes it at the end if it holds nothing that counts. If that fails, the list that this yields says why. Raises
    UnhangError: `locked` (another run held the lock for `timeout` seconds), `no-locks` (the file system has no locks),
    `bad-state` (the folder or the lock is a link, or somebody else's), and the errors of `disk.refusal`, such as
    `not-writable`.
    """
    above, name = os.path.split(state_dir)
    state_dir = os.path.join(os.path.realpath(above), name)
    lock = _acquire(state_dir, timeout, hidden)
    _held.add(state_dir)
    left: list[UnhangError] = []
    try:
        if hidden:  # the run before may have removed it after we made the folder, and before we had the lock
            folder.hide(state_dir)
        yield left
    finally:
        _held.discard(state_dir)
        left += _release(lock, state_dir)


def _acquire(state_dir: str, timeout: float, hidden: bool) -> int:
    """Return the descriptor of the locked file."""
    path = os.path.join(state_dir, LOCK)
    deadline = time.monotonic() + timeout
    pause = _POLL_S[0]
    while True:
        with disk.about(path):
            folder.make(state_dir, hidden=hidden)
        try:
            return _try(path)
        except FileNotFoundError:
            continue  # the run before has just removed the folder, or the lock
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise UnhangError(
                    "locked", f"another unhang has been writing here for {timeout:g} s", path=state_dir,
                    hint=f"wait for it to end, then run the same command again (see: {line('fuser', '-v', path)})",
                ) from None  # fmt: skip
        except OSError as error:
            folder.unmake(state_dir)
            raise disk.refusal(error, path) from error
        time.sleep(pause)
        pause = min(2 * pause, _POLL_S[1])


def _try(path: str) -> int:
    """Lock the file and return its descriptor. Raises BlockingIOError if another run has it, and other OSErrors."""
    is_new = not os.path.lexists(path)
    descriptor = disk.run(os.open, path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    try:
        take(descriptor, path)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:  # a checkout may contain anything
            raise folder.bad_state(path, "no file, or one with another name")
        if is_new:
            disk.imitate(descriptor, disk.like_folder(os.path.dirname(path)))
        # The run before may have deleted this file, and another run may have made a new one.
        if not os.path.samestat(os.fstat(descriptor), os.stat(path)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    except BaseException as error:
        is_refused = isinstance(error, (OSError, UnhangError)) and not isinstance(error, _TAKEN)
        if is_new and is_refused:
            with suppress(OSError):  # nobody else has it: what refuses the lock to us refuses it to all
                folder.clean_up(os.path.dirname(path))
        os.close(descriptor)
        raise
    return descriptor


def take(descriptor: int, path: str) -> None:
    """Lock an open file, the one at `path`. Raises BlockingIOError if another run has it, UnhangError `no-locks`."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:  # ENOLCK, ENOSYS, EIO and more
        raise UnhangError(
            "no-locks", f"the file system of {os.path.dirname(path)} has no file locks: {error.strerror}", path=path,
            hint="mount it with locks (Lustre: -o flock), or patch a copy on a local disk, such as in an image's build",
        ) from error  # fmt: skip


def _release(lock: int, state_dir: str) -> list[UnhangError]:
    """Unlock; return why the lock or the folder could not be removed. It must not hide an error that led here."""
    try:
        folder.clean_up(state_dir)
    except OSError as error:
        return [disk.refusal(error, os.path.join(state_dir, LOCK))]
    finally:
        os.close(lock)
    return []
