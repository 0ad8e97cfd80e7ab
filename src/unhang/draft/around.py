"""What a diff does around its edits: comments, blank lines and docstrings, which no shape has. Pure.

An edit takes them in where the file, after the edit, has others than the diff gives.
"""

from __future__ import annotations

import ast
import difflib
import io
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from unhang.codemods import exact
from unhang.codemods.exact import ADDED, AFTER, BEFORE, HEADER, REPLACED, WRAPPED, Exact, Lines, Swap
from unhang.draft import replacements
from unhang.draft.replacements import Source
from unhang.shapes import binding, shape
from unhang.shapes.catalog import Target


class _Row(NamedTuple):
    """A line of the file after the edits."""

    text: str
    edit: int | None = None
    """The edit that gives it."""
    line: int = 0
    """Its number in the file before, if no edit gives it."""


class _Code(NamedTuple):
    """A line that has code."""

    row: _Row
    line: int
    """Its number."""
    above: tuple[str, ...]
    """The lines without code between it and the one before."""


class _Both(NamedTuple):
    """The file before, as the edits leave it, and as the whole diff gives it."""

    before: Source
    now: Sequence[_Code]
    wanted: Sequence[_Code]
    there: Mapping[int, int]
    """Which line of code of ``now`` is which of ``wanted``; -1 is the start of both."""
    after: Source

    def is_next(self, at: int) -> bool:
        """Return whether a line of code follows the same one in both."""
        return self.there.get(at, -2) - 1 == self.there.get(at - 1)

    def old(self, first: int, last: int, margin: int) -> str:
        """Return lines of the file before."""
        return replacements.lines(self.before, first, last, margin)


class _Around(NamedTuple):
    """What is above and below the statements of an edit, in the file and in the diff, where these differ."""

    lead: Sequence[str]
    new_lead: Sequence[str]
    trail: Sequence[str]
    new_trail: Sequence[str]


def widened(swaps: Sequence[Swap], before: Source, target: Target, after: Source) -> tuple[Swap, ...]:
    """Return the edits of a target, with what is around them in the diff, as far as that can be told.

    ``before`` is the file that they are for, ``after`` the file that the whole diff gives.
    """
    tree = before.function
    assert isinstance(tree, ast.Module)
    edits = [Exact(swap).plan(tree, target, before.rows)[0] for swap in swaps]
    now, wanted = _code(_edited(before.rows, edits)), _code([_Row(text) for text in after.rows])
    both = _Both(before, now, wanted, _aligned(now, wanted), after)
    done = [_widened(number, swap, edit, both) for number, (swap, edit) in enumerate(zip(swaps, edits))]
    return (*done, *_alone(target, swaps, both))


def _widened(number: int, swap: Swap, edit: Lines, both: _Both) -> Swap:
    there, wanted = both.there, both.wanted
    mine = [at for at, it in enumerate(both.now) if it.row.edit == number]
    if swap.how not in (REPLACED, WRAPPED, BEFORE, AFTER, ADDED) or any(at not in there for at in mine):
        return swap
    if not mine:
        return _removal(swap, edit, both)
    first, last = there[mine[0]], there[mine[-1]]
    old_lead, old_trail = _trivia(both.before, edit)
    lead = wanted[first].above if both.is_next(mine[0]) else old_lead
    own = [row for row in edit.rows if not _is_mark(row)][both.now[mine[-1]].line - both.now[mine[0]].line + 1 :]
    trail = wanted[last + 1].above if both.is_next(mine[-1] + 1) else [*own, *old_trail]
    around = _different(old_lead, lead, old_trail, trail)
    if not any(around):
        return swap
    lines = wanted[first].line - len(around.new_lead), wanted[last].line + len(around.new_trail)
    new = replacements.lines(both.after, *lines, len(exact.margin(both.after.rows, wanted[first].line)))
    return _with(swap, edit, around, new, both)


def _edited(rows: Sequence[str], edits: Sequence[Lines]) -> list[_Row]:
    """Return the lines after edits, without their marks."""
    found, at = [], 1
    for number, edit in sorted(enumerate(edits), key=lambda it: (it[1].first, it[1].last)):
        found += [_Row(rows[line - 1], None, line) for line in range(at, edit.first)]
        found += [_Row(text, number, edit.first) for text in edit.rows if not _is_mark(text)]
        at = edit.last + 1
    return [*found, *(_Row(rows[line - 1], None, line) for line in range(at, len(rows) + 1))]


def _is_mark(row: str) -> bool:
    return row.lstrip().startswith("# unhang ")


def without_code(rows: Sequence[str]) -> set[int]:
    """Return those lines of a file that are blank, a comment, or a string that is a statement."""
    text = "\n".join(rows)
    inside = exact.inner_lines(text)
    tree = shape.parse(text)
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and binding.is_text(node)]
    plain = {at for at, row in enumerate(rows, 1) if at not in inside and (not row.strip() or row.lstrip()[0] == "#")}
    return plain | {line for node in nodes for line in range(node.lineno, exact.end(node) + 1)}


def _code(rows: Sequence[_Row]) -> list[_Code]:
    bare, found, above = without_code([row.text for row in rows]), [], []
    for line, row in enumerate(rows, 1):
        if line in bare and line < len(rows):  # the last one is the end of the file
            above += [] if _is_mark(row.text) else [row.text]
        else:
            found.append(_Code(row, line, tuple(above)))
            above = []
    return found


def _aligned(now: Sequence[_Code], wanted: Sequence[_Code]) -> dict[int, int]:
    """Return which line of the file after the edits is which of those that the diff gives."""
    one, other = (_without_comments([it.row.text for it in items]) for items in (now, wanted))
    blocks = difflib.SequenceMatcher(None, one, other, autojunk=False).get_matching_blocks()
    return {-1: -1} | {first + at: second + at for first, second, size in blocks for at in range(size)}


def _without_comments(rows: Sequence[str]) -> list[str]:
    """Return lines of code without the comments at their ends: where one differs, it is the same line."""
    found = list(rows)
    with suppress(tokenize.TokenError, SyntaxError):
        for token in tokenize.generate_tokens(io.StringIO("\n".join(rows)).readline):
            if token.type == tokenize.COMMENT:
                found[token.start[0] - 1] = rows[token.start[0] - 1][: token.start[1]].rstrip()
    return found


def _trivia(before: Source, edit: Lines) -> tuple[list[str], list[str]]:
    """Return the lines without code above and below an edit."""
    bare = without_code(before.rows)
    first, last = edit.first, edit.last
    while first - 1 in bare:
        first -= 1
    while last + 1 in bare and last + 1 < len(before.rows):
        last += 1
    return list(before.rows[first - 1 : edit.first - 1]), list(before.rows[edit.last : last])


def _different(lead: Sequence[str], new_lead: Sequence[str], trail: Sequence[str], new_trail: Sequence[str]) -> _Around:
    """Leave out what is alike far from the edit, and what another edit of ours has brought there."""
    if any(map(_is_mark, lead)):
        lead, new_lead = (), ()
    if mark := next((at for at, row in enumerate(trail, 1) if _is_mark(row)), 0):
        theirs = [row for row in trail[mark:] if not _is_mark(row)]
        is_known = list(new_trail[len(new_trail) - len(theirs) :]) == theirs
        trail = trail[: mark - 1] if is_known else ()
        new_trail = new_trail[: len(new_trail) - len(theirs)] if is_known else ()
    top = _alike(lead, new_lead)
    end = _alike(trail[::-1], new_trail[::-1])
    return _Around(lead[top:], new_lead[top:], trail[: len(trail) - end], new_trail[: len(new_trail) - end])


def _alike(one: Sequence[str], other: Sequence[str]) -> int:
    """Return with how many equal lines two texts begin; it does not end inside of a docstring."""
    size = next((at for at, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))
    while sum(row.count('"""') + row.count("'''") for row in one[:size]) % 2:
        size -= 1
    return size


def _with(swap: Swap, edit: Lines, around: _Around, new: str, both: _Both) -> Swap:
    """Return an edit that takes in what is around it."""
    first, last = edit.first - len(around.lead), edit.last + len(around.trail)
    if swap.how in (REPLACED, WRAPPED):
        return Swap(swap.how, both.old(first, last, len(exact.margin(both.before.rows, edit.first))), new)
    space = len(next((row for row in edit.rows if row.strip()), "")) - len(_first(edit.rows))
    lead, trail = both.old(first, edit.first - 1, space), both.old(edit.last + 1, last, space)
    return Swap(swap.how, f"{lead}{swap.old}{trail}", new)


def _first(rows: Sequence[str]) -> str:
    return next((row.lstrip() for row in rows if row.strip()), "")


def _removal(swap: Swap, edit: Lines, both: _Both) -> Swap:
    """Return a removal with what becomes of the lines around it."""
    after = next((at for at, it in enumerate(both.now) if it.row.edit is None and it.row.line > edit.last), -1)
    if not both.is_next(after):
        return swap
    lead, trail = _trivia(both.before, edit)
    item = both.wanted[both.there[after]]
    if any(map(_is_mark, (*lead, *trail))):
        return swap
    top = _alike(lead, item.above)
    end = _alike(trail[::-1], item.above[top:][::-1])
    lines = item.line - len(item.above) + top, item.line - 1 - end
    new = replacements.lines(both.after, *lines, len(exact.margin(both.before.rows, edit.first)))
    return _with(swap, edit, _Around(lead[top:], [], trail[: len(trail) - end], []), new, both)


def _alone(target: Target, swaps: Sequence[Swap], both: _Both) -> Iterator[Swap]:
    """Yield the changes of comments and docstrings that are beside none of the edits of a function or class."""
    assert isinstance(both.before.function, ast.Module)
    nodes = binding.statements(both.before.function, target.function) or []
    if len(nodes) != 1 or not hasattr(nodes[0], "body"):
        return
    starts = {exact.above(it): it for it in ast.walk(nodes[0]) if isinstance(it, ast.stmt) and it is not nodes[0]}
    edits = {at for at, it in enumerate(both.now) if it.row.edit is not None and swaps[it.row.edit].how != HEADER}
    for at, item in enumerate(both.now):
        node = starts.get(item.row.line)
        if node is None or not edits.isdisjoint((at, at - 1)) or not both.is_next(at):
            continue
        new = both.wanted[both.there[at]]
        around = _different(item.above, new.above, [], [])
        if any(around) and replacements.is_alone(node, ast.Module(nodes, [])):
            margin = len(exact.margin(both.before.rows, item.row.line))
            old = both.old(item.row.line - len(around.lead), item.row.line - 1, margin)
            text = replacements.lines(both.after, new.line - len(around.new_lead), new.line - 1, margin)
            yield Swap(BEFORE, old + replacements.beginning(node), text)
