"""One file rewritten in memory: decoded, changed function by function, compiled whole, checked against the record."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from unhang.errors import UnhangError, told
from unhang.judge import recorded
from unhang.judge.decide import codemod
from unhang.plugins import parameters
from unhang.shapes import excerpt, shape
from unhang.shapes.catalog import Target

if TYPE_CHECKING:
    from unhang.codemods.base import Codemod
    from unhang.codemods.exact import Exact


class Step(NamedTuple):
    """One function to rewrite."""

    target: Target
    result: str | None
    """The shape that the result must have, as it is on record or was accepted; None to find out."""
    known: str | None = None
    """The function's shape, if the file itself is on record: it then defines it once, and binds the needed names."""


class Rewritten(NamedTuple):
    """A file's new bytes, and the shapes before and after each step."""

    data: bytes
    shapes: tuple[tuple[str, str], ...]


class RewriteError(Exception):
    """A rewrite that fails a check: ``target`` says where, the message why. The file must be left alone."""

    def __init__(self, target: Target, message: str) -> None:
        super().__init__(message)
        self.target = target


def rewrite(data: bytes, steps: Sequence[Step]) -> Rewritten:
    """Return the file after every step; each byte that no step changes stays as it is. Reads and writes nothing.

    Raises RewriteError if an anchor does not match, if the result does not compile or has another shape than it must
    have, or if a second pass would change it again.
    Raises UnhangError ``no-libcst`` if LibCST cannot be imported.
    """
    shapes = []
    for step in steps:
        try:
            data, before, after = _one(data, step)
        except (RewriteError, UnhangError, KeyboardInterrupt):
            raise
        except RecursionError as error:
            raise RewriteError(step.target, "the code is nested too deeply") from error
        except BaseException as error:  # LibCST has no common class for its errors, and a codemod may raise anything
            raise RewriteError(step.target, f"the rewrite cannot be carried out: {told(error)}") from error
        shapes.append((before, after))
    return Rewritten(data, tuple(shapes))


def _one(data: bytes, step: Step) -> tuple[bytes, str, str]:
    """Return the file after one step, and the function's shape before and after."""
    try:
        from unhang.codemods import splice  # it imports LibCST
    except ImportError as error:
        hint = "reinstall unhang, or run it from an environment of its own, with `--python` or `--target` for this one"
        raise UnhangError("no-libcst", f"LibCST, which rewrites, cannot be loaded: {error}", hint=hint) from error
    from unhang.codemods.base import AnchorError

    target = step.target
    if target.exact:
        try:
            return exactly(data, target, recorded.edits(target), step.result)
        except parameters.Refused as error:
            raise RewriteError(target, str(error)) from error
    change = codemod(target)
    encoding, text = _decoded(data, target)
    rows = splice.lines(text)
    function = excerpt.find(rows, target.function, step.known) if step.known else None
    before = step.known
    if function is None or before is None:
        function = _parsed(data, target)
        before = shape.digest(function)
    try:
        edits = change.plan(function)
        new_rows = splice.apply(rows, edits, unit_of(rows, function))
        new = _encoded("".join(new_rows), encoding, target)
    except AnchorError as error:
        raise RewriteError(target, f"the rewrite's anchor is missing or not unique ({error})") from error
    _compile(new, target)
    try:
        result, after = parsed_again(new_rows, function, len(rows))
    except (SyntaxError, ValueError, TypeError) as error:
        raise RewriteError(target, f"the result cannot be separated from the code around it: {error}") from error
    if step.result is not None and after != step.result:
        raise RewriteError(target, f"the result has shape {after}, but {step.result} is on record")
    if not _refuses(change, result):
        raise RewriteError(target, "a second pass would change the result again")
    return new, before, after


def exactly(data: bytes, target: Target, change: Exact, result: str | None = None) -> tuple[bytes, str, str]:
    """Return a file after the edits of a diff, and the shape of their target before and after.

    A target that has the shape ``result`` already stays as it is. Raises RewriteError as ``rewrite`` does.
    """
    from unhang.codemods.base import AnchorError

    encoding, text = _decoded(data, target)
    before = shape_of(text, target, change)
    if result is not None and before == result:
        return data, result, result
    is_module = target.file.endswith(".py")
    tree = _tree(data, target) if change.uses else None
    missing = sorted(change.uses - shape.bound_names(tree)) if tree else ()
    if missing:
        raise RewriteError(target, f"the file does not define or import {', '.join(missing)}")
    try:
        plain = change.edited(text, target, "")
        marked = change.edited(text, target, f"# unhang {target.fix}: unproved") if is_module else plain
    except AnchorError as error:
        raise RewriteError(target, f"the diff's lines are missing or not unique ({error})") from error
    after = shape_of(plain, target, change)
    if before is None or after is None or before == after or (result is not None and after != result):
        raise RewriteError(target, f"the result has shape {after}, but {result or 'another'} is on record")
    new = _encoded(marked if _is_same(marked, plain) else plain, encoding, target)
    if is_module and not is_newer(new):
        _compile(new, target)
    return new, before, after


def shape_of(text: str, target: Target, change: Exact) -> str | None:
    """Return the shape of a target of a diff's edits in a file; None if it is there in several places, or in none."""
    if target.text:
        return change.shape(text, target)
    try:
        found = shape.find(shape.parse(text), target.function)
    except (SyntaxError, ValueError, RecursionError):
        return None
    return shape.digest(found[0]) if len(found) == 1 else None


def _is_same(marked: str, plain: str) -> bool:
    """Return whether comments have changed nothing of a module."""
    with suppress(SyntaxError, ValueError, RecursionError):
        return ast.dump(shape.parse(marked)) == ast.dump(shape.parse(plain))
    return False


def is_newer(data: bytes) -> bool:
    """Return whether a module has syntax that is newer than our own Python, and that LibCST reads."""
    try:
        shape.parse(data)
    except (SyntaxError, ValueError, RecursionError):
        import libcst as cst

        with suppress(cst.ParserSyntaxError, UnicodeDecodeError):
            cst.parse_module(data)
            return True
    return False


def _tree(data: bytes, target: Target) -> ast.Module:
    try:
        return shape.parse(data)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise RewriteError(target, f"the file does not parse: {error}") from error


def _refuses(change: Codemod, function: shape.Function) -> bool:
    """Return whether the codemod finds nothing to do in its own output."""
    from unhang.codemods.base import AnchorError

    try:
        change.plan(function)
    except AnchorError:
        return True
    return False


def _parsed(data: bytes, target: Target) -> shape.Function:
    """Return the function. Raises RewriteError unless the file defines it once, and binds the names needed."""
    tree = _tree(data, target)
    found = shape.find(tree, target.function)
    if len(found) != 1:
        raise RewriteError(target, f"{target.function} is defined {len(found)} times")
    missing = sorted(codemod(target).names(found[0]) - shape.bound_names(tree))
    if missing:
        raise RewriteError(target, f"the file does not define or import {', '.join(missing)}")
    return found[0]


def parsed_again(rows: list[str], function: shape.Function, lines_before: int) -> tuple[shape.Function, str]:
    """Return the rewritten function of a file that had so many lines, and its shape.

    Only its own lines are parsed, as no others changed.

    Raises SyntaxError, ValueError or TypeError if its lines are not one function any more.
    """
    first = min(node.lineno for node in (function, *function.decorator_list))
    return excerpt.parsed("".join(rows[first - 1 : (function.end_lineno or 0) + len(rows) - lines_before]), first)


def _compile(data: bytes, target: Target) -> None:
    """Compile the whole module: code that parses can still be invalid (a `return` outside a function)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are about upstream's code
            compile(data, target.file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise RewriteError(target, f"the result does not compile: {error}") from error


def _decoded(data: bytes, target: Target) -> tuple[str, str]:
    """Return a file's encoding and text, as ``shape.text``."""
    try:
        return shape.text(data, target.file)
    except ValueError as error:
        raise RewriteError(target, str(error)) from error


def _encoded(text: str, encoding: str, target: Target) -> bytes:
    """Return a file's new bytes. Raises RewriteError if its encoding lacks a character, or would be another one now."""
    try:
        data = text.encode(encoding)
    except UnicodeEncodeError as error:
        lacking = text[error.start : error.end]
        raise RewriteError(target, f"the file is in {encoding}, which does not have {lacking!r}") from error
    if target.file.endswith(".py") and _decoded(data, target)[0] != encoding:
        raise RewriteError(target, f"the file is in {encoding}, and would no longer say so")
    return data


def unit_of(rows: list[str], function: shape.Function) -> str:
    """Return one level of the file's indentation, as the function itself has it."""
    outer, inner = (_indentation(rows[node.lineno - 1]) for node in (function, function.body[0]))
    return inner[len(outer) :]


def _indentation(row: str) -> str:
    return row[: len(row) - len(row.lstrip())]
