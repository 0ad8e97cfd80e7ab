"""What the codemods share: anchors and edits, on plain ASTs.

A codemod finds its anchors with ``ast`` alone, so that ``unhang check`` can name a missing one without importing
LibCST. The rewrite itself is an :class:`Edit`: a span of whole statements, and a function that changes their LibCST
nodes (see ``unhang.codemods.splice``). That function runs only when a file is rewritten.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function, digest

if TYPE_CHECKING:
    from unhang.codemods.edit import Statements

_Statement = TypeVar("_Statement", bound=ast.stmt)


class AnchorError(Exception):
    """An anchor was not found exactly once. ``anchor`` describes it; it was ``found`` so many times."""

    def __init__(self, anchor: str, found: int = 0) -> None:
        super().__init__(f"found {found} times, expected once: {anchor}" if found else f"not found: {anchor}")


class Codemod:
    """The rewrite of one function. The module of a fix maps qualified function names to these in ``CODEMODS``.

    A codemod says what changes, and no more: whether a shape has the defect, and whether its rewrite is right, is
    found out by running both (``compat/endstates``). Its docstring shows that change on code that is made up, once
    or more, in this form; a test runs it. In what comes after, a line with ``...`` stands for any lines::

        Before::

            def run(job):
                job.start()

        After::

            def run(job):
                job.start()
                job.wait()
    """

    def plan(self, function: Function) -> list[Edit]:
        """Return the edits that apply the fix, in line order.

        Raises AnchorError unless each anchor occurs once; it does so on a function that has our rewrite already.
        """
        raise NotImplementedError

    def names(self, function: Function) -> frozenset[str]:
        """Return the global names that the rewrite of this function uses. Its file must bind all of them."""
        raise NotImplementedError

    def fixed_upstream(self, function: Function) -> bool:
        """Return whether a function of an unlisted shape has upstream's own fix. A short check: when in doubt, no."""
        return False


def once(found: Sequence[_Statement], anchor: str) -> _Statement:
    """Return the only statement in ``found``; raise AnchorError if there is none, or more than one."""
    if len(found) != 1:
        raise AnchorError(anchor, len(found))
    return found[0]


@cache
def _digests(template: str) -> list[str]:
    return [digest(node) for node in ast.parse(template).body]


def matches(nodes: Sequence[ast.AST], template: str) -> bool:
    """Return whether these statements are those of the template, one for one, whatever their layout."""
    return [digest(node) for node in nodes] == _digests(template)


def refuse_own(function: Function, names: Iterable[str]) -> None:
    """Raise AnchorError if the function has a name that only our rewrite adds."""
    for name in sorted(mentioned(function) & set(names)):
        raise AnchorError(f"{function.name} without {name}, which is ours")


def mentioned(*nodes: ast.AST) -> set[str]:
    """Return every identifier and every string in these nodes."""
    found: set[str] = set()
    for node in nodes:
        for inner in ast.walk(node):
            for field in ("id", "attr", "arg", "name", "asname", "value", "names"):
                value = getattr(inner, field, None)
                if isinstance(value, str):
                    found.add(value)
                elif isinstance(value, list):  # of global and nonlocal; the names of an import are nodes
                    found |= {item for item in value if isinstance(item, str)}
    return found


def bound(*nodes: ast.AST) -> set[str]:
    """Return the names that these nodes assign, delete, import or define, also in nested functions."""
    found: set[str] = set()
    for node in nodes:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and not isinstance(inner.ctx, ast.Load):
                found.add(inner.id)
            elif isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                found.add(inner.name)
            elif isinstance(inner, ast.alias):
                found.add((inner.asname or inner.name).partition(".")[0])
            elif isinstance(inner, ast.ExceptHandler) and inner.name:
                found.add(inner.name)
            elif isinstance(inner, (ast.Global, ast.Nonlocal)):
                found.update(inner.names)
            elif isinstance(inner, (ast.MatchAs, ast.MatchStar)) and inner.name:
                found.add(inner.name)
    return found


def expression(node: ast.AST) -> str:
    """Return an expression's code as Python spells it, to compare with a literal. Versions differ: do not store it."""
    return ast.unparse(node)


def runs(node: ast.AST, length: int) -> list[list[ast.stmt]]:
    """Return each run of so many consecutive statements in a block of this node, also in nested blocks."""
    found = []
    for inner in ast.walk(node):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(inner, field, None)
            if isinstance(block, list):
                found += [block[at : at + length] for at in range(len(block) - length + 1)]
    return found


def replacing(function: Function, old: str, new: str) -> Edit:
    """Return the edit that puts the statements of the template ``new`` in the place of those of ``old``.

    Those of ``old`` must occur once, inside of those of ``new`` not counted: so a second pass finds nothing. Raises
    AnchorError.
    """
    done = [run for run in runs(function, len(_digests(new))) if matches(run, new)]
    found = [run for run in runs(function, len(_digests(old))) if matches(run, old)]
    left = [run for run in found if not any(_is_inside(run, other) for other in done)]
    if len(left) != 1:
        raise AnchorError(old.partition("\n")[0], len(left))
    return span(left[0][0], left[0][-1], lambda _: _suite(new))


def _is_inside(run: Sequence[ast.stmt], other: Sequence[ast.stmt]) -> bool:
    return other[0].lineno <= run[0].lineno and (run[-1].end_lineno or 0) <= (other[-1].end_lineno or 0)


def _suite(template: str) -> Statements:
    from unhang.codemods import splice

    return splice.suite(template)


def span(first: ast.stmt, last: ast.stmt, change: Callable[[Statements], Statements]) -> Edit:
    """Return an edit of the statements from ``first`` to ``last``."""
    return Edit(first.lineno, last.end_lineno or last.lineno, change)


def followed_by(template: str) -> Callable[[Statements], Statements]:
    """Return a change that adds a template's statements after those of the edit."""

    def change(nodes: Statements) -> Statements:
        from unhang.codemods import splice  # here, because it imports LibCST

        return [*nodes, *splice.suite(template)]

    return change


def preceded_by(template: str) -> Callable[[Statements], Statements]:
    """Return a change that adds a template's statements and a blank line before those of the edit."""

    def change(nodes: Statements) -> Statements:
        from unhang.codemods import splice

        first, *rest = nodes
        return [*splice.suite(template), splice.after_blank_line(first), *rest]

    return change


def only_first(nodes: Statements) -> Statements:
    """Drop all statements of the edit except the first, with the comments above them."""
    return nodes[:1]
