"""What a target's file contains. A file on record is known by its digest; any other is searched first, then parsed."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from typing import TYPE_CHECKING, NamedTuple

from unhang.find import metadata
from unhang.judge.recorded import edits
from unhang.plugins import packs
from unhang.records import Installation
from unhang.shapes.catalog import ShapeTable, Target

if TYPE_CHECKING:
    import ast

    from unhang.shapes.rebound import Again
    from unhang.shapes.shape import Function

# Far larger than any module of an upstream: such a file is something else, and not worth the memory.
TOO_LARGE = 16 * 1024 * 1024


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
    """Why the function cannot be judged: ``does-not-parse``, ``defined-twice``, ``rebound``, ``rebound-unknown``,
    ``too-large``, ``outside``, ``only-bytecode``, ``shadowed`` or ``not-a-file``; None if it can be."""
    detail: str = ""
    """More on the problem; or, where there is no function, on what the file binds its name to."""
    names: frozenset[str] | None = None
    """The names that the file's top level binds; None if it was not parsed."""
    real: str = ""
    """Where a rewrite goes: the path with its links resolved, up to the one that leads out of the package; empty if
    there is no file."""
    link: str = ""
    """Where a link leads, with all links resolved, if it leads out of the package; empty if none does."""
    line: int = 0
    """The line that pins it, where the file is a lock file; else 0."""

    @property
    def place(self) -> str:
        """Where a rewrite goes, whatever is there now."""
        return self.real or os.path.realpath(self.path)


Read = Callable[[Installation, str], Observation]
"""How ``observe`` reads a file: several functions of one file are judged by the same bytes."""


def observe(installation: Installation, target: Target, table: ShapeTable, read: Read | None = None) -> Observation:
    """Return what a target's file contains; ``read`` reads it, by default ``contents``.

    Raises OSError if the file exists but cannot be read.
    """
    found = (read or contents)(installation, target.file)
    if found.data is None or found.problem is not None:
        return found
    seen = observe_target(found.path, found.data, target, table)
    if seen.shape is None and not (seen.problem or seen.detail or seen.on_record or target.exact):
        seen = seen._replace(detail=_of_base(installation, target.file, target.function, found.data, read or contents))
    return seen._replace(real=found.real, link=found.link)


def _of_base(installation: Installation, file: str, function: str, data: bytes, read: Read, depth: int = 3) -> str:
    """Return which base class, in another file of the package, a class has a method from; empty if none has it."""
    owner, _, name = function.rpartition(".")
    if not owner or not re.search(rf"\bclass\s+{owner}\b".encode(), data):
        return ""
    from unhang.shapes import rebound  # it imports ast

    with suppress(SyntaxError, ValueError, RecursionError, MemoryError, OSError):
        for dotted in rebound.imported_bases(_tree(data), owner):
            base = _file_of(dotted, file)
            there = read(installation, base).data if _is_within(installation, base) else None
            if there is None:
                continue
            method = f"{dotted.rpartition('.')[2]}.{name}"
            if found := rebound.inherited(_tree(there), method):
                return f"its class has it from {found} of {base}"
            if depth and (found := _of_base(installation, base, method, there, read, depth - 1)):
                return found
    return ""


def _file_of(dotted: str, file: str) -> str:
    """Return the file that a name is imported from, which another file imports."""
    above = len(dotted) - len(dotted.lstrip("."))
    folder = file.split("/")[:-above] if above else []
    return "/".join((*folder, *dotted.lstrip(".").split(".")[:-1])) + ".py"


def _is_within(installation: Installation, file: str) -> bool:
    return file.startswith("/".join(_parts(installation.upstream)) + "/")


def contents(installation: Installation, file: str, real: Callable[[str], str] = os.path.realpath) -> Observation:
    """Return an upstream's file, before a function is looked for in it. Raises OSError as ``observe`` does.

    ``real`` resolves the links of a folder: many files share one.
    """
    seen = placed(installation, file, real)
    path, content = seen.path, seen.link or seen.real
    try:
        # Check this before opening the file: opening a pipe would block, and some devices have no end.
        if not stat.S_ISREG(os.stat(content).st_mode):
            return seen._replace(problem="not-a-file", detail="not a regular file")
        with open(os.open(content, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as opened:
            status = os.fstat(opened.fileno())  # another file may have taken its place
            if status.st_size > TOO_LARGE or not stat.S_ISREG(status.st_mode):
                return seen._replace(problem="too-large", detail="larger than any module of an upstream")
            is_linked = seen.link or installation.package_dir != _folder(installation, file)
            if is_linked and _is_strange(installation, content, status):
                detail = f"a link that leads out of {installation.root}, to {content}, which user {status.st_uid} owns"
                return seen._replace(problem="outside", detail=detail)
            if other := _package(path) or _extension(path):
                return seen._replace(problem="shadowed", detail=other)
            return seen._replace(data=opened.readall())
    except (FileNotFoundError, NotADirectoryError):
        if os.path.islink(path):
            return seen._replace(problem="not-a-file", detail=f"a link to {content}, which is gone")
        if os.path.lexists(f"{path}c"):
            return Observation(path, b"", problem="only-bytecode", detail=f"{path}c without its source")
        if other := _extension(path):
            return Observation(path, b"", problem="shadowed", detail=other)
        return Observation(path, None)


def placed(installation: Installation, file: str, real: Callable[[str], str] = os.path.realpath) -> Observation:
    """Return where an upstream's file is, or would be; nothing of it is read.

    A link that stays in the package is another name of one of its files, and that one is rewritten.
    """
    path = file_of(installation, file)
    folder, name = os.path.split(path)
    here, inside = os.path.join(real(folder), name), os.path.join(real(installation.package_dir), "")
    content = os.path.realpath(here) if os.path.islink(here) else here
    if content.startswith(inside):
        return Observation(path, b"", real=content)
    return Observation(path, b"", real=here if here.startswith(inside) else path, link=content)


def resolver() -> Callable[[str], str]:
    """Return what ``os.path.realpath`` does for a folder, but looks at each folder on the way only once."""

    @cache
    def real(folder: str) -> str:
        above, name = os.path.split(folder)
        if not name or name in (os.curdir, os.pardir):
            return os.path.realpath(folder)
        here = os.path.join(real(above), name)
        return os.path.realpath(here) if os.path.islink(here) else here

    return real


def _package(path: str) -> str:
    """Return the package beside a `.py` file that an import takes before it; empty if there is none."""
    stem = path[: -len(".py")]
    if not path.endswith(".py") or not os.path.isdir(stem):  # nearly always; no folder is listed
        return ""
    return f"{os.path.basename(stem)}/" if any(name.startswith("__init__.") for name in metadata.names(stem)) else ""


def _extension(path: str) -> str:
    """Return the extension module beside a `.py` file that an import by our Python takes before it; or empty."""
    import _imp

    if not path.endswith(".py"):
        return ""
    others = (path[: -len(".py")] + suffix for suffix in _imp.extension_suffixes())
    return next((os.path.basename(other) for other in others if os.path.exists(other)), "")


def _folder(installation: Installation, file: str) -> str:
    """Return where the package's folder is by name; it may be a link, and the package be elsewhere."""
    return os.path.join(installation.root, *file.split("/")[: _depth(installation.upstream)])


def _is_strange(installation: Installation, content: str, status: os.stat_result) -> bool:
    """Return whether a file is outside of what the user named, and neither theirs nor ours nor the superuser's."""
    root = os.path.realpath(installation.root)
    ours = (0, os.geteuid(), os.stat(root).st_uid)
    return not content.startswith(os.path.join(root, "")) and status.st_uid not in ours


def observe_target(path: str, data: bytes, target: Target, table: ShapeTable) -> Observation:
    """Return what a file with these bytes contains of a target. Reads nothing."""
    files = table.of_files(target.fix)
    return _exact(path, data, target, files) if target.exact else observe_bytes(path, data, target.function, files)


def observe_bytes(path: str, data: bytes, function: str, files: Mapping[str, Mapping[str, str | None]]) -> Observation:
    """Return what a file with these bytes contains. Reads nothing.

    ``files`` holds the shapes of the files on record, as ``ShapeTable.files`` does for each fix.
    """
    sha256 = hashlib.sha256(data).hexdigest()
    recorded = files.get(sha256, {})
    if function in recorded:
        return Observation(path, data, sha256, recorded[function], on_record=True)

    from unhang.shapes import rebound, shape  # they import ast, and a file on record is not parsed

    if not shape.mentions(data, function) and not rebound.may_bind(data, function):
        return Observation(path, data, sha256)
    try:
        return _parsed(path, data, sha256, function)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return _broken(path, data, sha256, error)


def _exact(path: str, data: bytes, target: Target, files: Mapping[str, Mapping[str, str | None]]) -> Observation:
    """Return what a file contains of a target of a diff: a function, or lines in one of their two states."""
    sha256 = hashlib.sha256(data).hexdigest()
    recorded = files.get(sha256, {})
    if target.function in recorded:
        return Observation(path, data, sha256, recorded[target.function], on_record=True)

    from unhang.shapes import rebound, shape

    try:
        if target.text:
            return Observation(path, data, sha256, edits(target).shape(shape.text(data, target.file)[1], target))
        tree = _tree(data)
        found, names = shape.find(tree, target.function), shape.bound_names(tree)
        if len(found) > 1:
            return _twice(path, data, sha256, found, names)
        if found and (lines := rebound.lines(tree, target.function)):
            return _again(path, data, sha256, rebound.Again(rebound.REBOUND, lines))
        return Observation(path, data, sha256, shape.digest(found[0]) if found else None, names=names)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return _broken(path, data, sha256, error)


def _broken(path: str, data: bytes, sha256: str, error: Exception) -> Observation:
    """Return what is said of a file that does not parse."""
    # ValueError: NUL bytes; RecursionError and MemoryError: nested too deeply
    where = f"line {error.lineno}: " if isinstance(error, SyntaxError) and error.lineno else ""
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    return Observation(path, data, sha256, problem="does-not-parse", detail=f"{where}{message}")


def _parsed(path: str, data: bytes, sha256: str, function: str) -> Observation:
    from unhang.shapes import rebound, shape

    tree = _tree(data)
    names = shape.bound_names(tree)
    found = shape.find(tree, function)
    if len(found) > 1:
        return _twice(path, data, sha256, found, names)
    if not found:
        return Observation(path, data, sha256, detail=rebound.instead(tree, function), names=names)
    if again := rebound.again(tree, function):
        return _again(path, data, sha256, again)
    return Observation(path, data, sha256, shape.digest(found[0]), names=names)


def _twice(path: str, data: bytes, sha256: str, found: Sequence[Function], names: frozenset[str]) -> Observation:
    """Return what is said of a function that its file defines several times."""
    lines = ", ".join(str(node.lineno) for node in found)
    return Observation(path, data, sha256, problem="defined-twice", detail=f"on lines {lines}", names=names)


def depended(target: Target, seen: Observation, there: Observation) -> Observation:
    """Return what is seen of the function that a target depends on: a problem if the target's file has another one.

    ``seen`` is the target, ``there`` the other function in its own file.
    """
    other = target.depends_on
    if seen.on_record or seen.data is None or other is None or other.file == target.file:
        return there

    from unhang.shapes import rebound  # it imports ast, which `check` of a release does not need

    if not (bound := rebound.elsewhere(_tree(seen.data), other.function.partition(".")[0], other.file)):
        return there
    detail = f"on line {', '.join(map(str, bound))} of {target.file}"
    return there._replace(shape=None, on_record=False, problem=rebound.REBOUND, detail=detail)


@lru_cache(4)
def _tree(data: bytes) -> ast.Module:
    """Return the AST of a file, which nobody changes: several functions are in one file."""
    from unhang.shapes import shape

    return shape.parse(data)


def _again(path: str, data: bytes, sha256: str, again: Again) -> Observation:
    """Return what is said of a function whose name its file binds, or may bind, again."""
    lines = ", ".join(map(str, again.lines))
    where = f"on line{'s' if len(again.lines) > 1 else ''} {lines}"
    return Observation(path, data, sha256, problem=again.code, detail=where)


def file_of(installation: Installation, file: str) -> str:
    """Return the path of an upstream's file in this installation, wherever its package's folder is."""
    return os.path.join(installation.package_dir, *below_package(installation.upstream, file))


def _depth(upstream: str) -> int:
    """Return how many folders below the import path an upstream's package is: 2 for ``a/b``."""
    found = packs.upstreams().get(upstream)
    return len(found.parts) if found else 1


def below_package(upstream: str, file: str) -> list[str]:
    """Return the parts of an upstream's file below its package's folder."""
    return file.split("/")[_depth(upstream) :]


def _parts(upstream: str) -> list[str]:
    found = packs.upstreams().get(upstream)
    return found.parts if found else [upstream]


def package_of(target: Target) -> list[str]:
    """Return the parts of the path from the import path to the folder of the package that contains a target."""
    return target.file.split("/")[: _depth(target.upstream)]
