"""megatron-core: return the sum of a tensor that is not contiguous, and not the tensor.

https://github.com/NVIDIA/Megatron-LM/pull/5338
"""

from __future__ import annotations

import ast

from unhang.codemods.base import AnchorError, Codemod, assigned, calls, expression, once, preceded_by, span
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_REDUCE = "torch.distributed.all_reduce"
_COMMENT = "# unhang reduce-noncontiguous: sum what is returned, and no copy of it"


class Reduce(Codemod):
    """Give the contiguous tensor the name that is returned; that of a contiguous one is itself.

    Before::

        def reduce(x, group):
            torch.distributed.all_reduce(x.contiguous(), group=group)
            return x

    After::

        def reduce(x, group):
            # unhang reduce-noncontiguous: sum what is returned, and no copy of it
            x = x.contiguous()

            torch.distributed.all_reduce(x.contiguous(), group=group)
            return x
    """

    def plan(self, function: Function) -> list[Edit]:
        returned = _returned(function)
        copy = f"{returned}.contiguous()"
        summed = [it for it in function.body if isinstance(it, ast.Expr) and _summed(it.value) == [copy]]
        row = once(summed, f"{_REDUCE}({copy}, ...), and then return {returned}")
        if any(name == returned for name, _ in filter(None, map(assigned, ast.walk(function)))):
            raise AnchorError(f"{returned} as it is given")
        return [span(row, row, preceded_by(f"{_COMMENT}\n{returned} = {copy}\n"))]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset()

    def fixed_upstream(self, function: Function) -> bool:
        returned = _returned(function)
        copied = [expression(value) for name, value in filter(None, map(assigned, function.body)) if name == returned]
        return copied == [f"{returned}.contiguous()"] and _summed(function) == [returned]


def _returned(function: Function) -> str:
    """Return the name of what the function returns at its end; empty where that has none."""
    last = function.body[-1]
    return last.value.id if isinstance(last, ast.Return) and isinstance(last.value, ast.Name) else ""


def _summed(node: ast.AST) -> list[str]:
    """Return what the calls in a node all-reduce."""
    return [expression(call.args[0]) for call in calls(node, _REDUCE) if call.args]


CODEMODS = {"_reduce": Reduce()}
