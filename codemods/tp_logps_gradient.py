"""ms-swift: give the log probabilities of a sharded vocabulary their whole gradient.

https://github.com/modelscope/ms-swift/pull/9947, as merged, has a function of its own for the second edit.
"""

from __future__ import annotations

import ast

from unhang.codemods.base import AnchorError, Codemod, assigned, calls, expression, once, replaced_by, replacing
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_REDUCE = "torch.distributed.all_reduce"
_SHIFT = "# unhang tp-logps-gradient: only a shift, to which no gradient belongs"
_SUM = """\
# unhang tp-logps-gradient: all shards depend on the sum, so its gradient is summed over them as well
from megatron.core import tensor_parallel
{0} = tensor_parallel.reduce_from_tensor_model_parallel_region({0})
{0} = tensor_parallel.copy_to_tensor_model_parallel_region({0})
"""


class LogSoftmax(Codemod):
    """Compute the maximum without a gradient, and sum in the backward pass too.

    Before::

        def log_softmax(logits, group):
            top = logits.max(dim=-1, keepdim=True)[0]
            torch.distributed.all_reduce(top, op=torch.distributed.ReduceOp.MAX, group=group)
            total = torch.exp(logits - top).sum(dim=-1, keepdim=True)
            torch.distributed.all_reduce(total, op=torch.distributed.ReduceOp.SUM, group=group)
            return logits - top - torch.log(total)

    After::

        def log_softmax(logits, group):
            # unhang tp-logps-gradient: only a shift, to which no gradient belongs
            top = logits.detach().max(dim=-1, keepdim=True)[0]
            torch.distributed.all_reduce(top, op=torch.distributed.ReduceOp.MAX, group=group)
            total = torch.exp(logits - top).sum(dim=-1, keepdim=True)
            # unhang tp-logps-gradient: all shards depend on the sum, so its gradient is summed over them as well
            from megatron.core import tensor_parallel
            total = tensor_parallel.reduce_from_tensor_model_parallel_region(total)
            total = tensor_parallel.copy_to_tensor_model_parallel_region(total)
            return logits - top - torch.log(total)
    """

    def plan(self, function: Function) -> list[Edit]:
        maximum, _ = _reduced(function, "MAX")
        rows = [value for name, value in filter(None, map(assigned, function.body)) if name == maximum]
        tops = [it.value for row in rows for it in ast.walk(row) if isinstance(it, ast.Attribute) and it.attr == "max"]
        logits = once([it for it in tops if isinstance(it, ast.Name)], "the maximum of what is reduced so")
        name, reduce = _reduced(function, "SUM")
        shift = replaced_by(function, logits, f"{logits.id}.detach()", _SHIFT)
        return [shift, replacing(function, reduce, _SUM.format(name))]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset({"torch"})

    def fixed_upstream(self, function: Function) -> bool:
        blocks = [it for it in function.body if isinstance(it, ast.With) and calls(it.items[0], "torch.no_grad")]
        inside = [call for block in blocks for call in calls(block, _REDUCE)]
        sums = calls(function, "_AllReduceAcrossVocabShards.apply")
        return len(sums) == len(inside) == len(calls(function, _REDUCE)) == 1


def _reduced(function: Function, operation: str) -> tuple[str, str]:
    """Return the name of what is reduced so, and the code that does it."""
    anchor = f"{_REDUCE}(..., op=...{operation}, group=...)"
    call = once([call for call in calls(function, _REDUCE) if operation in expression(call)], anchor)
    is_whole = any(isinstance(it, ast.Expr) and it.value is call for it in function.body)
    if not is_whole or len(call.args) != 1 or [it.arg for it in call.keywords] != ["op", "group"]:
        raise AnchorError(anchor)
    return expression(call.args[0]), expression(call)


CODEMODS = {"vocab_parallel_log_softmax": LogSoftmax()}
