"""The files of an image, layer upon layer: an index of names, in which links lead nowhere else."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from unhang.image import tar
from unhang.image.stream import Reader, bad, too_large
from unhang.image.wanted import Wanted

_ENTRIES = 2_000_000  # of all layers; an image of 20 GB has some 500,000
_CHARACTERS = 400_000_000  # of all their names
_FILES = 200_000  # that are read
_BYTES = 2 << 30  # that are kept on disk
_LINKS = 40  # as many as Linux follows
_DEEPEST = 200
_LONGEST = 2000  # characters of a path
_SHOWN = 1 << 30  # bytes that a file has at the most, of which only the first are there


class File(NamedTuple):
    """A file of the image."""

    copy: str
    """Where its bytes are; empty for a pipe, a device or a sparse file, which nobody reads."""


class _Plain(NamedTuple):
    """A file of which only its place matters."""


PLAIN = _Plain()
Folder = dict[str, "Folder | File | _Plain | str"]
"""What is in a folder, by name. A text is where a link leads."""
Node = Folder | File | _Plain | str


class Change(NamedTuple):
    """What a layer does at one path."""

    path: str
    what: str
    value: File | _Plain | str
    """The file; or where a link leads, or of which file it is another name."""


class Spool:
    """The folder with the bytes of the files that are read."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._entries = self._characters = self._files = self._bytes = 0

    def count(self, path: str) -> None:
        """Count an entry. Raises UnhangError ``image-too-large``, as ``keep`` does."""
        self._entries += 1
        self._characters += len(path)
        if self._entries > _ENTRIES or self._characters > _CHARACTERS:
            raise too_large(f"it has more than {_ENTRIES:,} files, or very long names")

    def keep(self, parts: Iterable[memoryview | bytes], size: int) -> File:
        """Keep these bytes, the first ones of a file of this size."""
        self._files += 1
        path = os.path.join(self._folder, str(self._files))
        with open(path, "xb") as file:
            for part in parts:
                self._bytes += file.write(part)
            file.truncate(min(size, _SHOWN))
        if self._files > _FILES or self._bytes > _BYTES:
            raise too_large(f"more than {_FILES:,} files, or {_BYTES >> 30} GiB, of it would have to be read")
        return File(path)


def of_archive(reader: Reader, wanted: Wanted, spool: Spool) -> list[Change]:
    """Return what a layer changes, and keep what is wanted of it. Raises UnhangError ``bad-image`` and as ``Spool``."""
    changes = []
    for path, kind, size, target in tar.members(reader):
        spool.count(path)
        amount = None if kind in (tar.FOLDER, tar.LINK) else wanted.amount(path, size)
        if amount is not None:
            _measure(path)
        value: File | _Plain | str = target
        if kind == tar.FILE and amount is not None:
            value = spool.keep(reader.parts(amount), size)
        elif kind in (tar.FILE, tar.OTHER):
            value = PLAIN if amount is None else File("")
        elif kind == tar.HARD:
            value = tar.plain(target)
        changes.append(Change(path, kind, value))
    reader.finish()
    return changes


def of_folder(top: str, wanted: Wanted, spool: Spool) -> list[Change]:
    """Return the files of an unpacked root file system; other file systems that are mounted in it are left out.

    No link is followed. Raises UnhangError as ``of_archive``, and OSError.
    """
    changes = []
    device, left = os.stat(top).st_dev, [""]
    while left:
        above = left.pop()
        for name in sorted(_names(os.path.join(top, above), is_top=not above)):
            path = os.path.join(above, name)
            spool.count(path)
            status = os.lstat(os.path.join(top, path))
            if stat.S_ISDIR(status.st_mode):
                changes.append(Change(path, tar.FOLDER, ""))
                if status.st_dev == device:
                    left.append(path)
            elif stat.S_ISLNK(status.st_mode):
                changes.append(Change(path, tar.LINK, os.readlink(os.path.join(top, path))))
            else:
                changes.append(Change(path, tar.FILE, _file(top, path, status, wanted, spool)))
    return changes


def _names(folder: str, is_top: bool) -> list[str]:
    try:
        return os.listdir(folder)
    except PermissionError:
        if is_top:
            raise
        return []  # such as /root of another user: nobody imports from there, but who may read it


def _file(top: str, path: str, status: os.stat_result, wanted: Wanted, spool: Spool) -> File | _Plain:
    amount = wanted.amount(path, status.st_size)
    if amount is None:
        return PLAIN
    _measure(path)
    if not stat.S_ISREG(status.st_mode):
        return File("")
    with open(os.open(os.path.join(top, path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as it:
        return spool.keep([it.read(amount)], status.st_size)


def _measure(path: str) -> None:
    if len(path) > _LONGEST or path.count("/") > _DEEPEST or any(len(os.fsencode(it)) > 255 for it in path.split("/")):
        raise bad(f"it has a path that is too long: {path[:80]!a}...")


class Tree:
    """The files of an image."""

    def __init__(self) -> None:
        self.top: Folder = {}
        self.elsewhere: dict[str, str] = {}
        """Files that are wanted under another name: their path, and that name."""
        self._last: tuple[str, Folder] | None = None
        self._made = 0

    def lay(self, changes: Iterable[Change]) -> None:
        """Lay a layer upon what is there. Raises UnhangError ``bad-image``."""
        changes = list(changes)
        hidden = [it.path for it in changes if it.path.rpartition("/")[2].startswith(".wh.")]
        for path in hidden:  # these are about the layers below, wherever they stand
            self._hide(path)
        for path, what, value in changes:
            if path and not path.rpartition("/")[2].startswith(".wh."):
                self._put(path, what, value)

    def _hide(self, path: str) -> None:
        above, _, name = path.rpartition("/")
        folder = self.find(above)
        self._last = None
        if not isinstance(folder, dict):
            return
        if name == ".wh..wh..opq":
            folder.clear()
        elif not name.startswith(".wh..wh."):
            folder.pop(name.removeprefix(".wh."), None)

    def _put(self, path: str, what: str, value: File | _Plain | str) -> None:
        above, _, name = path.rpartition("/")
        if self._last is None or self._last[0] != above:
            folder = self.walk(above, make=True)[1]
            if not isinstance(folder, dict):
                raise bad(f"a layer has {path!a} in what is no folder")
            self._last = above, folder
        folder = self._last[1]
        if what == tar.FOLDER:
            if not isinstance(folder.get(name), dict):
                folder[name] = {}
                self._last = None
            return
        if what == tar.HARD:
            value = self._other(path, str(value))
        if isinstance(folder.get(name), (dict, str)) or isinstance(value, str):
            self._last = None
        folder[name] = value

    def _other(self, path: str, target: str) -> File | _Plain | str:
        above, _, name = target.rpartition("/")
        places, folder = self.walk(above)
        node = folder.get(name) if isinstance(folder, dict) else None
        if node is None or isinstance(node, dict):
            raise bad(f"a layer has {path!a} as another name of {target!a}, which is no file in it")
        if node is PLAIN:
            self.elsewhere["/".join([*places, name])] = path
        return node

    def find(self, path: str) -> Node | None:
        """Return what is at a path, with all links followed; None if there is nothing."""
        return self.walk(path)[1]

    def walk(self, path: str, *, within: str = "", make: bool = False) -> tuple[list[str], Node | None]:
        """Return the real names that lead to a path from a real folder, and what is there, with all links followed.

        A link leads at the most to the top of the image. With ``make``, folders that are missing are made.
        """
        names: list[str] = []
        nodes: list[Node] = [self.top]
        left, links = [*reversed(f"{within}/{path}".split("/"))], 0
        while left:
            name = left.pop()
            here = nodes[-1]
            if name in ("", "."):
                continue
            if name == "..":
                del names[-1:]
                del nodes[len(names) + 1 :]
                continue
            if not isinstance(here, dict):
                return names, None
            node = here.get(name)
            if isinstance(node, str):
                links += 1
                if links > _LINKS:
                    return [*names, name], None
                if node.startswith("/"):
                    names, nodes = [], nodes[:1]
                left += reversed(node.split("/"))
                continue
            if node is None:
                if not make:
                    return [*names, name, *(it for it in reversed(left) if it not in ("", ".", ".."))], None
                node = here[name] = {}
                self._made += 1
                if self._made > _ENTRIES:
                    raise too_large(f"it has more than {_ENTRIES:,} folders")
            names.append(name)
            nodes.append(node)
        return names, nodes[-1]

    def everything(self) -> Iterator[tuple[str, Node]]:
        """Yield all paths, and what is there, a folder before what is in it."""
        left: list[tuple[str, Folder]] = [("", self.top)]
        while left:
            above, folder = left.pop()
            for name, node in folder.items():
                path = f"{above}/{name}" if above else name
                yield path, node
                if isinstance(node, dict):
                    left.append((path, node))
