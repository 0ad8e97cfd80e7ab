"""One writer for each environment: an exclusive lock on a file in its state folder."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from inspect import signature
from typing import Literal

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from unhang.errors import UnhangError
from unhang.store import disk, folder
from unhang.store.state import LOCK, MADE

_POLL_S = 0.01, 0.05  # the first pause and the longest: many waiting runs must not slow down the one at work

_held: set[str] = set()


def required(state_dir: str) -> str:
    """Return the real path of a state folder whose lock this process holds. Raises RuntimeError if it does not."""
    state_dir = os.path.realpath(state_dir)
    if state_dir not in _held:
        raise RuntimeError("a transaction needs exclusive(state_dir) around it")
    return state_dir


@contextmanager
def exclusive(state_dir: str, *, timeout: float = 60.0, hidden: bool = True) -> Iterator[None]:
    """Be the only writer of the environment that keeps its state in `state_dir`, for the length of a `with`.

    Plan inside the `with`: a plan made before the wait may be out of date. Makes `state_dir` (`hidden` from git), and
    removes it at the end if it holds nothing that counts. Raises UnhangError: `locked` (another run held the lock for
    `timeout` seconds), `no-locks` (the file system has no locks), `bad-state` (the folder or the lock is a link),
    and the errors of `disk.refusal`, such as `not-writable`.
    """
    for path in (state_dir, os.path.join(state_dir, LOCK)):
        if os.path.islink(path):  # unhang makes none, but a checkout may contain one that leads elsewhere
            raise UnhangError(
                "bad-state", f"{path} is a symlink, which unhang never makes", path=path,
                hint="nothing was changed; check where the link leads, delete it, then run the same command again",
            )  # fmt: skip
    state_dir = os.path.realpath(state_dir)
    lock = _acquire(state_dir, timeout, hidden)
    _held.add(state_dir)
    try:
        yield
    finally:
        _held.discard(state_dir)
        _release(lock, state_dir)


def _acquire(state_dir: str, timeout: float, hidden: bool) -> BaseFileLock:
    path = os.path.join(state_dir, LOCK)
    deadline = time.monotonic() + timeout
    probed = made = False
    pause = _POLL_S[0]
    while True:
        with disk.about(path):
            made = folder.make(state_dir, hidden=hidden) or made
        lock = _new(path)
        outcome = _try(lock, path)
        if outcome == "taken":
            break
        if outcome == "gone":
            continue
        if not probed:
            _probe(path)
        probed = True
        if time.monotonic() >= deadline:
            raise UnhangError(
                "locked", f"another unhang has been writing to this environment for {timeout:g} s", path=state_dir,
                hint=f"wait for it to end, then run the same command again (see: fuser -v {path})",
            )  # fmt: skip
        # Not filelock's own wait, which would silently make a folder that was removed meanwhile.
        time.sleep(pause)
        pause = min(2 * pause, _POLL_S[1])
    try:
        with disk.about(os.path.join(state_dir, MADE)):
            folder.keep_marker(state_dir, made)
    except BaseException:
        _release(lock, state_dir)
        raise
    return lock


def _try(lock: BaseFileLock, path: str) -> Literal["taken", "busy", "gone"]:
    """Try once to take the lock; `gone`: another run removed the file or its folder meanwhile. Raises UnhangError."""
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return "busy"
    except (FileNotFoundError, FileExistsError):
        return "gone"
    except (OSError, NotImplementedError) as error:
        raise _refused(error, path) from error
    # Where there is no flock, some versions use the mere existence of the file: a killed run would hold that for ever.
    if isinstance(lock, SoftFileLock):
        lock.release()
        raise _no_locks(path, "flock is not supported")
    if _still_there(lock, path):
        return "taken"
    lock.release()
    return "gone"


def _release(lock: BaseFileLock, state_dir: str) -> None:
    try:
        # A failed clean-up is not an error, and must not hide the error that may have led here.
        with suppress(OSError):
            folder.clean_up(state_dir)
    finally:
        lock.release()


def _new(path: str) -> BaseFileLock:
    # Older versions lack the option. A failed attempt would complain again in its destructor, so look first.
    if "fallback_to_soft" in signature(FileLock.__init__).parameters:
        return FileLock(path, fallback_to_soft=False)
    return FileLock(path)


def _still_there(lock: BaseFileLock, path: str) -> bool:
    """Return whether the locked file still has its name: the run before may have deleted it while this one waited."""
    # filelock does the same since 3.21, but images have older ones; the descriptor has no public name.
    descriptor = getattr(getattr(lock, "_context", None), "lock_file_fd", None)
    if descriptor is None:
        return True
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _probe(path: str) -> None:
    """Raise UnhangError if locking fails for another reason than another run; older filelocks hide the reason."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    except OSError as error:
        raise _refused(error, path) from error
    finally:
        os.close(descriptor)


def _refused(error: OSError | NotImplementedError, path: str) -> UnhangError:
    if isinstance(error, NotImplementedError):
        return _no_locks(path, str(error))
    if error.errno in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL):
        return _no_locks(path, error.strerror or str(error))
    return disk.refusal(error, path)


def _no_locks(path: str, reason: str) -> UnhangError:
    return UnhangError(
        "no-locks", f"the file system of {os.path.dirname(path)} has no file locks: {reason}", path=path,
        hint="mount it with locks (Lustre: -o flock), or patch a copy on a local disk, such as in the image's build",
    )  # fmt: skip
