"""Outlines: a function as a list of its statements, each with its own digest, to show where two functions differ.

Outlines use the walk of ``unhang.shapes.shape``: they are equal on Python 3.10 to 3.13, and two functions have the same
outline exactly if they have the same shape (unless two of the short digests collide). A statement's digest leaves out
the statements nested in it: adding an ``if`` around forty lines is one difference, not forty-one.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from unhang.shapes.shape import Function, digest, has_docstring

_BLOCKS = ("body", "handlers", "cases", "orelse", "finalbody")
_ARMS = {"orelse": "else", "finalbody": "finally"}


class Entry(NamedTuple):
    """One statement, or the ``else`` or ``finally`` of one."""

    depth: int
    """How deep it is nested: 0 for the function itself. The arms of an ``if`` are as deep as the ``if``."""
    kind: str
    """``If``, ``Assign``, ... as ``ast`` calls them; ``elif``, ``else`` and ``finally``."""
    digest: str
    """Eight hexadecimal digits, of the kind and the statement's own parts, without the blocks nested in it."""


class Placed(NamedTuple):
    """An entry, and the line of the file where it starts."""

    entry: Entry
    line: int


def outline(function: Function) -> list[Entry]:
    """Return the function and its statements in source order, nested ones too, without docstrings."""
    return [placed.entry for placed in placed_outline(function)]


def placed_outline(function: Function) -> list[Placed]:
    """Return the outline with lines. An ``else`` or ``finally`` has the line of the first statement in it."""
    return list(_statement(function, 0))


def parents(entries: Sequence[Entry]) -> list[int]:
    """Return, for each entry, the index of the entry that it is nested in; -1 for the first, the function itself."""
    found: list[int] = []
    around: list[int] = []
    for index, entry in enumerate(entries):
        del around[entry.depth :]
        found.append(around[-1] if around else -1)
        around.append(index)
    return found


def unpacked(name: str, blocks: Mapping[str, str], kinds: Mapping[str, str]) -> list[Entry]:
    """Return the outline of this name in the data, which ``unhang.compat.sweep.outlines`` packs.

    Raises KeyError if the data does not contain the name.
    """
    return list(_unpacked(name, 0, blocks, kinds))


def _unpacked(name: str, depth: int, blocks: Mapping[str, str], kinds: Mapping[str, str]) -> Iterator[Entry]:
    own, *nested = blocks.get(name, name).split()
    yield Entry(depth, kinds[own], own)
    for inner in nested:
        yield from _unpacked(inner, depth + 1, blocks, kinds)


def _statement(node: ast.AST, depth: int, kind: str = "") -> Iterator[Placed]:
    kind = kind or type(node).__name__
    yield Placed(Entry(depth, kind, _short(f"{kind} {digest(header(node))}")), _line(node))
    for field in _BLOCKS:
        block: list[ast.AST] = getattr(node, field, [])
        if field == "orelse" and isinstance(node, ast.If) and len(block) == 1 and isinstance(block[0], ast.If):
            yield from _statement(block[0], depth, "elif")  # each arm of a chain stays at one depth
            continue
        if field in _ARMS and block:
            yield Placed(Entry(depth, _ARMS[field], _short(_ARMS[field])), _line(block[0]))
        for inner in block[1:] if field == "body" and has_docstring(node) else block:
            yield from _statement(inner, depth + 1)


def header(node: ast.AST) -> ast.AST:
    """Return the node without the blocks nested in it."""
    if not any(isinstance(getattr(node, field, None), list) for field in _BLOCKS):
        return node
    values: dict[str, Any] = {field: [] if field in _BLOCKS else getattr(node, field, None) for field in node._fields}
    return type(node)(**values)


def _short(text: str) -> str:
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:8]


def _line(node: ast.AST) -> int:
    if isinstance(node, ast.match_case):  # the only one of these without a line of its own
        return node.pattern.lineno
    line: int = getattr(node, "lineno")  # noqa: B009 - ast.AST itself does not declare it
    return line
