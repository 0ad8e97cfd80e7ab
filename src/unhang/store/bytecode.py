"""Find the `.pyc` files of a source, and recompile them with the interpreter that they are for.

A `NAME.pyc` in the folder of `NAME.py` (`compileall -b`) stays: no import reads it while the source exists.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from unhang.records import Search

# pytest's too. The tag has no other dot, so that the bytecode of `a.b.py` is not taken for that of `a.py`.
_NAME = re.compile(r"\.(?P<tag>[A-Za-z][\w-]*?)(?P<pytest>-pytest-[\w.]+?)?(?:\.opt-(?P<optimize>\w+))?\.pyc", re.ASCII)

# Runs in the target interpreter; -I -S keeps it from running other code at start.
_RECOMPILE = """\
import json, os, py_compile, sys
def read(path):
    with open(path, "rb") as file:
        return file.read()
for source, path, mode, optimize, tag in json.load(sys.stdin):
    if tag == sys.implementation.cache_tag:
        mode = getattr(py_compile.PycInvalidationMode, mode.upper().replace("-", "_"))
        try:
            before = read(source)
            py_compile.compile(source, path, doraise=True, optimize=int(optimize or 0), invalidation_mode=mode)
            # If the run that started this was killed, another may have replaced the source meanwhile.
            if read(source) != before:
                os.unlink(path)
        except Exception:
            pass
"""


class Compiled(NamedTuple):
    """One bytecode file that existed before its source was rewritten."""

    source: str
    path: str
    mode: str
    """`timestamp`, `checked-hash` or `unchecked-hash`."""
    optimize: str
    """The level after `.opt-`, or empty."""
    tag: str
    """The interpreter it is for, such as `cpython-312`."""


class Caches(NamedTuple):
    """Where an interpreter keeps bytecode besides the `__pycache__` beside each source."""

    prefix: str | None
    """Its `sys.pycache_prefix`: below it, the path by which a module was imported is repeated."""
    names: tuple[tuple[str, str], ...]
    """Pairs of a real folder and another path by which modules in it are imported."""


NO_CACHES = Caches(None, ())


def caches(search: Search) -> Caches:
    """Return where the interpreter of a search keeps bytecode of what was found."""
    names = {(os.path.realpath(found.package_dir), found.package_dir) for found in search.installations}
    names |= {(found.real_root, found.root) for found in search.installations}
    return Caches(search.pycache_prefix, tuple(sorted(pair for pair in names if pair[0] != pair[1])))


def cached(source: str, caches: Caches = NO_CACHES) -> list[str]:
    """Return the bytecode files of a `.py` file, of all interpreters and levels. Only reads, raises nothing."""
    return [path for path, _ in _cached(source, caches)]


def _cached(source: str, caches: Caches) -> list[tuple[str, re.Match[str]]]:
    folder, name = os.path.split(source)
    if not name.endswith(".py"):
        return []
    stem = name[: -len(".py")]
    folders = [os.path.join(folder, "__pycache__")]
    if caches.prefix:
        aliases = (name + folder[len(real) :] for real, name in caches.names if f"{folder}/".startswith(f"{real}/"))
        folders += [os.path.join(caches.prefix, alias.lstrip(os.sep)) for alias in (folder, *aliases)]
    found = []
    for cache in dict.fromkeys(folders):
        with suppress(OSError):  # no such folder, the common case
            for entry in os.listdir(cache):
                path = os.path.join(cache, entry)
                if entry.startswith(stem) and (match := _NAME.fullmatch(entry, len(stem))) and not os.path.isdir(path):
                    found.append((path, match))
    return sorted(found, key=lambda pair: pair[0])


def survey(sources: Iterable[str], caches: Caches = NO_CACHES) -> tuple[Compiled, ...]:
    """Return the bytecode of these sources; call it before `transaction.commit`, which deletes it.

    Leaves out pytest's, and what cannot be read. Only reads, raises nothing.
    """
    found = []
    for source in sources:
        for path, match in _cached(source, caches):
            mode = _mode(path)
            if mode and not match["pytest"]:
                found.append(Compiled(source, path, mode, match["optimize"] or "", match["tag"]))
    return tuple(found)


def _mode(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            head = file.read(8)
    except OSError:
        return None
    flags = int.from_bytes(head[4:8], "little") if len(head) == 8 else -1
    return {0: "timestamp", 1: "unchecked-hash", 3: "checked-hash"}.get(flags)


def recompile(python: str, compiled: Sequence[Compiled]) -> None:
    """Recompile, with the interpreter `python`, those of `compiled` that were for it, each in its old mode.

    Starts one subprocess, or none if there is nothing to do. A failure is not an error: missing bytecode is correct.
    """
    if not compiled:
        return
    import json
    import subprocess

    with suppress(Exception):  # the source is in place already
        subprocess.run(
            [python, "-I", "-S", "-c", _RECOMPILE],
            input=json.dumps(compiled).encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=120,
            check=False,
        )
