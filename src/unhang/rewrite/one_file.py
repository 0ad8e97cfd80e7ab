"""One file rewritten in memory: decoded, changed function by function, compiled whole, and held against the record."""

from __future__ import annotations

import io
import tokenize
import warnings
from collections.abc import Sequence
from typing import NamedTuple

from unhang.errors import UnhangError
from unhang.judge.decide import codemod
from unhang.shapes import excerpt, shape
from unhang.shapes.catalog import Target


class Step(NamedTuple):
    """One function to rewrite. ``result`` is the shape on record for its result; None to go by the post-condition."""

    target: Target
    result: str | None
    known: str | None = None
    """The function's shape, where the file itself is on record: then it defines it once, and binds what is needed."""


class Rewritten(NamedTuple):
    """A file's new bytes, and each step's shapes, before and after."""

    data: bytes
    shapes: tuple[tuple[str, str], ...]


class RewriteError(Exception):
    """A rewrite that does not hold: the file is to be left alone. ``target`` says where, the message why."""

    def __init__(self, target: Target, message: str) -> None:
        super().__init__(message)
        self.target = target


def rewrite(data: bytes, steps: Sequence[Step]) -> Rewritten:
    """The file with every step done, every byte that no step touches kept. Pure.

    Raises RewriteError where an anchor is missing, the result does not compile, has another shape than the one on
    record, or (without one) does not hold its post-condition or is not stable under a second pass; UnhangError
    ``no-libcst`` where LibCST cannot be loaded.
    """
    seen = []
    for step in steps:
        data, before, after = _one(data, step)
        seen.append((before, after))
    return Rewritten(data, tuple(seen))


def _one(data: bytes, step: Step) -> tuple[bytes, str, str]:
    try:
        from unhang.codemods import splice  # here: it imports LibCST
    except ImportError as error:
        hint = "reinstall unhang, or run it from an environment of its own, with `--python` or `--target` for this one"
        raise UnhangError("no-libcst", f"LibCST, which rewrites, cannot be loaded: {error}", hint=hint) from error
    from unhang.codemods.base import AnchorError

    target = step.target
    change = codemod(target)
    encoding, text = _decoded(data, target)
    rows = splice.lines(text)
    function = excerpt.find(rows, target.function, step.known) if step.known else None
    before = step.known
    if function is None or before is None:
        function = _parsed(data, target)
        before = shape.digest(function)
    try:
        edits = change.plan(function) if step.result else change.edits(function)
        now = splice.apply(rows, edits, _unit(rows, function))
        new = "".join(now).encode(encoding)
    except AnchorError as error:
        raise RewriteError(target, f"the rewrite's anchor is missing ({error})") from error
    except Exception as error:  # LibCST has no one class for what it cannot parse or what is not the node expected
        raise RewriteError(target, f"the rewrite cannot be carried out: {error}") from error
    _compile(new, target)
    try:
        function = _again(now, function, len(rows))
    except (SyntaxError, ValueError, TypeError) as error:
        raise RewriteError(target, f"the result does not stand apart from the code around it: {error}") from error
    after = shape.digest(function)
    if step.result is not None:
        if after != step.result:
            raise RewriteError(target, f"the result has shape {after}, not {step.result} as on record")
    elif not change.holds(function):
        raise RewriteError(target, "the result does not hold its post-condition")
    elif change.edits(function):
        raise RewriteError(target, "a second pass would change the result again")
    return new, before, after


def _parsed(data: bytes, target: Target) -> shape.Function:
    """The one function in the file; RewriteError unless the file binds the names that the rewrite of it uses."""
    try:
        tree = shape.parse(data)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise RewriteError(target, f"the file does not parse: {error}") from error
    found = shape.find(tree, target.function)
    if len(found) != 1:
        raise RewriteError(target, f"{target.function} is defined {len(found)} times")
    missing = sorted(codemod(target).names(found[0]) - shape.bound_names(tree))
    if missing:
        raise RewriteError(target, f"the file does not define or import {', '.join(missing)}")
    return found[0]


def _again(now: list[str], function: shape.Function, lines_before: int) -> shape.Function:
    """The function as it is now: only its own lines are parsed, for no others have changed."""
    first = min(node.lineno for node in (function, *function.decorator_list))
    return shape.parse_lines(now[first - 1 : (function.end_lineno or 0) + len(now) - lines_before], first)


def _compile(data: bytes, target: Target) -> None:
    """Compile the whole module: what parses may still be no program (a `return` outside of a function)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of upstream's own code, as in `shape.parse`
            compile(data, target.file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise RewriteError(target, f"the result does not compile: {error}") from error


def _decoded(data: bytes, target: Target) -> tuple[str, str]:
    """Encoding and text of a file, its line ends as they are; a BOM stays a part of the encoding."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        text = data.decode(encoding)
        survives = text.encode(encoding) == data
    except (SyntaxError, ValueError) as error:  # Python lets a comment be no text at all
        raise RewriteError(target, f"the file is not text in its own encoding: {error}") from error
    if not survives:
        raise RewriteError(target, f"the file does not survive decoding and encoding as {encoding}")
    return encoding, text


def _unit(rows: list[str], function: shape.Function) -> str:
    """One level of the file's indentation, as the function itself has it."""
    outer, inner = (_indentation(rows[node.lineno - 1]) for node in (function, function.body[0]))
    return inner[len(outer) :]


def _indentation(row: str) -> str:
    return row[: len(row) - len(row.lstrip())]
