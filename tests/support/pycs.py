"""Bytecode of each kind, as people and build tools leave it."""

import os
import py_compile
import sys
from importlib.util import source_hash
from pathlib import Path

TAG = sys.implementation.cache_tag or ""
UNCHECKED = py_compile.PycInvalidationMode.UNCHECKED_HASH
OF_MOD = (
    "mod.cpython-310.pyc", "mod.cpython-313.opt-1.pyc", "mod.cpython-313t.opt-2.pyc", "mod.pypy310.pyc",
    "mod.graalpy242-311.pyc", "mod.cpython-312-pytest-8.3.4.pyc",
)  # fmt: skip
"""What interpreters call the bytecode of ``mod.py``."""


def unchecked(source: Path, code: bytes, name: str = "", folder: Path | None = None) -> Path:
    """Write unchecked bytecode of this code where an import looks for that of the source; return its path.

    ``name`` is what its file's name has after the source's, by default our own tag; ``folder`` is not ``__pycache__``.
    """
    path = (folder or source.parent / "__pycache__") / f"{source.stem}.{name or TAG}.pyc"
    path.parent.mkdir(parents=True, exist_ok=True)
    other = path.with_suffix(".py")
    other.write_bytes(code)
    level = {"opt-1": 1, "opt-2": 2}.get(name.rpartition(".")[2], 0)
    py_compile.compile(
        str(other), str(path), dfile=str(source), doraise=True, optimize=level, invalidation_mode=UNCHECKED
    )
    other.unlink()
    return path


def with_hash_of(pyc: Path, source: bytes) -> None:
    """Put the hash of another source into bytecode."""
    data = pyc.read_bytes()
    pyc.write_bytes(data[:8] + source_hash(source) + data[16:])


def marked(pyc: Path, code: bytes) -> None:
    """Put the time and the size of a file, or any other bytes, into a header."""
    data = pyc.read_bytes()
    pyc.write_bytes(data[:4] + code + data[4 + len(code) :])


def times(source: Path) -> bytes:
    """Return flags, time and size as in bytecode that is right for this source by both."""
    found = os.stat(source)
    return b"".join(number.to_bytes(4, "little") for number in (0, int(found.st_mtime), found.st_size))
