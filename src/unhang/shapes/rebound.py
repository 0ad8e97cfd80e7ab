"""Where a file binds a function's name to something else: the shape tells nothing of a wrapper below it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from unhang.shapes import shape


def lines(tree: ast.Module, data: bytes, qualified: str) -> tuple[int, ...]:
    """Return the lines of a file that bind the function's name, or the one of its class, to something else.

    What a module says from outside is not seen. ``data`` are the bytes of ``tree``, which defines the function once.
    """
    found = set(_statements(tree.body, qualified.split(".")))
    first, name = qualified.partition(".")[0], qualified.rpartition(".")[2]
    remote = rf"\b(?:setattr|globals)\b|\bglobal\b.*\b{first}\b|\.\s*{name}\b"
    if re.search(remote.encode(), data):  # a search is cheaper than the walk
        found.update(_from_anywhere(tree, qualified))
    return tuple(sorted(found))


def may_bind(data: bytes, qualified: str) -> bool:
    """Return whether a file may bind the name of a function that it does not define: cheaper than parsing."""
    owner, _, name = qualified.rpartition(".")
    has_owner = owner and re.search(rf"\bclass\s+{owner}\b".encode(), data)
    word = rf"\b{name}\s*=[^=]" if has_owner else rf"\b{owner or name}\b"
    return re.search(word.encode(), data) is not None


def instead(tree: ast.Module, qualified: str) -> tuple[int, ...]:
    """Return the lines of a file without this function that bind its name all the same, such as an import of it."""
    return tuple(sorted(set(_bindings(tree.body, qualified.split(".")))))


def _bindings(body: Sequence[ast.stmt], path: Sequence[str]) -> Iterator[int]:
    name, *rest = path
    for node in shape.statements(body):
        if rest and isinstance(node, ast.ClassDef):
            if node.name == name:
                yield from _bindings(node.body, rest)
        elif name in shape.names(node):
            yield node.lineno


def _statements(body: Sequence[ast.stmt], path: Sequence[str]) -> Iterator[int]:
    """Yield the lines of the statements of this block that bind the first name of the path after its definition."""
    name, *rest = path
    block = list(shape.statements(body))
    definition = next((node for node in block if _defines(node, path)), None)
    if definition is None:
        return
    is_after = definition not in body  # in an `if` or a `try`, an arm above it counts too
    for node in block:
        if node is definition:
            is_after = True
        elif is_after and name in shape.names(node):
            yield node.lineno
    if isinstance(definition, ast.ClassDef):
        yield from _statements(definition.body, rest)


def _defines(node: ast.stmt, path: Sequence[str]) -> bool:
    """Return whether this statement is the definition at the start of the path, which has the rest of it inside."""
    name, *rest = path
    if isinstance(node, ast.ClassDef) and rest:
        return node.name == name and any(_defines(inner, rest) for inner in shape.statements(node.body))
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not rest and node.name == name


def _from_anywhere(tree: ast.Module, qualified: str) -> Iterator[int]:
    """Yield the lines that bind it by the name of its class or module, also inside functions."""
    owner, _, name = qualified.rpartition(".")
    outer = qualified.partition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Global) and outer in node.names:
            yield node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if node.attr == name and _is_owner(node.value, owner):
                yield node.lineno
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            if _is(node.slice, outer) and ast.unparse(node.value) == "globals()":
                yield node.lineno
        elif isinstance(node, ast.Call) and len(node.args) > 2 and ast.unparse(node.func) == "setattr":
            if _is(node.args[1], name) and _is_owner(node.args[0], owner):
                yield node.lineno


def _is_owner(node: ast.expr, owner: str) -> bool:
    """Return whether an expression is the class of a method, or the module of a function."""
    return ast.unparse(node) == (owner or "sys.modules[__name__]")


def _is(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Constant) and node.value == name
