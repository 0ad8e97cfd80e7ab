"""What the codemods share: anchors, edits, and the post-condition, on plain ASTs.

A codemod finds its anchors with ``ast`` alone, so that ``unhang check`` can name a missing one without importing
LibCST. The rewrite itself is an :class:`Edit`: a span of whole statements, and a function over their LibCST nodes
(see ``unhang.codemods.splice``) that runs only when something is really rewritten.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from unhang.shapes.shape import Function, digest

if TYPE_CHECKING:
    import libcst as cst

    Statements = list[cst.BaseStatement]

__all__ = [
    "AnchorError",
    "Codemod",
    "Edit",
    "Function",
    "bound",
    "check_plain",
    "digest",
    "digests",
    "expression",
    "followed_by",
    "leaving",
    "matches",
    "mentioned",
    "once",
    "only_first",
    "preceded_by",
    "span",
    "wanted",
]


class AnchorError(Exception):
    """An anchor was not found exactly once. ``anchor`` says which; ``found`` how often it stands there."""

    def __init__(self, anchor: str, found: int = 0) -> None:
        super().__init__(f"found {found} times, expected once: {anchor}" if found else f"not found: {anchor}")
        self.anchor = anchor
        self.found = found


class Edit(NamedTuple):
    """Rewrite the statements from line ``first`` to line ``last`` of the file (counted from 1, inclusive)."""

    first: int
    last: int
    change: Callable[[Statements], Statements]
    """Takes the LibCST nodes of exactly these statements, and gives those to stand in their place."""


class Codemod:
    """The rewrite of one target. A fix's module lists them in ``CODEMODS``, by the function's qualified name."""

    def edits(self, function: Function) -> list[Edit]:
        """The edits that bring the fix into place, in the order of their lines; none if it is there already.

        Raises AnchorError if an anchor does not stand there exactly once: then nothing is known of this code.
        """
        if self.holds(function):
            return []
        planned = self.plan(function)
        self.check(function)
        return planned

    def plan(self, function: Function) -> list[Edit]:
        """The edits of a function without our rewrite in it. Of a listed shape this is all that is asked."""
        raise NotImplementedError

    def check(self, function: Function) -> None:
        """AnchorError unless what the edits rest on, around the anchors, is as a release has it.

        Asked of every shape once, by the sweep that lists it, and of an unknown one each time.
        """
        raise NotImplementedError

    def holds(self, function: Function) -> bool:
        """The post-condition of our own rewrite."""
        raise NotImplementedError

    def holds_upstream(self, function: Function) -> bool:
        """The post-condition of upstream's own fix; False where upstream has none."""
        return False

    def lacks_feature(self, function: Function) -> bool:
        """Whether the feature that the defect is about is not in this function at all: then it is not affected."""
        return False

    def names(self, function: Function) -> frozenset[str]:
        """The global names that the rewrite of this function uses: all must be bound in its file."""
        raise NotImplementedError


def once(found: Sequence[ast.stmt], anchor: str) -> ast.stmt:
    """The one statement of ``found``; AnchorError, which names the anchor, if there is none or more than one."""
    if len(found) != 1:
        raise AnchorError(anchor, len(found))
    return found[0]


@cache
def wanted(template: str) -> list[str]:
    """The digests of a template's statements, to compare code with."""
    return digests(ast.parse(template).body)


def matches(nodes: Sequence[ast.AST], template: str) -> bool:
    """Whether these statements are, one for one, those of the template."""
    return len(nodes) == len(wanted(template)) and digests(nodes) == wanted(template)


def digests(nodes: Sequence[ast.AST]) -> list[str]:
    """The digest of each statement: how a codemod knows upstream's longer ones, whose text is not ours to keep."""
    return [digest(node) for node in nodes]


def mentioned(*nodes: ast.AST) -> set[str]:
    """Every identifier, and every string, that stands anywhere in these nodes: what they can possibly be about."""
    found: set[str] = set()
    for node in nodes:
        for inner in ast.walk(node):
            for field in ("id", "attr", "arg", "name", "asname", "value", "names"):
                value = getattr(inner, field, None)
                if isinstance(value, str):
                    found.add(value)
                elif isinstance(value, list):  # of global and nonlocal; an import's are nodes
                    found |= {item for item in value if isinstance(item, str)}
    return found


def bound(*nodes: ast.AST) -> set[str]:
    """The names that are assigned, deleted, imported or defined anywhere in these nodes, nested functions' as well."""
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


def leaving(*nodes: ast.AST) -> list[ast.AST]:
    """What may leave the function, or makes it a generator, in these nodes; functions nested in them left out."""
    found: list[ast.AST] = []
    for node in nodes:
        if isinstance(node, (ast.Return, ast.Yield, ast.YieldFrom, ast.Await)):
            found.append(node)
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            found += leaving(*ast.iter_child_nodes(node))
    return found


def check_plain(function: Function, names: Iterable[str]) -> None:
    """AnchorError unless this is a plain function that leaves these names, which a rewrite rests on, as they are.

    Decorators could do anything to it, and these few built-ins to any name in it.
    """
    if isinstance(function, ast.AsyncFunctionDef) or function.decorator_list:
        raise AnchorError(f"{function.name} as a function without decorators")
    anything = mentioned(function) & {"locals", "exec", "eval", "vars", "setattr", "delattr", "__dict__"}
    for name in sorted(anything):
        raise AnchorError(f"{function.name} without {name}")
    for name in sorted(bound(*function.body) & set(names)):
        raise AnchorError(f"{function.name} that leaves {name} as it is")


def expression(node: ast.AST) -> str:
    """An expression in Python's own spelling, to compare with a short literal of ours: never stored or digested."""
    return ast.unparse(node)


def span(first: ast.stmt, last: ast.stmt, change: Callable[[Statements], Statements]) -> Edit:
    """The edit of the statements from ``first`` to ``last``."""
    return Edit(first.lineno, last.end_lineno or last.lineno, change)


def followed_by(template: str) -> Callable[[Statements], Statements]:
    """The change that puts a template's statements after those of the edit."""

    def change(nodes: Statements) -> Statements:
        from unhang.codemods import splice  # here, and not above: it imports LibCST

        return [*nodes, *splice.suite(template)]

    return change


def preceded_by(template: str) -> Callable[[Statements], Statements]:
    """The change that puts a template's statements, and a blank line, before those of the edit."""

    def change(nodes: Statements) -> Statements:
        from unhang.codemods import splice

        first, *rest = nodes
        return [*splice.suite(template), splice.after_blank_line(first), *rest]

    return change


def only_first(nodes: Statements) -> Statements:
    """The change that drops all but the first statement of the edit, and the comments above those it drops."""
    return nodes[:1]
