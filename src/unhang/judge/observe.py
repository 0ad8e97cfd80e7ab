"""What stands in a target's file: by the file's digest where that is on record, else a search, and only then `ast`."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from typing import NamedTuple

from unhang.records import Installation
from unhang.shapes.catalog import ShapeTable, Target

# No module of an upstream is near this; a file that is, is not one, and is not worth the memory.
_TOO_LARGE = 16 * 1024 * 1024
# How many folders deep a package lies below the import path, where it is not one: megatron/core.
_DEPTH = {"megatron-core": 2, "megatron-lm": 2}


class Observation(NamedTuple):
    """What one target's file holds. ``problem`` is a stable code, where the function could not be judged at all."""

    path: str
    data: bytes | None
    """The file's bytes; None where there is no such file."""
    sha256: str
    shape: str | None
    """The function's shape; None where there is none, or more than one, or the file does not parse."""
    on_record: bool
    """Whether this very file is on record: then all that was checked of it when it was recorded holds."""
    problem: str | None
    """``does-not-parse``, ``defined-twice``, ``too-large``, ``outside``, ``not-a-file``; None where all is well."""
    detail: str
    names: frozenset[str] | None
    """The names that the file's top level binds; None where it was not parsed."""
    real: str = ""
    """The path with its links followed; empty where there is no file that was read."""


def observe(installation: Installation, target: Target, table: ShapeTable) -> Observation:
    """Read a target's file and say what it holds. Raises OSError where it is there but cannot be read."""
    path = file_of(installation, target.file)
    try:
        real = os.path.realpath(path)
        status = os.stat(real)
        # All this before it is opened: to open a pipe would wait for ever, and some devices have no end.
        if not real.startswith(os.path.realpath(installation.package_dir) + os.sep):
            return Observation(path, b"", "", None, False, "outside", f"a link that leads out, to {real}", None)
        if not stat.S_ISREG(status.st_mode):
            return Observation(path, b"", "", None, False, "not-a-file", "not a regular file", None)
        if status.st_size > _TOO_LARGE:
            return Observation(path, b"", "", None, False, "too-large", "larger than any module of an upstream", None)
        with open(real, "rb") as file:
            data = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return Observation(path, None, "", None, False, None, "", None)
    return judge(path, data, target.function, table.files)._replace(real=real)


def file_of(installation: Installation, file: str) -> str:
    """The path of an upstream's file in this installation: below its package's folder, wherever that is."""
    return os.path.join(installation.package_dir, *below_package(installation.upstream, file))


def below_package(upstream: str, file: str) -> list[str]:
    """The parts of an upstream's file below its package's folder."""
    return file.split("/")[_DEPTH.get(upstream, 1) :]


def package_of(target: Target) -> list[str]:
    """The parts of the path from an import path's folder to the package's folder that holds a target."""
    return target.file.split("/")[: _DEPTH.get(target.upstream, 1)]


def judge(path: str, data: bytes, function: str, files: Mapping[str, Mapping[str, str | None]]) -> Observation:
    """Say what a file of these bytes holds. Pure: reads nothing."""
    sha256 = hashlib.sha256(data).hexdigest()
    recorded = files.get(sha256, {})
    if function in recorded:
        return Observation(path, data, sha256, recorded[function], True, None, "", None)

    from unhang.shapes import shape  # here: a known file needs no parsing, and this imports ast

    if not shape.mentions(data, function):
        return Observation(path, data, sha256, None, False, None, "", None)
    try:
        tree = shape.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        # ValueError: NUL bytes; the last two: nested beyond what the parser bears
        where = f"line {error.lineno}: " if isinstance(error, SyntaxError) and error.lineno else ""
        message = error.msg if isinstance(error, SyntaxError) else str(error)
        return Observation(path, data, sha256, None, False, "does-not-parse", f"{where}{message}", None)
    found = shape.find(tree, function)
    names = shape.bound_names(tree)
    if len(found) > 1:
        lines = ", ".join(str(node.lineno) for node in found)
        return Observation(path, data, sha256, None, False, "defined-twice", f"on lines {lines}", names)
    return Observation(path, data, sha256, shape.digest(found[0]) if found else None, False, None, "", names)
