"""The one door to the disk for everything that changes it, and what a person is told where the disk says no."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import ParamSpec, TypeVar

from unhang.errors import UnhangError

P = ParamSpec("P")
T = TypeVar("T")


def run(operation: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do one operation that changes the disk: all of ours pass here, so that a test can stop the world at each."""
    return operation(*args, **kwargs)


def read(path: str) -> bytes | None:
    """Return the bytes of a regular file, None where there is nothing. Raises OSError, also for any other kind."""
    try:
        # Not opened before it is known to be a file: opening a pipe would wait for ever.
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def write(path: str, data: bytes, *, like: os.stat_result | None = None, replace: bool = False) -> None:
    """Write a new synced file, with mode and (where we may) owner of `like`. Raises OSError.

    `replace`: whatever is there is overwritten in place; else it must not exist.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_TRUNC if replace else os.O_EXCL)
    descriptor = run(os.open, path, flags, 0o600 if like else 0o666)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[run(os.write, descriptor, rest) :]
        if like:
            _imitate(descriptor, like)
        run(os.fsync, descriptor)
    finally:
        os.close(descriptor)


def _imitate(descriptor: int, like: os.stat_result) -> None:
    mode = stat.S_IMODE(like.st_mode)
    now = os.fstat(descriptor)
    if (now.st_uid, now.st_gid) != (like.st_uid, like.st_gid):
        try:
            run(os.fchown, descriptor, like.st_uid, like.st_gid)
        except OSError:  # not ours to give away: then at least the group, and never somebody else's setuid bit
            mode &= ~(stat.S_ISUID | stat.S_ISGID)
            with suppress(OSError):
                run(os.fchown, descriptor, -1, like.st_gid)
    run(os.fchmod, descriptor, mode)
    if int(now.st_mtime) <= int(like.st_mtime):
        # Bytecode knows its source by size and second: an import that runs beside us may yet write what it compiled
        # from the old source, and it must fit neither the new one nor, after that, the next.
        run(os.utime, descriptor, ns=(now.st_atime_ns, like.st_mtime_ns + 1_000_000_000))


def remove(path: str) -> None:
    """Delete a file, if it is there. Raises OSError."""
    if os.path.lexists(path):  # asked first: a read-only file system refuses even what is not there
        with suppress(FileNotFoundError):
            run(os.unlink, path)


def remove_dir(path: str) -> bool:
    """Delete a folder if it is empty; say whether it is gone. Raises OSError."""
    if not os.path.lexists(path):
        return True
    try:
        run(os.rmdir, path)
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EBUSY):
            return False
        raise
    return True


def sync_dir(path: str) -> None:
    """Make what was created, renamed and deleted in a folder outlive a power cut. Raises OSError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        run(os.fsync, descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that cannot do this for folders
            raise
    finally:
        os.close(descriptor)


@contextmanager
def about(path: str) -> Iterator[None]:
    """Turn an OSError inside of the `with` into the UnhangError that tells a person about `path`."""
    try:
        yield
    except OSError as error:
        raise refusal(error, path) from error


def refusal(error: OSError, path: str) -> UnhangError:
    """Say in words what the disk refused: `disk-full`, `not-writable`, `vanished` or `write-failed`."""
    reason = error.strerror or str(error)
    folder = os.path.dirname(path)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return UnhangError(
            "disk-full", f"no space to write {path}: {reason}", path=path,
            hint=f"make room on the file system of {folder} (see df and quota), then run the same command again",
        )  # fmt: skip
    if error.errno == errno.EROFS:
        return UnhangError(
            "not-writable", f"{path} is on a read-only file system", path=path,
            hint="run this where the environment is mounted writable, such as in the image's build",
        )  # fmt: skip
    if error.errno in (errno.EACCES, errno.EPERM):
        owner, hint = _owner(path), "see lsattr and the security policy of this machine"
        if os.geteuid():
            hint = f"run this as {owner or 'the owner'} or as root, or choose an environment of your own with --python"
        owned = f" (it belongs to {owner}, this is {_user(os.geteuid())})" if owner else ""
        return UnhangError("not-writable", f"cannot write {path}: {reason}{owned}", path=path, hint=hint)
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return UnhangError(
            "vanished", f"{path} or its folder is gone", path=path,
            hint="another program is changing this environment; when it is done, run the same command again",
        )  # fmt: skip
    hint = "see that the disk is in order, then run the same command again"
    return UnhangError("write-failed", f"cannot write {path}: {reason}", path=path, hint=hint)


def _owner(path: str) -> str | None:
    """The owner of what stands in the way: the file's folder, or the nearest folder above that exists."""
    while (path := os.path.dirname(path)) != os.sep:
        with suppress(OSError):
            return _user(os.stat(path).st_uid)
    return None


def _user(uid: int) -> str:
    import pwd  # only to word an error

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # a container's user without a name
        return f"uid {uid}"
