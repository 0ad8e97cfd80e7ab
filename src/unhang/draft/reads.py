"""What a function takes from outside: its arguments, the globals of its file, and what of these decides it. Pure."""

from __future__ import annotations

import ast
import builtins
import itertools
import keyword
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from unhang.codemods.base import bound
from unhang.shapes.branches import branches
from unhang.shapes.shape import Function

COLLECTIVES = {
    "all_reduce": "tensor, op=None, group=None, async_op=False",
    "all_gather": "tensor_list, tensor, group=None, async_op=False",
    "all_gather_into_tensor": "output_tensor, input_tensor, group=None, async_op=False",
    "all_gather_object": "object_list, obj, group=None",
    "reduce_scatter": "output, input_list, op=None, group=None, async_op=False",
    "reduce_scatter_tensor": "output, input, op=None, group=None, async_op=False",
    "all_to_all": "output_tensor_list, input_tensor_list, group=None, async_op=False",
    "all_to_all_single": "output, input, output_split_sizes=None, input_split_sizes=None, group=None, async_op=False",
    "broadcast": "tensor, src=None, group=None, async_op=False, group_src=None",
    "broadcast_object_list": "object_list, src=None, group=None, device=None",
    "reduce": "tensor, dst=None, op=None, group=None, async_op=False",
    "gather": "tensor, gather_list=None, dst=None, group=None, async_op=False",
    "scatter": "tensor, scatter_list=None, src=None, group=None, async_op=False",
    "barrier": "group=None, async_op=False, device_ids=None",
}
"""torch.distributed's, with their arguments."""


class Read(NamedTuple):
    """A name that a function reads from outside."""

    name: str
    """With dots, as ``self.config.fp8``."""
    calls: tuple[ast.Call, ...]
    """Where it is called."""


class Reads(NamedTuple):
    """What a function takes from outside."""

    arguments: tuple[str, ...]
    """Those that can be given by name, in order."""
    reads: tuple[Read, ...]
    """What is read of the arguments and the globals, in alphabetical order; of ``a`` and ``a.b`` the latter alone."""
    conditions: dict[str, str]
    """The field of a setting for each condition, be it such a name or a local one."""
    builtins: tuple[str, ...]
    """The other conditions."""
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
    called: dict[str, list[ast.Call]] = {}
    for name, call in (read for node in nodes for read in _reads(node)):
        if (root := name.partition(".")[0]) not in inner and (root in names or not hasattr(builtins, root)):
            called.setdefault(name, []).extend([call] if call else [])
    whole = [name for name in called if not any(other.startswith(f"{name}.") for other in called)]
    decisive = sorted({name for version in functions for name in branches(version)})
    own = [name for name in decisive if name.partition(".")[0] in {*inner, *names} or not hasattr(builtins, name)]
    kinds = {_kind(name) for name in map(collective, called) if name}
    return Reads(
        tuple(arguments),
        tuple(Read(name, tuple(called[name])) for name in sorted(whole)),
        dict(zip(own, _fields(own))),
        tuple(name for name in decisive if name not in own),
        tuple(sorted(kinds)),
    )


def parameters(calls: Iterable[ast.Call]) -> dict[str, str]:
    """Return the parameters of a function that can be called so, by name, each as its head has it."""
    calls = tuple(calls)
    by_place: dict[str, str] = {}
    for place, given in enumerate(itertools.zip_longest(*(call.args for call in calls))):
        if any(isinstance(it, ast.Starred) for it in given):
            by_place["given"] = "*given"
            break
        name = next((it.id for it in given if isinstance(it, ast.Name) and _is_plain(it.id)), f"given_{place + 1}")
        name = f"given_{place + 1}" if name in by_place else name
        by_place[name] = f"{name}=None" if None in given or "=" in "".join(by_place.values()) else name
    words = [word.arg for call in calls for word in call.keywords]
    by_name = {word: f"{word}=None" for word in words if word and _is_plain(word) and word not in by_place}
    rest = {"others": "**others"} if any(word is None or not _is_plain(word) for word in words) else {}
    return {**by_place, **by_name, **rest}


def _is_plain(name: str) -> bool:
    return name.isascii() and name.isidentifier() and not keyword.iskeyword(name)


def collective(name: str) -> str:
    """Return which collective of torch.distributed this is the name of; empty if of none, but of a method."""
    above, _, last = name.rpartition(".")
    return last if last in COLLECTIVES and above.rpartition(".")[2] in ("", "dist", "distributed") else ""


def _reads(node: ast.AST) -> Iterator[tuple[str, ast.Call | None]]:
    """Yield each longest dotted name that is read in a node, with its call if it is called; annotations are none."""
    if isinstance(node, ast.Call) and (name := _dotted(node.func)):
        yield name, node
        rest: list[ast.AST] = [*node.args, *node.keywords]
    elif name := _dotted(node):
        yield name, None
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


def _fields(names: Iterable[str]) -> Iterator[str]:
    """Yield a field's name for each of these, which may have any letters."""
    taken = {"count", "index"}  # a named tuple has these
    for number, name in enumerate(names, 1):
        short = re.sub(r"\W+", "_", name.removeprefix("self."), flags=re.ASCII).strip("_").lower()
        field = short if short.isidentifier() and not keyword.iskeyword(short) and short not in taken else ""
        field = field or f"condition_{number}"
        taken.add(field)
        yield field
