"""What the codemods share: anchors and edits, on plain ASTs.

A codemod finds its anchors with ``ast`` alone, so that ``unhang check`` can name a missing one without importing
LibCST. The rewrite itself is an :class:`Edit`: a span of whole statements, and a function that changes their LibCST
nodes (see ``unhang.codemods.splice``). That function runs only when a file is rewritten.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, TypeVar

from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function, digest, unannotated

if TYPE_CHECKING:
    import libcst as cst

    from unhang.codemods.edit import Statements

_Found = TypeVar("_Found")


class AnchorError(Exception):
    """An anchor was not found exactly once. ``anchor`` describes it; it was ``found`` so many times."""

    def __init__(self, anchor: str, found: int = 0) -> None:
        super().__init__(f"found {found} times, expected once: {anchor}" if found else f"not found: {anchor}")


class Codemod:
    """The rewrite of one function. The module of a fix maps qualified function names to these in ``CODEMODS``.

    A codemod says what changes, and no more: whether a shape has the defect, and whether its rewrite is right, is
    found out by playing both (``judge/rows.py``). Its docstring shows that change on code that is made up, once
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
        """Return the global names that the rewrite of this function uses: none here. Its file must bind all of them."""
        return frozenset()

    def fixed_upstream(self, function: Function) -> bool:
        """Return whether a function of an unlisted shape has upstream's own fix.

        A short check: when in doubt, no. An AnchorError is a no.
        """
        return False


def once(found: Sequence[_Found], anchor: str) -> _Found:
    """Return the only place in ``found``; raise AnchorError if there is none, or more than one."""
    if len(found) != 1:
        raise AnchorError(anchor, len(found))
    return found[0]


@cache
def _digests(template: str) -> list[str]:
    return [digest(node) for node in ast.parse(template).body]


def matches(nodes: Sequence[ast.AST], template: str) -> bool:
    """Return whether these statements are those of the template, one for one, whatever their layout and annotations."""
    return _are([unannotated(node) for node in nodes], _digests(template))


def assigned(node: ast.AST) -> tuple[str, ast.expr] | None:
    """Return the name and the value of an assignment to one name, annotated or not; None for any other node."""
    plain = unannotated(node)
    if isinstance(plain, ast.Assign) and len(plain.targets) == 1 and isinstance(plain.targets[0], ast.Name):
        return plain.targets[0].id, plain.value
    return None


def assignments(function: ast.AST) -> list[tuple[ast.stmt, str, ast.expr]]:
    """Return each statement that assigns to one name, at any depth, with that name and the value."""
    return [(it, *row) for it in ast.walk(function) if isinstance(it, ast.stmt) and (row := assigned(it))]


def _are(nodes: Sequence[ast.AST], shapes: Sequence[str]) -> bool:
    return len(nodes) == len(shapes) and all(digest(node) == one for node, one in zip(nodes, shapes))


def refuse_own(function: Function, names: Iterable[str]) -> None:
    """Raise AnchorError if the function has a name that only our rewrite adds."""
    for name in sorted(mentioned(function) & set(names)):
        raise AnchorError(f"{function.name} without {name}, which is ours")


def mentioned(*nodes: ast.AST) -> set[str]:
    """Return every identifier and every string in these nodes."""
    found: set[str] = set()
    for node in nodes:
        for inner in _inside(node):
            for field in _spelled(inner._fields):
                value = getattr(inner, field, None)
                if isinstance(value, str):
                    found.add(value)
                elif isinstance(value, list):  # of global and nonlocal; the names of an import are nodes
                    found |= {item for item in value if isinstance(item, str)}
    return found


@lru_cache(maxsize=32)  # several anchors are looked for in one function
def _inside(node: ast.AST) -> list[ast.AST]:
    return list(ast.walk(node))


@cache
def _spelled(fields: tuple[str, ...]) -> list[str]:
    return [name for name in ("id", "attr", "arg", "name", "asname", "value", "names") if name in fields]


def bound(*nodes: ast.AST) -> set[str]:
    """Return the names that these nodes assign, delete, import, define or take, also in nested functions."""
    found: set[str] = set()
    for node in nodes:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and not isinstance(inner.ctx, ast.Load):
                found.add(inner.id)
            elif isinstance(inner, ast.arg):
                found.add(inner.arg)
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


def operand(node: ast.expr | None, anchor: str) -> str:
    """Return an expression's code, to use as an operand. Raises AnchorError for one that may need parentheses there."""
    if not isinstance(node, (ast.Name, ast.Attribute, ast.Call)):
        raise AnchorError(anchor)
    return expression(node)


def holder(block: Sequence[ast.stmt], node: ast.AST) -> ast.stmt | None:
    """Return the statement of a block that is this node, or has it inside; None if there is none."""
    return next((it for it in block if any(inner is node for inner in ast.walk(it))), None)


def passes(node: ast.stmt) -> bool:
    """Return whether the code after a statement runs once what is inside has: it neither returns nor just defines."""
    return not any(isinstance(inner, (ast.Return, ast.FunctionDef, ast.Lambda)) for inner in ast.walk(node))


def replacing(function: Function, old: str, new: str) -> Edit:
    """Return the edit that puts the statements of the template ``new`` in the place of those of ``old``.

    Raises AnchorError unless they are there once, as ``places`` counts.
    """
    found = once(places(function, _digests(old), _digests(new)), old.partition("\n")[0])
    return span(found[0], found[-1], instead(new))


def before(function: Function, anchor: str, new: str) -> Edit:
    """Return the edit that adds the statements of the template ``new`` before the only one that begins as ``anchor``.

    Blocks do not count: ``for x in y: ...`` is any loop over these. Raises AnchorError unless there is one such
    statement, and the new ones are not there yet.
    """
    statement = _beginning(function, anchor, new)
    return span(statement, statement, preceded_by(new))


def after(function: Function, anchor: str, new: str) -> Edit:
    """Return the edit that adds the statements of the template ``new`` after one; all else is as in ``before``."""
    statement = _beginning(function, anchor, new)
    return span(statement, statement, followed_by(new))


def _beginning(function: Function, anchor: str, new: str) -> ast.stmt:
    from unhang.shapes.outline import header  # here, because few codemods need it

    (wanted,), line = (digest(header(node)) for node in ast.parse(anchor).body), anchor.partition("\n")[0]
    found = [(block, at) for block in _blocks(function) for at, it in enumerate(block) if digest(header(it)) == wanted]
    block, at = once(found, line)
    added = _digests(new)
    size = len(added)
    if any(_are(block[first : first + size], added) for first in (max(at - size, 0), at + 1)):
        raise AnchorError(f"{line} without what is added")
    return block[at]


def places(function: ast.AST, old: Sequence[str], new: Sequence[str]) -> list[list[ast.stmt]]:
    """Return the consecutive statements of a block that have these shapes, ``old``, but not those inside of ``new``.

    So statements that were replaced are not found again.
    """
    done = _runs(function, new) if new else []
    return [run for run in _runs(function, old) if not any(_is_inside(run, other) for other in done)]


def _runs(function: ast.AST, shapes: Sequence[str]) -> list[list[ast.stmt]]:
    lists = _blocks(function)
    runs = [block[at : at + len(shapes)] for block in lists for at in range(len(block) - len(shapes) + 1)]
    return [run for run in runs if _are(run, shapes)]


def _blocks(function: ast.AST) -> list[list[ast.stmt]]:
    """Return each block of a function, its own first."""
    blocks = [getattr(node, field, None) for node in ast.walk(function) for field in ("body", "orelse", "finalbody")]
    return [block for block in blocks if isinstance(block, list)]


def _is_inside(run: Sequence[ast.stmt], other: Sequence[ast.stmt]) -> bool:
    return other[0].lineno <= run[0].lineno and (run[-1].end_lineno or 0) <= (other[-1].end_lineno or 0)


def span(first: ast.stmt, last: ast.stmt, change: Callable[[Statements], Statements]) -> Edit:
    """Return an edit of the statements from ``first`` to ``last``."""
    return Edit(first.lineno, last.end_lineno or last.lineno, change)


def calls(within: ast.AST, function: str) -> list[ast.Call]:
    """Return the calls of a function, spelled as ``torch.tensor`` or ``permute``, in the order of their lines."""
    last = function.rpartition(".")[2]  # a look at this name is cheaper than to spell each function
    named = (it for it in _inside(within) if isinstance(it, ast.Call) and _last_name(it.func) in (last, None))
    found = [node for node in named if expression(node.func) == function]
    return sorted(found, key=lambda node: (node.lineno, node.col_offset))


def _last_name(node: ast.expr) -> str | None:
    """Return the name that an expression ends with; None if it ends with something else."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None


def argument(call: ast.Call, name: str) -> ast.expr | None:
    """Return what a call gives for a keyword; None if it gives nothing by this name."""
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def replaced_by(function: Function, node: ast.expr, new: str, comment: str) -> Edit:
    """Return an edit that replaces an expression of the function, with a comment above the statement around it.

    The statement, whose other bytes stay, is the innermost one. If the codemod would find the expression in the result
    again, it has to refuse that itself. Raises AnchorError as ``changing`` does.
    """

    def change(_: cst.BaseExpression) -> cst.BaseExpression:
        import libcst as cst

        return cst.parse_expression(new)

    return changing(function, node, change, comment)


def with_argument(function: Function, call: ast.Call, argument: str, comment: str, at: int = sys.maxsize) -> Edit:
    """Return an edit that gives a call one more argument, such as ``dtype=torch.float32``: the ``at``-th, or the last.

    It is written like ``replaced_by``, and stands on a line of its own if its neighbour does.
    """

    def change(old: cst.BaseExpression) -> cst.BaseExpression:
        from unhang.codemods import splice

        return splice.with_argument(old, argument, at)

    return changing(function, call, change, comment)


def guarded_by(function: Function, node: ast.expr, condition: str, comment: str) -> Edit:
    """Return an edit that makes ``node and condition`` of an expression. It is written like ``replaced_by``."""

    def change(old: cst.BaseExpression) -> cst.BaseExpression:
        from unhang.codemods import splice

        return splice.guarded_by(old, condition)

    return changing(function, node, change, comment)


def changing(
    function: Function, node: ast.expr, change: Callable[[cst.BaseExpression], cst.BaseExpression], comment: str
) -> Edit:
    """Return an edit that changes one expression in the innermost statement around it, as ``replaced_by`` does.

    Raises AnchorError if that statement is an ``elif``.
    """
    rows = [it for it in _inside(function) if isinstance(it, ast.stmt) and _covers(it, node)]
    # ast.walk goes from the outside in
    statement = next(it for it in reversed(rows) if any(one is node for one in ast.walk(it)))
    if any(it.orelse == [statement] and it.col_offset == statement.col_offset for it in rows if isinstance(it, ast.If)):
        raise AnchorError(f"{expression(node)} in a statement that is no elif")
    code = ast.dump(node)
    same = [it for it in ast.walk(statement) if type(it) is type(node) and ast.dump(it) == code]
    same.sort(key=lambda it: (it.lineno, it.col_offset))
    place = next(number for number, it in enumerate(same) if it is node), len(same)

    def changed(nodes: Statements) -> Statements:
        from unhang.codemods import splice

        return [splice.changed(nodes[0], code, place, change, comment)]

    return span(statement, statement, changed)


def _covers(outer: ast.stmt, inner: ast.expr) -> bool:
    return outer.lineno <= inner.lineno and (inner.end_lineno or 0) <= (outer.end_lineno or 0)


def instead(template: str) -> Callable[[Statements], Statements]:
    """Return a change that puts a template's statements in the place of those of the edit.

    A comment above the first, and one after the last on its line, stay.
    """

    def change(nodes: Statements) -> Statements:
        from unhang.codemods import splice

        return splice.instead(nodes, template)

    return change


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


def inside(template: str) -> Callable[[Statements], Statements]:
    """Return a change that puts the statements of the edit into the block that ends a template."""

    def change(nodes: Statements) -> Statements:
        import libcst as cst

        from unhang.codemods import splice

        *rows, last = splice.suite(template)
        return [*rows, last.with_changes(body=cst.IndentedBlock(nodes))]

    return change


def dropping(block: Sequence[ast.stmt], gone: Sequence[ast.stmt]) -> Edit:
    """Return the edit of a whole block that drops some of its statements, with the comments above them."""

    def change(nodes: Statements) -> Statements:
        from unhang.codemods import splice

        return splice.without(nodes, block, gone)

    return span(block[0], block[-1], change)


def only_first(nodes: Statements) -> Statements:
    """Drop all statements of the edit except the first, with the comments above them."""
    return nodes[:1]
