"""How one function becomes another: statements that replace statements, as text that a codemod can carry."""

from __future__ import annotations

import ast
import builtins
import difflib
from collections.abc import Iterator, Sequence
from copy import copy
from typing import NamedTuple

from unhang.codemods.base import AnchorError, bound, places
from unhang.codemods.exact import inner_lines
from unhang.shapes.outline import header
from unhang.shapes.shape import Function, digest, has_docstring

Block = Sequence[ast.stmt]


INSTEAD, BEFORE, AFTER = "replacing", "before", "after"
"""What ``codemods.base`` calls the edits."""


class Replacement(NamedTuple):
    """Statements of a function, which occur in it once, and those that take their place or are added beside them."""

    old: str
    """For an addition, how the one statement begins: its blocks are ``...``."""
    new: str
    edit: str = INSTEAD


class Source(NamedTuple):
    """A function, and the lines of the file that it is in."""

    function: Function | ast.Module
    rows: Sequence[str]


class _Segment(NamedTuple):
    """Statements ``first`` to ``last`` (exclusive) of a block, and those that stand there afterwards."""

    first: int
    last: int
    new_first: int
    new_last: int
    change: str
    """``none``, ``inside`` (the block of one statement changes), ``all``."""

    def __add__(self, following: object) -> _Segment:
        """Return the change of this segment and the following one as a whole."""
        assert isinstance(following, _Segment)
        return _Segment(self.first, following.last, self.new_first, following.new_last, "all")


class HeaderError(Exception):
    """The signature or a decorator changes: no codemod edits that."""


def replacements(before: Source, after: Source) -> list[Replacement]:
    """Return the replacements that turn one function into the other, in line order.

    Each ``old`` occurs once in the function as it was: where the changed statements do not, it takes in their
    neighbours. Statements that are only added are added beside a neighbour that begins like no other. Raises
    HeaderError; AnchorError if a whole block occurs more than once.
    """
    if digest(header(before.function)) != digest(header(after.function)):
        raise HeaderError
    return between(before, body(before.function), after, body(after.function))


def between(before: Source, block: Block, after: Source, new_block: Block) -> list[Replacement]:
    """Return the replacements that turn a block of the function as it was into another one; all else is the same."""
    return [
        Replacement(beginning(old[0]) if edit != INSTEAD else text(before, old), text(after, new), edit)
        for old, new, edit in _changed(before.function, block, new_block)
    ]


def used_globals(function: Function, replaced: Sequence[Replacement]) -> list[str]:
    """Return the global names, without builtins, that the new statements of a function use, in alphabetical order."""
    new = [node for item in replaced for node in ast.walk(ast.parse(item.new))]
    used = {node.id for node in new if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    arguments = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    return sorted(used - bound(*function.body) - arguments - set(dir(builtins)))


def _changed(function: Function | ast.Module, before: Block, after: Block) -> Iterator[tuple[Block, Block, str]]:
    """Yield each run of statements of a block, or of the blocks nested in it, with what becomes of it."""
    segments = list(_segments(before, after))
    at = 0
    while at < len(segments):
        item = segments[at]
        old, new = before[item.first : item.last], after[item.new_first : item.new_last]
        if item.change != "all" or _occurs_once(function, old, new) or _beside(function, before, segments, at):
            at += 1
        elif len(segments) == 1:
            raise AnchorError("a block that differs from all others of the function", 2)
        else:
            at -= _is_shorter_above(before, segments, at)
            segments[at : at + 2] = [segments[at] + segments[at + 1]]
            at = 0  # a neighbour beside which something is added may be gone
    for at, item in enumerate(segments):
        old, new = before[item.first : item.last], after[item.new_first : item.new_last]
        if item.change == "all":
            neighbour, edit = _beside(function, before, segments, at) or (None, INSTEAD)
            yield old if neighbour is None else [neighbour], new, edit
        elif item.change == "inside":
            arms = zip(_arms(old[0]), _arms(new[0]))
            try:
                yield from [it for inner, new_inner in arms for it in _changed(function, inner, new_inner)]
            except AnchorError:
                if not _occurs_once(function, old, new):
                    raise
                yield old, new, INSTEAD


def _beside(
    function: Function | ast.Module, before: Block, segments: Sequence[_Segment], at: int
) -> tuple[ast.stmt, str] | None:
    """Return beside which statement a segment is added, and how; None if it is no addition, or if none will do.

    The statement stays as it is, begins like no other, and has nothing else added beside it.
    """
    if segments[at].first != segments[at].last:
        return None
    for number, edit in (at + 1, BEFORE), (at - 1, AFTER):
        is_free = edit == BEFORE or at < 2 or segments[at - 2].first != segments[at - 2].last
        if 0 <= number < len(segments) and segments[number].change == "none" and is_free:
            node = before[segments[number].first]
            if is_alone(node, function):
                return node, edit
    return None


def is_alone(node: ast.stmt, function: Function | ast.Module) -> bool:
    """Return whether a statement begins like no other, and a template can say how."""
    heads = [digest(header(it)) for it in ast.walk(function) if isinstance(it, ast.stmt)]
    return heads.count(digest(header(node))) == 1 and _begins_so(node)


def _begins_so(node: ast.stmt) -> bool:
    """Return whether a template can say how a statement begins: not so for a ``match``, which has no body."""
    try:
        (again,) = ast.parse(beginning(node)).body
    except SyntaxError:
        return False
    return digest(header(again)) == digest(header(node))


def beginning(node: ast.stmt) -> str:
    """Return how a statement begins, with ``...`` for its body."""
    short, rest = copy(header(node)), [ast.Expr(ast.Constant(...))]
    for field in "body", "finalbody" if isinstance(node, ast.Try) else "body":
        if hasattr(short, field):
            setattr(short, field, rest)
    return f"{ast.unparse(ast.fix_missing_locations(short))}\n"


def _is_shorter_above(before: Block, segments: Sequence[_Segment], at: int) -> bool:
    """Return whether the segment above has fewer lines than the one below, or is the only one."""

    def lines(segment: _Segment) -> int:
        block = before[segment.first : segment.last]
        return (block[-1].end_lineno or 0) - block[0].lineno if block else 0

    return at > 0 and (at + 1 == len(segments) or lines(segments[at - 1]) <= lines(segments[at + 1]))


def _segments(before: Block, after: Block) -> Iterator[_Segment]:
    """Yield the segments of two blocks, in order; statements are aligned by what they are without nested blocks."""
    heads, new_heads = ([digest(header(node)) for node in block] for block in (before, after))
    for tag, *numbers in difflib.SequenceMatcher(None, heads, new_heads, autojunk=False).get_opcodes():
        first, last, new_first, new_last = numbers
        if tag != "equal":
            yield _Segment(first, last, new_first, new_last, "all")
            continue
        for index, new_index in zip(range(first, last), range(new_first, new_last)):
            node, new = before[index], after[new_index]
            change = "none" if digest(node) == digest(new) else "inside" if _has_same_arms(node, new) else "all"
            yield _Segment(index, index + 1, new_index, new_index + 1, change)


def _has_same_arms(node: ast.stmt, other: ast.stmt) -> bool:
    """Return whether two statements that start alike differ inside their blocks only."""
    arms, others = _arms(node), _arms(other)
    return [bool(arm) for arm in arms] == [bool(arm) for arm in others] and _clauses(node) == _clauses(other)


def _arms(node: ast.stmt) -> list[Block]:
    """Return the blocks of a statement; those of an ``elif`` are its own, for nothing can replace an ``elif`` alone."""
    orelse: Block = getattr(node, "orelse", [])
    chained = _is_elif(node, orelse)
    clauses = [*getattr(node, "handlers", []), *getattr(node, "cases", [])]
    blocks = [body(node), *(clause.body for clause in clauses)]
    return [*blocks, *(_arms(orelse[0]) if chained else [orelse]), getattr(node, "finalbody", [])]


def _clauses(node: ast.stmt) -> list[str]:
    """Return the ``except``, ``case`` and ``elif`` lines of a statement, as digests."""
    orelse: Block = getattr(node, "orelse", [])
    found = [digest(header(clause)) for clause in (*getattr(node, "handlers", []), *getattr(node, "cases", []))]
    return [*found, "elif", digest(header(orelse[0])), *_clauses(orelse[0])] if _is_elif(node, orelse) else found


def _is_elif(node: ast.stmt, orelse: Block) -> bool:
    return len(orelse) == 1 and isinstance(orelse[0], ast.If) and orelse[0].col_offset == node.col_offset


def _occurs_once(function: Function | ast.Module, old: Block, new: Block) -> bool:
    shapes, new_shapes = ([digest(node) for node in block] for block in (old, new))
    return bool(old and new) and len(places(function, shapes, new_shapes)) == 1


def body(node: ast.stmt | ast.Module) -> Block:
    """Return the body of a statement without its docstring, which is none of a codemod's statements."""
    found: Block = getattr(node, "body", [])
    return found[1:] if has_docstring(node) else found


def text(source: Source, block: Block) -> str:
    """Return the source of consecutive statements, from the margin on, with the comments between them."""
    if not block:
        return ""
    return lines(source, above(block[0]), end(block[-1]), block[0].col_offset)


def lines(source: Source, first: int, last: int, margin: int) -> str:
    """Return lines of the source without their margin; those that begin inside of a string stay as they are."""
    rows = source.rows[first - 1 : last]
    inside = inner_lines("".join(f"{row}\n" for row in rows))
    return "".join(
        f"{row if number in inside else row[margin:] if not row[:margin].strip() else row.lstrip()}\n"
        for number, row in enumerate(rows, 1)
    )


def above(node: ast.AST) -> int:
    """Return the first line of a statement, its decorators included."""
    lines = [it.lineno for it in (node, *getattr(node, "decorator_list", ())) if isinstance(it, (ast.stmt, ast.expr))]
    return min(lines)


def end(node: ast.stmt) -> int:
    """Return the last line of a statement."""
    return node.end_lineno or node.lineno
