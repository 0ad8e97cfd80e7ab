"""Remove the `.pyc` files of a source, and recompile them with the interpreter that they are for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from unhang.find.bytecode import NO_CACHES, Caches, header, pycs
from unhang.store import disk

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


def survey(sources: Iterable[str], caches: Caches = NO_CACHES) -> tuple[Compiled, ...]:
    """Return the bytecode of these sources; call it before `transaction.commit`, which deletes it.

    Leaves out pytest's, what cannot be read, and what is behind a link in the place of a `__pycache__`: that may be
    the bytecode of another source, which is to get no code of this one. Only reads, raises nothing.
    """
    found = []
    for source in sources:
        for pyc in pycs(source, caches):
            mode = _mode(pyc.path)
            if mode and not pyc.is_pytests and not os.path.islink(os.path.dirname(pyc.path)):
                found.append(Compiled(source, pyc.path, mode, pyc.optimize, pyc.tag))
    return tuple(found)


def _mode(path: str) -> str | None:
    flags = int.from_bytes(header(path)[4:8] or b"\xff", "little")
    return {0: "timestamp", 1: "unchecked-hash", 3: "checked-hash"}.get(flags)


def remove(paths: Iterable[str]) -> None:
    """Delete bytecode files, and have that on disk: an old one must not come back.

    Raises UnhangError as `disk.refusal`.
    """
    folders = set()
    for path in paths:
        with disk.about(path):
            disk.remove(path)
        folders.add(os.path.dirname(path))
    for folder in sorted(folders):
        with disk.about(os.path.join(folder, "")):
            disk.sync_dir(folder)


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
