"""What a function takes from outside: its arguments, the globals of its file, and what decides its branches. Pure."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from unhang.codemods.base import bound
from unhang.shapes.branches import branches
from unhang.shapes.shape import Function

COLLECTIVES = {
    *("all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "reduce_scatter", "barrier"),
    *("reduce_scatter_tensor", "all_to_all", "all_to_all_single", "broadcast", "broadcast_object_list", "reduce"),
    *("gather", "scatter"),
}
"""torch.distributed's."""


class Reads(NamedTuple):
    """What a function takes from outside."""

    arguments: tuple[str, ...]
    """Those that can be given by name, in order."""
    read: tuple[str, ...]
    """What is read of the arguments and the globals, with dots, as ``self.config.fp8``; of ``a`` and ``a.b`` the
    latter alone."""
    called: tuple[str, ...]
    """What of these is called."""
    conditions: tuple[str, ...]
    """What it branches on, be it such a name or a local one."""
    operations: tuple[str, ...]
    """The kinds of the collectives that it calls, as a signature has them."""


def of(functions: Iterable[Function]) -> Reads:
    """Return what the versions of a function take from outside; the last one's arguments count."""
    functions = tuple(functions)
    *_, function = functions
    given = function.args
    arguments = [it.arg for it in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    names = {*arguments, *(it.arg for it in (given.vararg, given.kwarg) if it is not None)}
    nodes = [statement for version in functions for statement in version.body]
    inner = bound(*nodes) - names
    called: dict[str, bool] = {}
    for name, is_call in (read for node in nodes for read in _reads(node)):
        if (root := name.partition(".")[0]) not in inner and (root in names or not hasattr(builtins, root)):
            called[name] = called.get(name, False) or is_call
    whole = sorted(name for name in called if not any(other.startswith(f"{name}.") for other in called))
    decisive = sorted({name for version in functions for name in branches(version)})
    own = [name for name in decisive if name.partition(".")[0] in {*inner, *names} or not hasattr(builtins, name)]
    kinds = {_kind(name) for name in map(collective, called) if name}
    return Reads(
        tuple(arguments),
        tuple(name for name in whole if not called[name]),
        tuple(name for name in whole if called[name]),
        tuple(own),
        tuple(sorted(kinds)),
    )


def collective(name: str) -> str:
    """Return which collective of torch.distributed this is the name of; empty if of none, but of a method."""
    above, _, last = name.rpartition(".")
    return last if last in COLLECTIVES and above.rpartition(".")[2] in ("", "dist", "distributed") else ""


def _reads(node: ast.AST) -> Iterator[tuple[str, bool]]:
    """Yield each longest dotted name that is read in a node, and whether it is called; annotations are none."""
    if isinstance(node, ast.Call) and (name := _dotted(node.func)):
        yield name, True
        rest: list[ast.AST] = [*node.args, *node.keywords]
    elif name := _dotted(node):
        yield name, False
        return
    else:
        hints = ("annotation", "returns")
        rest = [it for it in ast.iter_child_nodes(node) if not any(it is getattr(node, hint, None) for hint in hints)]
    for inner in rest:
        yield from _reads(inner)


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    above = _dotted(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{above}.{node.attr}" if above and isinstance(node, ast.Attribute) else ""


def _kind(name: str) -> str:
    """Return what a flight recorder calls a collective."""
    return re.sub("_(tensor|object_list|object|into_tensor|single)$", "", name)
