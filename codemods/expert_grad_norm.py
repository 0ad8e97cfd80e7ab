"""megatron-core: mark the weights of grouped experts as split over the tensor-parallel ranks.

https://github.com/NVIDIA/Megatron-LM/pull/5916
"""

from __future__ import annotations

import ast

from unhang.codemods.base import (
    Codemod,
    assigned,
    calls,
    expression,
    followed_by,
    mentioned,
    once,
    preceded_by,
    refuse_own,
    span,
)
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_MODE, _MARK, _HELPER = "parallel_mode", "tensor_model_parallel", "_set_expert_parameter_attributes"
_KEPT = "original_parallel_mode"
_SAVE = """\
# unhang expert-grad-norm: how TP or EP splits it; Transformer Engine is not told
{kept} = parallel_mode
"""
_FLAG = """
# unhang expert-grad-norm: TP ranks hold other experts or other shards, which count
if (
    (
        {kept} in ("column", "row")
        or config.expert_tensor_parallel_size == 1
    )
    and config.tensor_model_parallel_size > 1
    and (
        self.expert_parallel
        or config.expert_tensor_parallel_size == config.tensor_model_parallel_size
    )
):
    for own_name, own in self.named_parameters():
        if own_name.rstrip("0123456789") == "weight":
            own.tensor_model_parallel = True
            if not hasattr(own, "partition_dim"):
                own.partition_dim = int({kept} == "row")
                own.partition_stride = 1
"""


class Constructor(Codemod):
    """Mark the weights where no two ranks of a tensor-parallel group hold the same one.

    Before::

        def __init__(self, parallel_mode, config):
            self.config = config
            if self.explicit_expert_comm:
                parallel_mode = None
            for param in self.parameters():
                param.allreduce = not self.expert_parallel

    After::

        def __init__(self, parallel_mode, config):
            self.config = config
            # unhang expert-grad-norm: how TP or EP splits it; Transformer Engine is not told
            original_parallel_mode = parallel_mode

            if self.explicit_expert_comm:
                parallel_mode = None
            for param in self.parameters():
                param.allreduce = not self.expert_parallel

            # unhang expert-grad-norm: TP ranks hold other experts or other shards, which count
            if (
                ...
            ):
                for own_name, own in self.named_parameters():
                    if own_name.rstrip("0123456789") == "weight":
                        own.tensor_model_parallel = True
                        if not hasattr(own, "partition_dim"):
                            own.partition_dim = int(original_parallel_mode == "row")
                            own.partition_stride = 1
    """

    def plan(self, function: Function) -> list[Edit]:
        refuse_own(function, [_MARK])
        loops = [it for it in function.body if isinstance(it, ast.For) and "allreduce" in mentioned(it)]
        loop = once([it for it in loops if expression(it.iter) == "self.parameters()"], "for ... in self.parameters()")
        hidden = once([it for it in function.body if _hides_mode(it)], f"if ...: {_MODE} = None")
        names = [name for name, value in filter(None, map(assigned, function.body)) if expression(value) == _MODE]
        if names:
            return [span(loop, loop, followed_by(_FLAG.format(kept=once(names, f"... = {_MODE}"))))]
        return [
            span(hidden, hidden, preceded_by(_SAVE.format(kept=_KEPT))),
            span(loop, loop, followed_by(_FLAG.format(kept=_KEPT))),
        ]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset()

    def fixed_upstream(self, function: Function) -> bool:
        return len(calls(function, _HELPER)) == 1 and not any("allreduce" in mentioned(it) for it in function.body)


def _hides_mode(node: ast.stmt) -> bool:
    """Return whether a statement takes the mode away under a condition, as where megatron-core does what it says."""
    rows = map(assigned, ast.walk(node)) if isinstance(node, ast.If) else ()
    return any(name == _MODE and expression(value) == "None" for name, value in filter(None, rows))


CODEMODS = {
    "TEGroupedLinear.__init__": Constructor(),
}
