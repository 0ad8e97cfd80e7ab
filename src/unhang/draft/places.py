"""A file before or after a diff, and where in it a new statement goes. Pure."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from unhang.codemods.exact import AFTER, BEFORE
from unhang.draft.replacements import Source
from unhang.errors import UnhangError
from unhang.shapes import binding, shape


class File(NamedTuple):
    """A file, before or after the diff."""

    tree: ast.Module
    rows: Sequence[str]

    @property
    def whole(self) -> Source:
        """All of it."""
        return Source(self.tree, self.rows)

    def source(self, nodes: Sequence[ast.stmt]) -> Source:
        return Source(ast.Module(list(nodes), []), self.rows)


def file_of(text: str) -> File:
    """Return a file of this text; raise as ``parsed``."""
    return File(parsed(text), text.split("\n"))


def parsed(text: str) -> ast.Module:
    """Return the AST of a file. Raises UnhangError ``bad-patch`` if it does not parse."""
    try:
        return shape.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise UnhangError(
            "bad-patch", f"a file does not parse: {error}", hint="see whether the diff is whole"
        ) from error


def attributes(tree: ast.Module, node: ast.stmt) -> list[str]:
    """Return the attributes that a statement sets, but for those of a class of the file."""
    return sorted(it for it in binding.attributes(node) if binding.scope(tree, it) is None)


def beside(node: ast.stmt, owner: str, before: ast.Module, after: ast.Module) -> tuple[str, str] | None:
    """Return beside which name a new statement goes: the nearest of its block that the file as it was binds once."""
    body = binding.scope(after, f"{owner}.x" if owner else "x") or []
    block, at = outermost(body, node, before, owner)
    if block == [node]:  # an import of old and new names
        return next(((AFTER, it) for it in sorted(shape.names(node)) if binding.statements(before, it)), None)
    for how, others in (AFTER, reversed(block[:at])), (BEFORE, block[at + 1 :]):
        for other in others:
            names = sorted(shape.names(other))
            for full in (f"{owner}.{it}" if owner else it for it in names):
                # the first statement of the name, in both files
                there = binding.statements(after, full)
                if binding.statements(before, full) and there and there[0] is other:
                    return how, full.rpartition(".")[2]
            if not (binding.is_text(other) or names):
                break  # a statement that binds nothing: on which side of it is not said
    return None


def outermost(
    body: list[ast.stmt], node: ast.stmt, before: ast.Module, owner: str, mine: Collection[str] = ()
) -> tuple[list[ast.stmt], int]:
    """Return the block and the index of the new statement that holds another one: itself, or an ``if`` around it.

    It binds no name that the file as it was has, unless it is one of ``mine``.
    """
    for block in binding.blocks(body):
        for at, it in enumerate(block):
            inner = [it, *shape.statements([it])]
            if any(one is node for one in inner) and not _has_old(inner, before, owner, mine):
                return block, at
    return [node], 0


def _has_old(nodes: Iterable[ast.stmt], before: ast.Module, owner: str, mine: Collection[str]) -> bool:
    """Return whether one of these statements binds a name that the file as it was has."""
    names = {name for node in nodes for name in shape.names(node)}.difference(mine)
    return any(binding.statements(before, f"{owner}.{name}" if owner else name) for name in names)
