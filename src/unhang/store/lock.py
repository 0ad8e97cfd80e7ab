"""One writer for each environment: the lock in its state folder, and that folder's coming and going."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from unhang.errors import UnhangError
from unhang.store import disk
from unhang.store.state import JOURNAL_DRAFT, LOCK, MADE, MAKING

if TYPE_CHECKING:
    from filelock import BaseFileLock

_POLL_S = 0.01, 0.05  # at first, and at most: many who wait must not keep the one who works from working

_held: set[str] = set()


def held(state_dir: str) -> bool:
    """Say whether this process is inside `exclusive(state_dir)`."""
    return os.path.realpath(state_dir) in _held


@contextmanager
def exclusive(state_dir: str, *, timeout: float = 60.0) -> Iterator[None]:
    """Be the only writer of the environment that keeps its state in `state_dir`, for the length of a `with`.

    Plan inside of it: what was planned before the wait may be old. Makes `state_dir`, and leaves neither it nor any
    file behind in which nothing of ours remains. Raises UnhangError: `locked` (somebody else held it for all of
    `timeout` seconds), `no-locks` (a file system without locks), `bad-state` (our folder or lock is a link),
    `not-writable` and the others of `disk.refusal`.
    """
    for path in (state_dir, os.path.join(state_dir, LOCK)):
        if os.path.islink(path):  # we make none; a checkout may bring one, for us to write through
            raise UnhangError(
                "bad-state", f"{path} is a symlink, which unhang never makes", path=path,
                hint="nothing was changed; see where it leads, delete it, then run the same command again",
            )  # fmt: skip
    state_dir = os.path.realpath(state_dir)
    lock = _acquire(state_dir, timeout)
    _held.add(state_dir)
    try:
        yield
    finally:
        _held.discard(state_dir)
        _release(lock, state_dir)


def _acquire(state_dir: str, timeout: float) -> BaseFileLock:
    from filelock import Timeout  # only who writes pays for it

    path = os.path.join(state_dir, LOCK)
    deadline = time.monotonic() + timeout
    probed = made = False
    pause = _POLL_S[0]
    while True:
        with disk.about(path):
            made = _make(state_dir) or made
        lock = _new(path)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            if not probed:
                _probe(path)
            probed = True
            if time.monotonic() >= deadline:
                raise UnhangError(
                    "locked", f"another unhang has been writing this environment for {timeout:g} s", path=state_dir,
                    hint=f"wait for it to end, then run the same command again (see: fuser -v {path})",
                ) from None  # fmt: skip
            # Not filelock's own waiting, which would make a folder that was tidied away, and tell nobody.
            time.sleep(pause)
            pause = min(2 * pause, _POLL_S[1])
        except (FileNotFoundError, FileExistsError):
            pass  # tidied away between our making it and our locking in it, or within filelock's own look at it
        except (OSError, NotImplementedError) as error:
            raise _refused(error, path) from error
        else:
            if not _is_native(lock):
                lock.release()
                raise _no_locks(path, "flock is not supported")
            if _still_there(lock, path):
                break
            lock.release()
    try:
        with disk.about(os.path.join(state_dir, MADE)):
            _keep_mark(state_dir, made)
    except BaseException:
        _release(lock, state_dir)
        raise
    return lock


def _release(lock: BaseFileLock, state_dir: str) -> None:
    try:
        # What cannot be tidied is litter, not a failure; it must not hide the error that brought us here.
        with suppress(OSError):
            _tidy(state_dir)
    finally:
        lock.release()


def _new(path: str) -> BaseFileLock:
    from inspect import signature

    from filelock import FileLock

    # Older ones have no such thing; asked, not tried: what fails halfway complains again when it is thrown away.
    if "fallback_to_soft" in signature(FileLock.__init__).parameters:
        return FileLock(path, fallback_to_soft=False)
    return FileLock(path)


def _is_native(lock: BaseFileLock) -> bool:
    from filelock import SoftFileLock

    # Some versions turn into a lock by mere existence where there is no flock: a killed process would hold it for ever.
    return not isinstance(lock, SoftFileLock)


def _still_there(lock: BaseFileLock, path: str) -> bool:
    """Whether what is locked is what has the name: whoever held it before us deleted it while we waited."""
    # filelock does the same from 3.21 on; the descriptor has no public name, and images come with older ones.
    descriptor = getattr(getattr(lock, "_context", None), "lock_file_fd", None)
    if descriptor is None:
        return True
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _probe(path: str) -> None:
    """Raise where it was not another process that kept us from locking; older filelocks take any failure for that."""
    import fcntl

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


def _marks(state_dir: str) -> list[str]:
    """The marks while the folders are coming or going: beside the parent, so that no kill forgets who made it."""
    parent = os.path.dirname(state_dir)
    lead = _mark(parent, "")
    with suppress(OSError):
        above = os.path.dirname(parent)
        return [os.path.join(above, name) for name in os.listdir(above) if name.startswith(os.path.basename(lead))]
    return []


def _mark(parent: str, owner: str) -> str:
    # One for each who makes or removes: so nobody takes away another's, who may be making what we just removed.
    return os.path.join(os.path.dirname(parent), f"{MAKING}{os.path.basename(parent)}-{owner}")


def _make(state_dir: str) -> bool:
    """Make the state folder, and its parent if need be; say whether the parent is ours, or was while we looked."""
    parent = os.path.dirname(state_dir)
    made = not os.path.isdir(parent)
    if made:
        mark = _mark(parent, os.urandom(4).hex())
        disk.write(mark, b"")
        try:
            disk.run(os.mkdir, parent)
        except FileExistsError:
            disk.remove(mark)
            made = False
        except OSError:
            disk.remove(mark)
            raise
        else:
            disk.write(mark, b"", replace=True)  # one who came and went in between may have taken the first
    try:
        disk.run(os.mkdir, state_dir)
    except FileNotFoundError:
        pass  # its parent was tidied away just now: the lock will tell
    except FileExistsError:
        with suppress(FileNotFoundError):
            if not stat.S_ISDIR(os.lstat(state_dir).st_mode):
                raise
    return made or bool(_marks(state_dir)) or os.path.exists(os.path.join(state_dir, MADE))


def _keep_mark(state_dir: str, made: bool) -> None:
    """Move the knowledge that the parent is ours to where it lasts."""
    path = os.path.join(state_dir, MADE)
    if made and not os.path.exists(path):
        disk.write(path, b"", replace=True)
    for mark in _marks(state_dir):
        disk.remove(mark)


def _tidy(state_dir: str) -> None:
    """Take away the lock, and the folder with it if nothing in it matters; done while the lock is held."""
    names = set(os.listdir(state_dir))
    parent, made = os.path.dirname(state_dir), MADE in names
    mark = _mark(parent, os.urandom(4).hex())
    try:
        if not names - {LOCK, MADE, JOURNAL_DRAFT}:
            if made:
                disk.write(mark, b"")
            disk.remove(os.path.join(state_dir, MADE))
            disk.remove(os.path.join(state_dir, JOURNAL_DRAFT))
    finally:
        disk.remove(os.path.join(state_dir, LOCK))  # the last: from here on others may come in
    # The mark stays where somebody has come in again meanwhile: it is theirs to keep now.
    if disk.remove_dir(state_dir) and made and (disk.remove_dir(parent) or not os.path.exists(state_dir)):
        disk.remove(mark)
