"""megatron-core: weights that are loaded late reach all copies that an offloaded optimizer steps on.

https://github.com/NVIDIA/Megatron-LM/pull/5071, open, refreshes the main parameters, and then their copies, too.
"""

from __future__ import annotations

import ast

from unhang.codemods.base import AnchorError, Codemod, calls, expression, followed_by, instead, once, span
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_ENDS = ast.Return, ast.Raise
_RELOADS = "self.optimizer.reload_model_params"
_OFFLOADS = "isinstance(self.optimizer, HybridDeviceOptimizer)"
_COPY = """\
    for param, copy in self.optimizer.param_to_inner_param.items():
        copy.data.copy_(param)
"""
_BEFORE = f"""\
# unhang offload-late-weights: it steps on copies; main params, if any, come first, below
if {_OFFLOADS} and (
    {{}}
):
{_COPY}    return
"""


class CopyModelParams(Codemod):
    """Copy to the main parameters first, where there are any, and then to all copies of the offloaded optimizer.

    Before::

        def copy_params(self):
            if isinstance(self.optimizer, HybridDeviceOptimizer):
                return
            if self.config.use_precision_aware_optimizer:
                return
            self.copy_group_params()

    After::

        def copy_params(self):
            # unhang offload-late-weights: it steps on copies; main params, if any, come first, below
            if isinstance(self.optimizer, HybridDeviceOptimizer) and (
                self.config.use_precision_aware_optimizer
            ):
                for param, copy in self.optimizer.param_to_inner_param.items():
                    copy.data.copy_(param)
            ...
            if isinstance(self.optimizer, HybridDeviceOptimizer):
                for param, copy in self.optimizer.param_to_inner_param.items():
                    copy.data.copy_(param)
    """

    def plan(self, function: Function) -> list[Edit]:
        ends = [it for it in function.body if isinstance(it, ast.If) and isinstance(it.body[-1], _ENDS)]
        stale = [it for it in ends if expression(it.test) == _OFFLOADS and not calls(it, _RELOADS)]
        branch = once(stale, f"if {_OFFLOADS}: ... return, without {_RELOADS}")
        others = [expression(row.test) for row in ends[ends.index(branch) + 1 :]]
        if not any("use_precision_aware_optimizer" in it for it in others):
            raise AnchorError("if self.config.use_precision_aware_optimizer..: return")
        first, last = instead(_BEFORE.format("\n    or ".join(others))), function.body[-1]
        return [span(branch, branch, first), span(last, last, followed_by(f"if {_OFFLOADS}:\n{_COPY}"))]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset({"HybridDeviceOptimizer"})

    def fixed_upstream(self, function: Function) -> bool:
        main = calls(function, "self._copy_model_params_to_shard_main_params")
        return len(main) == 2 and len(calls(function, _RELOADS)) == 1


CODEMODS = {"DistributedOptimizer._copy_model_params_to_main_params": CopyModelParams()}
