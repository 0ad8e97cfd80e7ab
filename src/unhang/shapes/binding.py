"""Bindings: the statements of a module or a class that bind a name, be they imports, assignments or definitions.

So is an attribute of a module's name, such as ``library.mode``, where the module assigns to it.

A function that is defined once is a binding whose shape is that of the function. A name that its module or class does
not bind has a shape as well, so that a fix can add it. Below an ``if``, a ``try`` and the like, these are part of the
shape: nobody can tell whether such a statement runs.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Mapping, Sequence

from unhang import parameters
from unhang.shapes import outline, shape
from unhang.shapes.catalog import Target

_PARTS = ("body", "handlers", "orelse", "finalbody", "cases")
"""The fields of a compound statement that have others."""


def statements(tree: ast.Module, qualified: str) -> list[ast.stmt] | None:
    """Return the statements that bind ``NAME`` or ``Class.NAME``, in order, also those under ``if`` and the like.

    ``NAME.ATTRIBUTE`` of what is no class is bound by the module's assignments to it. None if there is neither one such
    class nor such a name: then nothing can be said of what is bound.
    """
    body, name = scope(tree, qualified), qualified.rpartition(".")[2]
    if body is None:
        first = qualified.partition(".")[0]
        owners = [node for node in shape.statements(tree.body) if first in shape.names(node)]
        if not owners or any(isinstance(node, ast.ClassDef) for node in owners):
            return None
        return [node for node in shape.statements(tree.body) if qualified in attributes(node)]
    return [node for node in shape.statements(body) if name in shape.names(node)]


def attributes(node: ast.stmt) -> set[str]:
    """Return the attributes that an assignment sets, each with its dots."""
    places = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {ast.unparse(it) for it in places if isinstance(it, ast.Attribute) and _is_dotted(it)}


def _is_dotted(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) or (isinstance(node, ast.Attribute) and _is_dotted(node.value))


def scope(tree: ast.Module, qualified: str) -> list[ast.stmt] | None:
    """Return the body of the module, or of the class that a qualified name begins with; None as ``statements``."""
    body = tree.body
    for owner in qualified.split(".")[:-1]:
        found = [it for it in shape.statements(body) if isinstance(it, ast.ClassDef) and it.name == owner]
        if len(found) != 1:
            return None
        body = found[0].body
    return body


def of(tree: ast.Module, target: Target, values: Mapping[str, str] = {}) -> str | None:
    """Return the shape of a target's binding in the module; what has the ``values`` of parameters has their names.

    None if its class is not there, or, where nothing binds the name, what it goes beside: then it has no place.
    """
    found = statements(tree, target.function)
    if found is None:
        return None
    if target.parameters:
        _name_values(found, values, target.parameters)
    if found:
        return _below(digest(found, target.function.rpartition(".")[2]), tree, found)
    if scope(tree, target.function) is None:  # a class that is gone must not look like an attribute that was taken out
        return hashlib.sha256(f"unset {target.place}".encode()).hexdigest()[:16]
    if target.beside is None:
        return absent(target)
    there = place(tree, target)
    return _below(absent(target), tree, there[0][:1]) if there is not None else None


def _name_values(found: Sequence[ast.stmt], values: Mapping[str, str], names: Sequence[str]) -> None:
    """Put the names of parameters in the place of their values in the strings of these statements."""
    from unhang import templates  # few fixes have parameters

    kinds = templates.kinds(found)
    for node in (it for root in found for it in ast.walk(root)):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, (str, bytes)):
            continue
        written = {name: templates.spelled(value, kinds.get(id(node), ())) for name, value in values.items()}
        if isinstance(node.value, str):
            node.value = parameters.named(node.value, written, names)
        else:  # its letters are those of the text
            node.value = parameters.named(node.value.decode("latin-1"), written, names).encode("latin-1")


def _below(found: str, tree: ast.Module, nodes: Sequence[ast.stmt]) -> str:
    """Return a shape with that of the compound statements around these; as it is where there are none."""
    above = [where for node in nodes for where in (_path(tree.body, node) or ())]
    return hashlib.sha256(" ".join((found, *above)).encode()).hexdigest()[:16] if any(above) else found


def is_in_block(tree: ast.Module, target: Target) -> bool:
    """Return whether a target, or what it goes beside, is in a compound statement: nobody knows whether that runs."""
    nodes = statements(tree, target.function)
    if not nodes and (there := place(tree, target)) is not None:
        nodes = there[0][:1]
    return any(any(_path(tree.body, node) or ()) for node in nodes or ())


def _path(body: Sequence[ast.AST], node: ast.stmt) -> tuple[str, ...] | None:
    """Return the compound statements around one below a block, outermost first, each with the part that has it.

    They end with an empty text, for a statement that is among several. A class is none of them: see ``scope``.
    """
    for one in body:
        if one is node:
            return ("",)
        if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        for field in _PARTS:
            inner = getattr(one, field, None)
            if isinstance(inner, list) and (found := _path(inner, node)) is not None:
                own = () if isinstance(one, ast.ClassDef) else (f"{shape.digest(outline.header(one))}.{field}",)
                return (*own, *found)
    return None


def digest(found: Sequence[ast.stmt], name: str) -> str:
    """Return the shape of statements that bind a name: of an import, the part that binds it counts alone."""
    if len(found) == 1:
        return shape.digest(reduced(found[0], name))
    return shape.digest(ast.Module([reduced(node, name) for node in found], []))


def absent(target: Target) -> str:
    """Return the shape of a target whose name is not bound."""
    return hashlib.sha256(f"absent {target.place}".encode()).hexdigest()[:16]


def place(tree: ast.Module, target: Target) -> tuple[list[ast.stmt], int] | None:
    """Return the block that a target's new statements go into, and the index there; None if that is not one place.

    They go right after or before the first statement that binds their neighbour. What documents that (a string after
    an attribute) belongs to it.
    """
    owner, _, _ = target.function.rpartition(".")
    how, neighbour = target.beside or ("", "")
    body = scope(tree, target.function)
    found = statements(tree, f"{owner}.{neighbour}" if owner else neighbour)
    if body is None or not found:
        return None
    for block in blocks(body):
        if any(node is found[0] for node in block):
            at = next(index for index, node in enumerate(block) if node is found[0])
            return block, documented(block, at) if how == "after" else at
    return None  # pragma: no cover - `statements` walks the same blocks


def documented(block: Sequence[ast.stmt], at: int) -> int:
    """Return the index after a statement of a block and the strings that document it."""
    at += 1
    while at < len(block) and is_text(block[at]):
        at += 1
    return at


def is_text(node: ast.stmt) -> bool:
    """Return whether a statement is nothing but a string."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def blocks(body: list[ast.stmt]) -> list[list[ast.stmt]]:
    """Return a body and the blocks of its statements, without those of definitions."""
    found = [body]
    for node in shape.statements(body):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            arms = (node, *getattr(node, "handlers", ()), *getattr(node, "cases", ()))
            lists = (getattr(arm, field, None) for arm in arms for field in ("body", "orelse", "finalbody"))
            found += [it for it in lists if isinstance(it, list) and it]
    return found


def reduced(node: ast.stmt, name: str) -> ast.stmt:
    """Return an import with the names alone that bind ``name``; any other statement as it is."""
    if not isinstance(node, (ast.Import, ast.ImportFrom)):
        return node
    names = [it for it in node.names if name in shape.names(_with(node, [it]))]
    return node if len(names) == len(node.names) else ast.copy_location(_with(node, names), node)


def rest(node: ast.stmt, name: str) -> ast.stmt | None:
    """Return an import without the names that bind ``name``; None if nothing is left, or if it is none."""
    if not isinstance(node, (ast.Import, ast.ImportFrom)):
        return None
    names = [it for it in node.names if name not in shape.names(_with(node, [it]))]
    return _with(node, names) if names else None


def _with(node: ast.Import | ast.ImportFrom, names: list[ast.alias]) -> ast.Import | ast.ImportFrom:
    return ast.ImportFrom(node.module, names, node.level) if isinstance(node, ast.ImportFrom) else ast.Import(names)
