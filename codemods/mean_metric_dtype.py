"""ms-swift: reduce state and count of a metric in float32 on every rank.

https://github.com/modelscope/ms-swift/pull/9551
"""

from __future__ import annotations

from unhang.codemods.base import Codemod, argument, calls, expression, once, replaced_by
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_TENSOR = "torch.tensor([self.state, self.count], device=self.device)"
# In upstream's order: infer-metric-rank0 depends on this function, and knows the shape that results.
_NEW = "torch.tensor([self.state, self.count], dtype=torch.float32, device=self.device)"
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
        found = [call for call in calls(function, "torch.tensor") if expression(call) == _TENSOR]
        return [replaced_by(function, once(found, _TENSOR), _NEW, _COMMENT)]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset({"torch"})

    def fixed_upstream(self, function: Function) -> bool:
        made = [argument(call, "dtype") for call in calls(function, "torch.tensor")]
        return len(made) == 1 and made[0] is not None and expression(made[0]) == "torch.float32"


CODEMODS = {"MeanMetric.compute": Compute()}
