"""Bytecode: which `.pyc` files belong to a source, and compiling them anew with the interpreter they were for.

A `NAME.pyc` right beside `NAME.py` (`compileall -b`) is left alone: no import reads it while the source is there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

# pytest's own too; the tag has no other dot, so that `a.b.py` keeps what is its own when `a.py` is rewritten.
_NAME = re.compile(r"\.(?P<tag>[A-Za-z][\w-]*?)(?P<pytest>-pytest-[\w.]+?)?(?:\.opt-(?P<optimize>\w+))?\.pyc", re.ASCII)

# Run by the target interpreter; -I -S keeps out whatever its environment would run at start.
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
            # Whoever started this may be dead, and its lock another's, who has replaced the source meanwhile.
            if read(source) != before:
                os.unlink(path)
        except Exception:
            pass
"""


class Compiled(NamedTuple):
    """One bytecode file that was there before its source was rewritten."""

    source: str
    path: str
    mode: str
    """`timestamp`, `checked-hash` or `unchecked-hash`."""
    optimize: str
    """`` or the level after `.opt-`."""
    tag: str
    """Which interpreter it is for, such as `cpython-312`."""


def cached(source: str) -> list[str]:
    """Return the existing bytecode files of a `.py` file, all interpreters and levels. Only reads, raises nothing."""
    return sorted(path for path, _ in _cached(source))


def _cached(source: str) -> list[tuple[str, re.Match[str]]]:
    folder, name = os.path.split(source)
    if not name.endswith(".py"):
        return []
    stem = name[: -len(".py")]
    folders = [os.path.join(folder, "__pycache__")]
    if elsewhere := os.environ.get("PYTHONPYCACHEPREFIX"):
        folders.append(os.path.join(elsewhere, folder.lstrip(os.sep)))
    found = []
    for cache in folders:
        with suppress(OSError):  # no cache here, which is the common case
            for entry in os.listdir(cache):
                path = os.path.join(cache, entry)
                if entry.startswith(stem) and (match := _NAME.fullmatch(entry, len(stem))) and not os.path.isdir(path):
                    found.append((path, match))
    return found


def survey(sources: Iterable[str]) -> tuple[Compiled, ...]:
    """Return the bytecode there is for these sources; call it before `transaction.commit`, which deletes it.

    Only reads, raises nothing; bytecode that cannot be read, and pytest's, is left out.
    """
    found = []
    for source in sources:
        for path, match in sorted(_cached(source), key=lambda pair: pair[0]):
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


def recompile(python: str, compiled: Sequence[Compiled], *, tag: str | None = None) -> None:
    """Compile anew, with the interpreter `python`, those of `compiled` that were for it, each in the mode it had.

    One subprocess, none where nothing is to do; `tag` (that interpreter's `sys.implementation.cache_tag`) spares it
    where only other interpreters had bytecode. A failure is none: the bytecode is gone, which is right too.
    """
    todo = [entry for entry in compiled if tag in (None, entry.tag)]
    if not todo:
        return
    import json
    import subprocess

    with suppress(OSError, subprocess.SubprocessError):
        subprocess.run(
            [python, "-I", "-S", "-c", _RECOMPILE],
            input=json.dumps(todo).encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=120,
            check=False,
        )
