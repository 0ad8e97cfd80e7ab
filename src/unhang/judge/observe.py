"""What a target's file contains. A file on record is known by its digest; any other is searched first, then parsed."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Mapping
from typing import NamedTuple

from unhang.records import Installation
from unhang.shapes.catalog import ShapeTable, Target

# Far larger than any module of an upstream: such a file is something else, and not worth the memory.
TOO_LARGE = 16 * 1024 * 1024
# How many folders below the import path a package is, where that is not one: megatron/core.
_DEPTH = {"megatron-core": 2, "megatron-lm": 2}


class Observation(NamedTuple):
    """What the file of one target contains."""

    path: str
    data: bytes | None
    """The file's bytes; None if there is no such file."""
    sha256: str = ""
    shape: str | None = None
    """The function's shape; None if there is no function, or more than one, or the file does not parse."""
    on_record: bool = False
    """Whether this very file is on record: then everything that was checked when it was recorded holds."""
    problem: str | None = None
    """Why the function cannot be judged: ``does-not-parse``, ``defined-twice``, ``too-large``, ``outside`` or
    ``not-a-file``; None if it can be."""
    detail: str = ""
    names: frozenset[str] | None = None
    """The names that the file's top level binds; None if it was not parsed."""
    real: str = ""
    """The path with its links resolved; empty if no file was read."""
    rebound: tuple[int, ...] = ()
    """The lines of the file that bind the function's name again: a wrapper may run in its place."""


Read = Callable[[Installation, str], Observation]
"""How ``observe`` reads a file: several functions of one file are judged by the same bytes."""


def observe(installation: Installation, target: Target, table: ShapeTable, read: Read | None = None) -> Observation:
    """Return what a target's file contains; ``read`` reads it, by default ``contents``.

    Raises OSError if the file exists but cannot be read.
    """
    found = (read or contents)(installation, target.file)
    if found.data is None or found.problem is not None:
        return found
    return observe_bytes(found.path, found.data, target.function, table.files)._replace(real=found.real)


def contents(installation: Installation, file: str) -> Observation:
    """Return an upstream's file, before a function is looked for in it. Raises OSError as ``observe`` does."""
    path = file_of(installation, file)
    try:
        real = os.path.realpath(path)
        status = os.stat(real)
        # Check this before opening the file: opening a pipe would block, and some devices have no end.
        if not real.startswith(os.path.realpath(installation.package_dir) + os.sep):
            return Observation(path, b"", problem="outside", detail=f"a link that leads out of the package, to {real}")
        if not stat.S_ISREG(status.st_mode):
            return Observation(path, b"", problem="not-a-file", detail="not a regular file")
        if status.st_size > TOO_LARGE:
            return Observation(path, b"", problem="too-large", detail="larger than any module of an upstream")
        with open(real, "rb") as opened:
            return Observation(path, opened.read(), real=real)
    except (FileNotFoundError, NotADirectoryError):
        return Observation(path, None)


def observe_bytes(path: str, data: bytes, function: str, files: Mapping[str, Mapping[str, str | None]]) -> Observation:
    """Return what a file with these bytes contains. Reads nothing.

    ``files`` holds the shapes of the files on record, as ``ShapeTable.files`` does.
    """
    sha256 = hashlib.sha256(data).hexdigest()
    recorded = files.get(sha256, {})
    if function in recorded:
        return Observation(path, data, sha256, recorded[function], on_record=True)

    from unhang.shapes import shape  # it imports ast, and a file on record is not parsed

    if not shape.mentions(data, function):
        return Observation(path, data, sha256)
    try:
        tree = shape.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        # ValueError: NUL bytes; RecursionError and MemoryError: nested too deeply for the parser
        where = f"line {error.lineno}: " if isinstance(error, SyntaxError) and error.lineno else ""
        message = error.msg if isinstance(error, SyntaxError) else str(error)
        return Observation(path, data, sha256, problem="does-not-parse", detail=f"{where}{message}")
    names = shape.bound_names(tree)
    found = shape.find(tree, function)
    if len(found) > 1:
        lines = ", ".join(str(node.lineno) for node in found)
        return Observation(path, data, sha256, problem="defined-twice", detail=f"on lines {lines}", names=names)
    if not found:
        return Observation(path, data, sha256, names=names)
    from unhang.shapes import rebound

    again = rebound.lines(tree, data, function)
    return Observation(path, data, sha256, shape.digest(found[0]), names=names, rebound=again)


def file_of(installation: Installation, file: str) -> str:
    """Return the path of an upstream's file in this installation, wherever its package's folder is."""
    return os.path.join(installation.package_dir, *below_package(installation.upstream, file))


def below_package(upstream: str, file: str) -> list[str]:
    """Return the parts of an upstream's file below its package's folder."""
    return file.split("/")[_DEPTH.get(upstream, 1) :]


def package_of(target: Target) -> list[str]:
    """Return the parts of the path from the import path to the folder of the package that contains a target."""
    return target.file.split("/")[: _DEPTH.get(target.upstream, 1)]
