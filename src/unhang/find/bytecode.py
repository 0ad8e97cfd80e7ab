"""Where interpreters keep the bytecode of a source. Only reads, and raises nothing.

A `NAME.pyc` in the folder of `NAME.py` (`compileall -b`) is none of it: no import reads it while the source exists.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from unhang.find.metadata import names
from unhang.records import Search

UNCHECKED = b"\1\0\0\0"
"""The flags of bytecode that an import runs without a look at its source (PEP 552)."""
HEADER = 16
"""The bytes of a ``.pyc`` before its code: four of magic, four of flags, and time and size, or a hash, of the source.
An import ignores a shorter file."""
# pytest's too. The tag has no other dot, so that the bytecode of `a.b.py` is not taken for that of `a.py`.
_NAME = r"\.(?P<tag>[A-Za-z][\w-]*?)(?P<pytest>-pytest-[\w.]+?)?(?:\.opt-(?P<optimize>\w+))?\.pyc"


class Pyc(NamedTuple):
    """One name of a bytecode file that is there."""

    path: str
    tag: str
    """The interpreter it is for, such as `cpython-312`."""
    optimize: str
    """The level after `.opt-`, or empty."""
    is_pytests: bool
    """Whether pytest wrote it, which no import reads."""


class Caches(NamedTuple):
    """Where an interpreter keeps bytecode besides the `__pycache__` beside each source."""

    prefix: str | None
    """Its `sys.pycache_prefix`: below it, the path by which a module was imported is repeated."""
    names: tuple[tuple[str, str], ...]
    """Pairs of a real folder and another path by which modules in it are imported."""


NO_CACHES = Caches(None, ())


def caches(search: Search) -> Caches:
    """Return where the interpreter of a search keeps bytecode of what was found."""
    if search.pycache_prefix is None:
        return NO_CACHES
    names = {(os.path.realpath(found.package_dir), found.package_dir) for found in search.installations}
    names |= {(found.real_root, found.root) for found in search.installations}
    return Caches(search.pycache_prefix, tuple(sorted(pair for pair in names if pair[0] != pair[1])))


def compiler(search: Search) -> str | None:
    """Return an interpreter for the bytecode of a search: our own, or that of the environment if it may be run."""
    if sys.executable and search.cache_tag in (None, sys.implementation.cache_tag):
        return sys.executable
    return search.environment.program


def folders(source: str, caches: Caches = NO_CACHES) -> list[str]:
    """Return the folders that may hold the bytecode of a file; none if it is not a `.py` file."""
    folder, name = os.path.split(source)
    if not name.endswith(".py"):
        return []
    places = [os.path.join(folder, "__pycache__")]
    if caches.prefix:
        real = os.path.realpath(folder)
        aliases = (name + real[len(above) :] for above, name in caches.names if f"{real}/".startswith(f"{above}/"))
        places += [os.path.join(caches.prefix, alias.lstrip(os.sep)) for alias in (folder, real, *aliases)]
    return list(dict.fromkeys(places))


def pycs(source: str, caches: Caches = NO_CACHES, names: Callable[[str], Collection[str]] = names) -> Iterator[Pyc]:
    """Yield the bytecode files of a `.py` file, of all interpreters and levels; ``names`` lists a folder."""
    stem = os.path.basename(source)[: -len(".py")]
    for folder in folders(source, caches):
        for name in sorted(names(folder)):
            if name.startswith(stem) and (match := re.fullmatch(_NAME, name[len(stem) :], re.ASCII)):
                yield Pyc(os.path.join(folder, name), match["tag"], match["optimize"] or "", bool(match["pytest"]))


def cached(source: str, caches: Caches = NO_CACHES) -> list[str]:
    """Return the paths of the bytecode files of a `.py` file, of all interpreters and levels."""
    return [pyc.path for pyc in pycs(source, caches) if not os.path.isdir(pyc.path)]


def header(path: str) -> bytes:
    """Return the first bytes of a bytecode file; empty if an import would ignore it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would block
    except OSError:
        return b""
    try:
        found = os.read(descriptor, HEADER)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
    return found if len(found) == HEADER else b""
