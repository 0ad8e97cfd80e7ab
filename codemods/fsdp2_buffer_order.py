"""verl: broadcast a model's buffers in the order of their names, which is the same on all ranks.

https://github.com/verl-project/verl/pull/6405
"""

from __future__ import annotations

import ast

from unhang.codemods.base import Codemod, expression, matches, mentioned, once, replaced_by
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_BROADCAST = "dist.broadcast(buf, src=0)"
_LOOP = "for ... in model.named_buffers(): ... broadcast(...)"
_COMMENT = "# unhang fsdp2-buffer-order: in the order of their names, which is the same on every rank"
_UPSTREAM = "bufs = sorted(model.named_buffers(), key=lambda x: x[0])"


class LoadFullStateDict(Codemod):
    """Sort the buffers by name alone: two tensors cannot be compared.

    Before::

        def fsdp2_load_full_state_dict(model, full_state):
            for name, buf in model.named_buffers():
                dist.broadcast(buf, src=0)

    After::

        def fsdp2_load_full_state_dict(model, full_state):
            # unhang fsdp2-buffer-order: in the order of their names, which is the same on every rank
            for name, buf in sorted(model.named_buffers(), key=lambda item: item[0]):
                dist.broadcast(buf, src=0)
    """

    def plan(self, function: Function) -> list[Edit]:
        loops = [node for node in ast.walk(function) if isinstance(node, ast.For) and _broadcasts(node)]
        given = once([call for loop in loops for call in _unsorted(loop.iter)], _LOOP)
        return [replaced_by(function, given, f"sorted({expression(given)}, key=lambda item: item[0])", _COMMENT)]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset({"dist"} & mentioned(function))

    def fixed_upstream(self, function: Function) -> bool:
        loops = [node for node in ast.walk(function) if isinstance(node, ast.For) and matches(node.body, _BROADCAST)]
        orders = [node for node in function.body if matches([node], _UPSTREAM)]
        return [expression(loop.iter) for loop in loops] == ["bufs"] and len(orders) == 1


def _broadcasts(loop: ast.For) -> bool:
    called = (node.func for part in loop.body for node in ast.walk(part) if isinstance(node, ast.Call))
    return any(expression(function).rpartition(".")[2] == "broadcast" for function in called)


def _unsorted(order: ast.expr) -> list[ast.Call]:
    """Return what gives the buffers of a model to a loop in an order of its own."""
    if "sorted" in mentioned(order):
        return []
    found = [node for node in ast.walk(order) if isinstance(node, ast.Call)]
    return [node for node in found if isinstance(node.func, ast.Attribute) and node.func.attr == "named_buffers"]


CODEMODS = {"fsdp2_load_full_state_dict": LoadFullStateDict()}
