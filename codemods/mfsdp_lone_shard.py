"""megatron-core: a Megatron-FSDP group of one rank takes each micro-batch's gradient apart, as larger groups do.

https://github.com/NVIDIA/Megatron-LM/issues/6660
"""

from __future__ import annotations

import ast
import re

from unhang.codemods.base import AnchorError, Codemod, argument, assigned, expression, mentioned, once, replaced_by
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_IS_SHARDED, _WHY = "is_grad_buffer_distributed", "# unhang mfsdp-lone-shard: a group of one, too"
_LONE = re.compile(rf"{_IS_SHARDED} and \w+\.size\(\) > 1")
_MAIN, _OTHERS = "group.main_grad_buffer", ("group.hfsdp_helper_gbuf", "group.hsdp_gbuf")


class InitEachParameterGroupBuffers(Codemod):
    """Make the gradients of a group of one rank a shard, which holds all of them.

    Before::

        def init_buffers(self):
            is_grad_buffer_distributed = True
            for group in self.parameter_groups:
                group.transpose_weight_buffer = None
                group.main_grad_buffer = Buffer(is_data_distributed=is_grad_buffer_distributed and dp.size() > 1)

    After::

        def init_buffers(self):
            is_grad_buffer_distributed = True
            for group in self.parameter_groups:
                group.transpose_weight_buffer = None
                # unhang mfsdp-lone-shard: a group of one, too
                group.main_grad_buffer = Buffer(is_data_distributed=is_grad_buffer_distributed)
    """

    def plan(self, function: Function) -> list[Edit]:
        if "transpose_weight_buffer" not in mentioned(function):  # older ones do not overwrite a shard's bucket
            raise AnchorError("transpose_weight_buffer")
        values = [found[1] for it in ast.walk(function) if (found := assigned(it)) and found[0] == _IS_SHARDED]
        if not any(isinstance(it, ast.Constant) for it in values):  # upstream's fix asks each group for it
            raise AnchorError(f"{_IS_SHARDED} = True")
        made = [it for it in ast.walk(function) if isinstance(it, ast.Assign) and isinstance(it.value, ast.Call)]
        given = [(expression(it.targets[0]), argument(it.value, "is_data_distributed")) for it in made]  # type: ignore[arg-type]
        lone = [(to, it) for to, it in given if it and _LONE.fullmatch(expression(it))]
        first = once([it for to, it in lone if to == _MAIN], f"{_MAIN} = ...({_LONE.pattern})")
        others = [it for to, it in lone if to in _OTHERS]
        return [replaced_by(function, it, _IS_SHARDED, _WHY) for it in (first, *others)]

    def fixed_upstream(self, function: Function) -> bool:
        return "group.sharding_strategy" in expression(function)


CODEMODS = {"ParamAndGradBuffer._init_each_parameter_group_buffers": InitEachParameterGroupBuffers()}
