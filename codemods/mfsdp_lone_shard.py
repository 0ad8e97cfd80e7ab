"""megatron-core: a Megatron-FSDP group of one rank takes each micro-batch's gradient apart, as larger groups do.

https://github.com/NVIDIA/Megatron-LM/issues/6660
"""

from __future__ import annotations

import ast
import re

from unhang.codemods.base import AnchorError, Codemod, argument, assignments, expression, mentioned, once, replaced_by
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_WHY = "# unhang mfsdp-lone-shard: a group of one, too"
_LONE = re.compile(r"(\w+) and \w+\.size\(\) > 1")
_MAIN, _OTHERS = ".main_grad_buffer", (".hfsdp_helper_gbuf", ".hsdp_gbuf")


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
        made = [it for it in ast.walk(function) if isinstance(it, ast.Assign) and isinstance(it.value, ast.Call)]
        given = [(expression(it.targets[0]), argument(it.value, "is_data_distributed")) for it in made]  # type: ignore[arg-type]
        lone = [(to, it, found[1]) for to, it in given if it and (found := _LONE.fullmatch(expression(it)))]
        first = once([it for it in lone if it[0].endswith(_MAIN)], f"group{_MAIN} = ...({_LONE.pattern})")
        values = [value for _, name, value in assignments(function) if name == first[2]]
        if not any(isinstance(it, ast.Constant) for it in values):  # upstream's fix asks each group for it
            raise AnchorError("is_grad_buffer_distributed = True")
        others = [it for it in lone if it[0].endswith(_OTHERS)]
        return [replaced_by(function, it, name, _WHY) for _, it, name in (first, *others)]

    def fixed_upstream(self, function: Function) -> bool:
        return "group.sharding_strategy" in expression(function)


CODEMODS = {"ParamAndGradBuffer._init_each_parameter_group_buffers": InitEachParameterGroupBuffers()}
