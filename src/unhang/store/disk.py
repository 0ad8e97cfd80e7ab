"""All operations that change the disk, and the errors for what the disk refuses."""

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
    """Call an operation that changes the disk. All of them pass here, so that a test can kill the process at each."""
    return operation(*args, **kwargs)


def read(path: str) -> bytes | None:
    """Return the bytes of a regular file, None if there is none. Raises OSError, also for any other kind of file."""
    try:
        # Look before opening: opening a pipe would wait for ever.
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def write(path: str, data: bytes, *, like: os.stat_result | None = None, replace: bool = False) -> None:
    """Write and sync a new file, with the mode and (where permitted) the owner of `like`. Raises OSError.

    `replace` overwrites an existing file in place; without it the file must not exist.
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
    now = os.fstat(descriptor)
    _take_mode(descriptor, now, like)
    if int(now.st_mtime) <= int(like.st_mtime):
        # Bytecode knows its source by size and second. An import that is under way may still write what it compiled
        # from the old source, which must fit neither the new source nor the one after it.
        run(os.utime, descriptor, ns=(now.st_atime_ns, like.st_mtime_ns + 1_000_000_000))


def _take_mode(descriptor: int, now: os.stat_result, like: os.stat_result) -> None:
    mode = stat.S_IMODE(like.st_mode)
    if (now.st_uid, now.st_gid) != (like.st_uid, like.st_gid):
        try:
            run(os.fchown, descriptor, like.st_uid, like.st_gid)
        except OSError:  # not permitted: set at least the group, and never a setuid bit of another owner
            mode &= ~(stat.S_ISUID | stat.S_ISGID)
            with suppress(OSError):
                run(os.fchown, descriptor, -1, like.st_gid)
    run(os.fchmod, descriptor, mode)


def make_dir(path: str) -> bool:
    """Make a folder, with the mode and (where permitted) the owner of the one above it; return False if it is there.

    A folder of ours that a killed run left without that mode gets it. Raises OSError.
    """
    try:
        run(os.mkdir, path, 0o700)
        made = True
    except FileExistsError:
        made = False
    like = os.stat(os.path.dirname(path))
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:  # another run has just removed it
        return make_dir(path)
    try:
        now = os.fstat(descriptor)
        if made or (now.st_uid == os.geteuid() and stat.S_IMODE(now.st_mode) == 0o700 != stat.S_IMODE(like.st_mode)):
            _take_mode(descriptor, now, like)
    finally:
        os.close(descriptor)
    if made:
        sync_dir(os.path.dirname(path))
    return made


def remove(path: str) -> None:
    """Delete a file if it exists. Raises OSError."""
    if os.path.lexists(path):  # look first: a read-only file system refuses even to delete what is not there
        with suppress(FileNotFoundError):
            run(os.unlink, path)


def remove_dir(path: str) -> bool:
    """Delete a folder if it is empty; return whether it is gone. Raises OSError."""
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
    """Sync a folder, so that what was created, renamed and deleted in it survives a power cut. Raises OSError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        run(os.fsync, descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # the file system cannot sync folders
            raise
    finally:
        os.close(descriptor)


@contextmanager
def about(path: str) -> Iterator[None]:
    """Turn an OSError inside the `with` into the UnhangError about `path`."""
    try:
        yield
    except OSError as error:
        raise refusal(error, path) from error


def refusal(error: OSError, path: str) -> UnhangError:
    """Return the error that explains an OSError: `disk-full`, `not-writable`, `vanished` or `write-failed`."""
    reason = error.strerror or str(error)
    folder = os.path.dirname(path)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return UnhangError(
            "disk-full", f"no space to write {path}: {reason}", path=path,
            hint=f"make room on the file system of {folder} (see: df, quota), then run the same command again",
        )  # fmt: skip
    if error.errno == errno.EROFS:
        return UnhangError(
            "not-writable", f"{path} is on a read-only file system", path=path,
            hint="run this where the environment is mounted writable, such as in the image's build",
        )  # fmt: skip
    if error.errno in (errno.EACCES, errno.EPERM):
        owner, hint = _owner(path), "check the file's attributes (lsattr) and the security policy of this machine"
        if os.geteuid():
            who = owner if owner == "root" else f"{owner or 'the owner'} or as root"
            hint = f"run this as {who}, or choose an environment of your own with --python"
        owned = f" (it belongs to {owner}, this is {user(os.geteuid())})" if owner else ""
        return UnhangError("not-writable", f"cannot write {path}: {reason}{owned}", path=path, hint=hint)
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return UnhangError(
            "vanished", f"{path} or its folder is gone", path=path,
            hint="another program is changing this environment; when it is done, run the same command again",
        )  # fmt: skip
    hint = "check the disk, then run the same command again"
    return UnhangError("write-failed", f"cannot write {path}: {reason}", path=path, hint=hint)


def _owner(path: str) -> str | None:
    """Return the owner of the nearest folder above `path` that exists."""
    while (path := os.path.dirname(path)) != os.sep:
        with suppress(OSError):
            return user(os.stat(path).st_uid)
    return None


def user(uid: int) -> str:
    """Return a user's name; the number of a container's user without one."""
    import pwd  # only for errors

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
