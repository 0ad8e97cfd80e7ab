"""The conditions that a function branches on, read from its AST."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator


def branches(function: ast.stmt) -> list[str]:
    """Return the names and dotted attributes that a function's conditions read, sorted: ``self.config.fp8``.

    Conditions are those of ``if``, ``elif``, ``while``, ternaries, ``and``, ``or``, ``match`` and comprehensions. An
    assertion only ends the function, so it is none. A condition on a call is named by the call and its arguments.
    """
    return sorted({name for condition in _conditions(function) for name in _names(condition)})


def words(node: ast.AST) -> set[str]:
    """Return every identifier in a node, and every word in its strings."""
    return set(re.findall(r"\w+", ast.unparse(node)))


def _conditions(function: ast.stmt) -> Iterator[ast.expr]:
    asserted = {inner for node in ast.walk(function) if isinstance(node, ast.Assert) for inner in ast.walk(node)}
    for node in ast.walk(function):
        if node in asserted:
            continue
        if isinstance(node, (ast.If, ast.While, ast.IfExp)):
            yield node.test
        elif isinstance(node, ast.BoolOp):
            yield from node.values
        elif isinstance(node, ast.comprehension):
            yield from node.ifs
        elif isinstance(node, ast.Match):
            yield node.subject
            yield from (case.guard for case in node.cases if case.guard)


def _names(node: ast.AST) -> Iterator[str]:
    """Yield each longest dotted name that is read here."""
    if isinstance(node, ast.Attribute) and (name := _dotted(node)):
        yield name
    elif isinstance(node, ast.Name):
        if isinstance(node.ctx, ast.Load):
            yield node.id
    else:
        for inner in ast.iter_child_nodes(node):
            yield from _names(inner)


def _dotted(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (above := _dotted(node.value)):
        return f"{above}.{node.attr}"
    return None
