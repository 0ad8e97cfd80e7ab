"""Megatron-Bridge: hand the loss mask to a model with layers of multi-token prediction.

https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/6105 (open; it hands the mask to every model, whether or not it
takes one, and some vision models then return two values)
"""

from __future__ import annotations

import ast

from unhang.codemods.base import AnchorError, Codemod, argument, expression, holder, once, operand, preceded_by, span
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_MASK, _PLAN = "loss_mask", "build_schedule_plan"
_ROWS = (ast.Assign, ast.AnnAssign, ast.Return)
_ADDED = f"""# unhang bridge-mtp-loss-mask: without it, MTP trains on prompt and padding
from inspect import signature
from megatron.core import utils as core_utils
try:
    core_model = core_utils.get_attr_wrapped_model({{model}}, "mtp_process", return_model_obj=True)
except RuntimeError:  # no module in it has one
    core_model = None
has_mtp = core_model is not None and core_model.config.mtp_num_layers
if has_mtp and "{_MASK}" in signature(core_model.forward).parameters:
    {{given}}["{_MASK}"] = {{mask}}
"""


class ForwardStepCommon(Codemod):
    """Add the mask to the arguments, if the model itself may have such layers and takes a mask.

    ``mtp_process`` is false on a pipeline stage that has no such layer, and computes their losses all the same.

    Before::

        def step(batch, model, is_plan=False):
            tokens, labels, mask = batch
            given = {"input_ids": tokens, "labels": labels}
            if is_plan:
                return model.build_schedule_plan(tokens, labels=labels, loss_mask=mask)
            output = model(**given)
            return output, mask

    After::

        def step(batch, model, is_plan=False):
            tokens, labels, mask = batch
            given = {"input_ids": tokens, "labels": labels}
            if is_plan:
                return model.build_schedule_plan(tokens, labels=labels, loss_mask=mask)
            # unhang bridge-mtp-loss-mask: without it, MTP trains on prompt and padding
            from inspect import signature
            from megatron.core import utils as core_utils
            try:
                core_model = core_utils.get_attr_wrapped_model(model, "mtp_process", return_model_obj=True)
            except RuntimeError:  # no module in it has one
                core_model = None
            has_mtp = core_model is not None and core_model.config.mtp_num_layers
            if has_mtp and "loss_mask" in signature(core_model.forward).parameters:
                given["loss_mask"] = mask

            output = model(**given)
            return output, mask
    """

    def plan(self, function: Function) -> list[Edit]:
        if _hands_over(function):
            raise AnchorError(f"{function.name} without {_MASK!r}")
        called = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
        plan = once([it for it in called if expression(it.func).endswith(f".{_PLAN}")], _PLAN)
        model = expression(plan.func).removesuffix(f".{_PLAN}")
        call = once([it for it in called if expression(it.func) == model and _is_spread(it)], f"{model}(**...)")
        mask = operand(argument(plan, _MASK), f"{_PLAN}(..., {_MASK}=...)")
        new = _ADDED.format(model=model, given=expression(call.keywords[0].value), mask=mask)
        rows = [node for node in ast.walk(function) if isinstance(node, _ROWS) and holder([node], call)]
        row = once(rows, f"... = {model}(**...)")
        return [span(row, row, preceded_by(new))]

    def fixed_upstream(self, function: Function) -> bool:
        return _hands_over(function)


def _hands_over(function: Function) -> bool:
    """Return whether the function names the mask as an argument of the model."""
    nodes = list(ast.walk(function))
    changed = [it for it in nodes if isinstance(it, ast.Call) and expression(it.func).endswith((".update", "dict"))]
    return any(argument(it, _MASK) for it in changed) or any(getattr(it, "value", None) == _MASK for it in nodes)


def _is_spread(call: ast.Call) -> bool:
    """Return whether this call is ``it(**names)``."""
    return not call.args and [keyword.arg for keyword in call.keywords] == [None]


CODEMODS = {"_forward_step_common": ForwardStepCommon()}
