"""megatron-core: Megatron-FSDP reduces the gradients that are left over in the order of their buckets.

https://github.com/NVIDIA/Megatron-LM/pull/2218
"""

from __future__ import annotations

import ast

from unhang.codemods.base import Codemod, argument, assigned, calls, expression, mentioned, once, replaced_by
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_BUCKETS, _GIVEN = "param_to_param_group", "params"
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
        found = [it.iter for it in loops if expression(it.iter) == _GIVEN and not calls(function, "sorted")]
        new = f"sorted({_GIVEN}, key=lambda p: self.buffer.{_BUCKETS}[p])"
        return [replaced_by(function, once(found, f"for ... in {_GIVEN}: ... {_BUCKETS} ..."), new, _COMMENT)]

    def fixed_upstream(self, function: Function) -> bool:
        given = [value for name, value in filter(None, map(assigned, function.body)) if name == _GIVEN]
        sorts = [it for one in given for it in calls(one, "sorted") if it is one and _GIVEN in mentioned(*it.args)]
        wanted = [f"lambda {name}: self.buffer.{_BUCKETS}[{name}]" for name in ("x", "p", "param")]
        return len(given) == 1 and any((key := argument(it, "key")) and expression(key) in wanted for it in sorts)


CODEMODS = {
    "GradReducePipeline.reduce_gradients": ReduceGradients(),
}
