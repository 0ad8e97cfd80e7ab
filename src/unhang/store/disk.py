"""All operations that change the disk, and the errors for what the disk refuses."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple, ParamSpec, TypeVar

from unhang.errors import UnhangError

P = ParamSpec("P")
T = TypeVar("T")


class Link(NamedTuple):
    """What is at a path where a symbolic link is."""

    text: str


Content = bytes | Link | None
"""What is at a path: a file's bytes, or a link; None if there is neither."""


class Like(NamedTuple):
    """What a file that we write takes from another file, or from the folder that it is in."""

    mode: int
    uid: int
    gid: int
    mtime_ns: int = -1
    """The new file is younger, by a second at least."""


def run(operation: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call an operation that changes the disk. All of them pass here, so that a test can kill the process at each."""
    return operation(*args, **kwargs)


LARGEST = 64 * 1024 * 1024
"""Bytes of a file that is read whole: a RECORD of 60,000 files has six million."""


class Unfit(OSError):
    """What is not read: anything but a regular file, or one that is too large."""


def read(path: str, largest: int = LARGEST) -> bytes | None:
    """Return the bytes of a regular file, None if there is none.

    Raises OSError; Unfit for any other kind of file, and for a larger one.
    """
    try:
        # Look before opening: opening a pipe would wait for ever, and a device may act.
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise Unfit(errno.EINVAL, "not a regular file", path)
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(largest + 1) if status.st_size <= largest else None
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(status.st_mode):  # put there since we looked
        raise Unfit(errno.EINVAL, "not a regular file", path)
    if data is None or len(data) > largest:
        raise Unfit(errno.EFBIG, f"larger than {largest >> 20} MiB", path)
    return data


def content(path: str) -> Content:
    """Return as `read`, or the link that is there. Raises OSError as `read`."""
    try:
        return Link(os.readlink(path))
    except OSError:
        return read(path)


def like_file(path: str) -> Like:
    """Return owner, mode and time of a file; for a link, its own owner, and permissions and time of where it leads.

    Raises OSError.
    """
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        with suppress(OSError):  # it leads nowhere
            content = os.stat(path)
            return Like(content.st_mode & 0o777, status.st_uid, status.st_gid, content.st_mtime_ns)
    return Like(stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, status.st_mtime_ns)


def like_folder(path: str) -> Like:
    """Return the owner of a folder, and the mode of a file that those may read and write who may do so with the folder.

    Raises OSError.
    """
    status = os.stat(path)
    return Like(status.st_mode & 0o666, status.st_uid, status.st_gid)


def write(path: str, data: bytes, *, like: Like | None = None, replace: bool = False) -> None:
    """Write and sync a new file, with the mode and (where permitted) the owner of `like`. Raises OSError.

    `replace` removes a file in its place, which may have other names; without it there must be none.
    """
    if replace:
        remove(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = run(os.open, path, flags, 0o600 if like else 0o666)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[run(os.write, descriptor, rest) :]
        if like:
            imitate(descriptor, like)
        run(os.fsync, descriptor)
    finally:
        os.close(descriptor)


def make_link(path: str, link: Link, like: Like) -> None:
    """Make a new link, where permitted with the owner of `like`. Raises OSError."""
    run(os.symlink, link.text, path)
    now = os.lstat(path)
    if (now.st_uid, now.st_gid) != (like.uid, like.gid):
        with suppress(OSError):
            run(os.chown, path, like.uid, like.gid, follow_symlinks=False)


def imitate(descriptor: int, like: Like) -> None:
    """Give an open file or folder the mode and (where permitted) the owner of `like`. Raises OSError."""
    now = os.fstat(descriptor)
    mode = like.mode
    if (now.st_uid, now.st_gid) != (like.uid, like.gid):
        try:
            run(os.fchown, descriptor, like.uid, like.gid)
        except OSError:  # not permitted: set at least the group, and never a setuid bit of another owner
            if not stat.S_ISDIR(now.st_mode):
                mode &= ~(stat.S_ISUID | stat.S_ISGID)
            with suppress(OSError):
                run(os.fchown, descriptor, -1, like.gid)
        now = os.fstat(descriptor)
    if stat.S_IMODE(now.st_mode) != mode:  # some file systems have one mode for all, and refuse any change
        run(os.fchmod, descriptor, mode)
    if now.st_mtime_ns // 1_000_000_000 <= like.mtime_ns // 1_000_000_000:
        # Bytecode knows its source by size and second. An import that is under way may still write what it compiled
        # from the old source, which must fit neither the new source nor the one after it.
        run(os.utime, descriptor, ns=(now.st_atime_ns, like.mtime_ns + 1_000_000_000))


def make_dir(path: str) -> bool:
    """Make a folder, with the mode and (where permitted) the owner of the one above it; return False if it is there.

    A folder of ours that a killed run left without that mode gets it. Raises OSError, and leaves no new folder then.
    """
    try:
        run(os.mkdir, path, 0o700)
        made = True
    except FileExistsError:
        made = False
    try:
        above = os.stat(os.path.dirname(path))
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            now = os.fstat(descriptor)
            if made or (now.st_uid == os.geteuid() and stat.S_IMODE(now.st_mode) == 0o700):
                imitate(descriptor, Like(stat.S_IMODE(above.st_mode), above.st_uid, above.st_gid))
        finally:
            os.close(descriptor)
    except FileNotFoundError:  # another run has just removed it
        return make_dir(path)
    except OSError:
        if made:
            with suppress(OSError):
                remove_dir(path)
        raise
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
    if isinstance(error, Unfit):
        hint = "nothing was changed; find out who made it, and reinstall the package that it belongs to"
        return UnhangError("unreadable", f"cannot read {path}: {reason}", path=path, hint=hint)
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
