"""megatron-core: Megatron-FSDP reduces the gradients that are left over in the order of their buckets.

https://github.com/NVIDIA/Megatron-LM/pull/2218
"""

from __future__ import annotations

import ast

from unhang.codemods.base import Codemod, argument, assigned, calls, expression, mentioned, once, replaced_by
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_BUCKETS, _GIVEN = "param_to_param_group", "params"
_LOOP = f"for ... in {_GIVEN}: ... {_BUCKETS} ..."
_COMMENT = "# unhang fsdp-reduce-order: by bucket, for a set has another order on each rank"


class ReduceGradients(Codemod):
    """Go through the parameters by the numbers of their buckets; two parameters cannot be compared.

    Before::

        def reduce_gradients(self, params):
            for param in params:
                self.reduce(self.buffer.param_to_param_group[param])

    After::

        def reduce_gradients(self, params):
            # unhang fsdp-reduce-order: by bucket, for a set has another order on each rank
            for param in sorted(params, key=lambda p: self.buffer.param_to_param_group[p]):
                self.reduce(self.buffer.param_to_param_group[param])
    """

    def plan(self, function: Function) -> list[Edit]:
        loops = [node for node in ast.walk(function) if isinstance(node, ast.For) and _BUCKETS in mentioned(node)]
        is_sorted = bool(calls(function, "sorted"))
        given = once([it.iter for it in loops if expression(it.iter) == _GIVEN and not is_sorted], _LOOP)
        new = f"sorted({_GIVEN}, key=lambda p: self.buffer.{_BUCKETS}[p])"
        return [replaced_by(function, given, new, _COMMENT)]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset()

    def fixed_upstream(self, function: Function) -> bool:
        given = [value for name, value in filter(None, map(assigned, function.body)) if name == _GIVEN]
        sorts = [
            call for one in given for call in calls(one, "sorted") if call is one and _GIVEN in mentioned(*call.args)
        ]
        keys = [argument(call, "key") for call in sorts]
        wanted = [f"lambda {name}: self.buffer.{_BUCKETS}[{name}]" for name in ("x", "p", "param")]
        return len(given) == 1 and any(key and expression(key) in wanted for key in keys)


CODEMODS = {
    "GradReducePipeline.reduce_gradients": ReduceGradients(),
}
