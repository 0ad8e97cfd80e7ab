"""Which files of an image are read: by name, because nobody knows where imports lead before all layers are read."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping

from unhang.plugins import packs

LARGEST = 16 << 20  # bytes, as of any other file; a larger one has its size, and no content
_BINARY = 4  # what says that a file is a program
# What tells what an interpreter imports, as `find.reading` reads it, and the receipts.
_OF_PYTHON = (
    r"pyvenv\.cfg$|[^/]*\.pth$|(site|user)customize\.py$|__editable___\w+_finder\.py$|\.unhang(-overlay)?/|"
    r"bin/(python[\d.]*|python[\d.]*\._pth|pybuilddir\.txt)$|"
    r"lib/python3\d+\.zip$|lib/python3\.\d+/(os|site|_sysconfigdata__[^/]*)\.py$"
)
_FOLDER = re.compile(r"(?:^|/)(?:lib-dynload|conda-meta|(?:site|dist)-packages|\.unhang-overlay)$")
_PROGRAM = re.compile(r"/(?:python[\d.]*|[^/]*\.so)$")


class Wanted:
    """The names of what is read: the start of Python, the upstreams, and packages that do their work."""

    def __init__(self, beside: Iterable[str], elsewhere: Mapping[str, str] | None = None) -> None:
        """``beside`` are those packages; ``elsewhere`` has files and folders that are read in place of others."""
        upstreams = packs.upstreams().values()
        tops = "|".join(sorted({re.escape(name.partition(".")[0]) for name in (*packs.modules(), *beside)}))
        files = {os.path.basename(name) for one in upstreams for name in (one.version.get("file", ""), *one.marks)}
        files = {re.escape(name) for name in files if name and not name.endswith(".py")}
        dists = "|".join(sorted({re.escape(one.distribution).replace(r"\-", "[-_.]") for one in upstreams}))
        self._inside = re.compile(rf"(?:^|/)(?:{tops})/")
        self._file = re.compile("|".join([r"[^/]*\.(?:py|pyc|so)", *sorted(files)]))
        module = rf"(?:{tops})(?:\.py|\.pyc|(?:\.[\w-]+)?\.so)$"
        info = rf"(?i:(?:{dists})-[^/]*\.dist-info/[^/]+)$"
        self._other = re.compile(rf"^etc/passwd$|(?:^|/)(?:{module}|{info}|{_OF_PYTHON})")
        self._below = re.compile(rf"(?:^|/)(?:{tops})(?:[./]|$)")
        self._elsewhere = elsewhere or {}

    def amount(self, path: str, size: int) -> int | None:
        """Return how many bytes of a file are read; None if it does not matter, not even whether it is there."""
        if not (self._is_read(path) or path in self._elsewhere or any(map(self._is_read, self._others(path)))):
            return None
        if _PROGRAM.search(f"/{path}"):
            return min(size, _BINARY)
        return size if size <= LARGEST else 0

    def _is_read(self, path: str) -> bool:
        file = path.rpartition("/")[2]
        return bool((self._file.fullmatch(file) and self._inside.search(path)) or self._other.search(path))

    def _others(self, path: str) -> Iterator[str]:
        """Yield the other names of a path."""
        for real, alias in self._elsewhere.items():
            if path.startswith(f"{real}/"):
                yield alias + path[len(real) :]

    def is_of_upstream(self, path: str) -> bool:
        """Return whether a path may lead to an upstream's code, by its own name or that of a folder."""
        return bool(self._below.search(path)) or any(f"{path}/".startswith(f"{real}/") for real in self._elsewhere)

    @staticmethod
    def is_folder(path: str) -> bool:
        """Return whether it matters that there is this folder, whatever is in it."""
        return bool(_FOLDER.search(path))
