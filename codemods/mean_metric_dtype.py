"""ms-swift: reduce state and count of a metric in float32 on every rank.

https://github.com/modelscope/ms-swift/pull/9551
"""

from __future__ import annotations

from unhang.codemods.base import AnchorError, Codemod, argument, calls, expression, mentioned, once, with_argument
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_TENSOR = "torch.tensor([self.state, self.count], ...) without a dtype"
_COMMENT = "# unhang mean-metric-dtype: without a dtype, a numpy.float64 makes it float64 on the ranks that have one"


class Compute(Codemod):
    """Give the tensor that is reduced a dtype: inferred from its values, it may differ between ranks.

    Before::

        def compute(self):
            tensor = torch.tensor([self.state, self.count], device=self.device)
            dist.all_reduce(tensor, group=self.group)
            return tensor[0] / tensor[1]

    After::

        def compute(self):
            # unhang mean-metric-dtype: without a dtype, a numpy.float64 makes it float64 on the ranks that have one
            tensor = torch.tensor([self.state, self.count], dtype=torch.float32, device=self.device)
            dist.all_reduce(tensor, group=self.group)
            return tensor[0] / tensor[1]
    """

    def plan(self, function: Function) -> list[Edit]:
        made = once(
            [call for call in calls(function, "torch.tensor") if {"state", "count"} <= mentioned(call)], _TENSOR
        )
        if len(made.args) != 1 or {None, "dtype"} & {keyword.arg for keyword in made.keywords}:
            raise AnchorError(_TENSOR)
        # the first of the keywords, as upstream: infer-metric-rank0 depends on this function, and knows that shape
        return [with_argument(function, made, "dtype=torch.float32", _COMMENT, at=1)]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset({"torch"})

    def fixed_upstream(self, function: Function) -> bool:
        made = [argument(call, "dtype") for call in calls(function, "torch.tensor")]
        return len(made) == 1 and made[0] is not None and expression(made[0]) == "torch.float32"


CODEMODS = {"MeanMetric.compute": Compute()}
