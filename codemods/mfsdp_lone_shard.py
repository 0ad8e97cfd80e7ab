"""megatron-core: a Megatron-FSDP group of one rank takes each micro-batch's gradient apart, as larger groups do.

https://github.com/NVIDIA/Megatron-LM/issues/6660
"""

from __future__ import annotations

import ast

from unhang.codemods.base import AnchorError, Codemod, argument, assigned, expression, mentioned, replaced_by
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_IS_SHARDED, _GIVEN = "is_grad_buffer_distributed", "is_data_distributed"
_BUFFERS = frozenset({"main_grad_buffer", "hfsdp_helper_gbuf", "hsdp_gbuf"})
_WHY = "# unhang mfsdp-lone-shard: a group of one, too"


class InitEachParameterGroupBuffers(Codemod):
    """Make the gradients of a group of one rank a shard, which holds all of them.

    Before::

        def init_buffers(self):
            is_grad_buffer_distributed = True
            for group in self.parameter_groups:
                group.transpose_weight_buffer = None
                group.main_grad_buffer = DataParallelBuffer(
                    group.params, is_data_distributed=is_grad_buffer_distributed and dp_group.size() > 1
                )

    After::

        def init_buffers(self):
            is_grad_buffer_distributed = True
            for group in self.parameter_groups:
                group.transpose_weight_buffer = None
                # unhang mfsdp-lone-shard: a group of one, too
                group.main_grad_buffer = DataParallelBuffer(
                    group.params, is_data_distributed=is_grad_buffer_distributed
                )
    """

    def plan(self, function: Function) -> list[Edit]:
        found = [it for it in ast.walk(function) if isinstance(it, ast.Assign) and _is_lone(it)]
        names = [it.targets[0].attr for it in found if isinstance(it.targets[0], ast.Attribute)]
        if "transpose_weight_buffer" not in mentioned(function):  # older ones do not overwrite a shard's bucket
            raise AnchorError("transpose_weight_buffer")
        if not _is_set(function) or len(set(names)) != len(found) or "main_grad_buffer" not in names:
            raise AnchorError(f"main_grad_buffer = ...({_GIVEN}={_IS_SHARDED} and ....size() > 1)")
        given = [argument(it.value, _GIVEN) for it in found if isinstance(it.value, ast.Call)]
        return [replaced_by(function, it, _IS_SHARDED, _WHY) for it in given if it]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset()

    def fixed_upstream(self, function: Function) -> bool:
        return not _is_set(function) and "sharding_strategy" in expression(function)


def _is_set(function: Function) -> bool:
    """Return whether a constant says what is sharded: upstream's fix asks for each group's own strategy."""
    values = [found[1] for it in ast.walk(function) if (found := assigned(it)) and found[0] == _IS_SHARDED]
    return any(isinstance(it, ast.Constant) for it in values)


def _is_lone(row: ast.Assign) -> bool:
    """Return whether a buffer of gradients is made that a group of one does not shard."""
    to, made = row.targets[0], row.value
    given = argument(made, _GIVEN) if isinstance(made, ast.Call) else None
    return (
        isinstance(to, ast.Attribute)
        and to.attr in _BUFFERS
        and isinstance(given, ast.BoolOp)
        and isinstance(given.op, ast.And)
        and len(given.values) == 2
        and expression(given.values[0]) == _IS_SHARDED
        and expression(given.values[1]).endswith(".size() > 1")
    )


CODEMODS = {"ParamAndGradBuffer._init_each_parameter_group_buffers": InitEachParameterGroupBuffers()}
