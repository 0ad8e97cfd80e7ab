"""verl: let the critic's micro-batches add up to the loss of the whole mini-batch.

https://github.com/verl-project/verl/pull/6957
"""

from __future__ import annotations

import ast

from unhang.codemods.base import (
    Codemod,
    argument,
    calls,
    expression,
    followed_by,
    mentioned,
    once,
    operand,
    preceded_by,
    refuse_own,
    replaced_by,
    span,
)
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function, has_docstring

_LOSS = "compute_value_loss"
_OWN = ("metric", "whole", "nothing", "logged", "mean", "divisor", "given")
_SUM = "AggregationType"
_KEYS = ("dp_size", "batch_num_tokens", "global_batch_size")
_MARK = "# unhang critic-microbatch-scale: "
_READ = """\
{mark}engines add up micro-batches, so each is to be its part of the mini-batch
from verl.utils import metric

whole = {{key: {data}[key] for key in ("dp_size", "batch_num_tokens", "global_batch_size") if key in {data}.keys()}}
whole["loss_scale_factor"] = getattr({config}, "loss_scale_factor", None)
"""
_SCALE = """\
{mark}so far a mean over the micro-batch, and NaN where that has no token
nothing, logged = ~{mask}.any(), None
{loss} = mean = {loss}.masked_fill(nothing, 0.0)
divisor = "batch_num_tokens" if {mode} == "token-mean" else "global_batch_size"
if {{"dp_size", divisor}} <= whole.keys():
    given = {mask}.float(), {mask}, {mode}
    {loss} = (mean * (agg_loss(*given, **whole) / agg_loss(*given))).masked_fill(nothing, 0.0)
    if hasattr(metric, "Metric"):
        logged = metric.Metric(value={loss}, aggregation=metric.AggregationType.SUM)
"""
_LOGGED = "a sum over micro-batches, as the loss is; 0.7.0 averages what is logged"


class ValueLoss(Codemod):
    """Make the mean over a micro-batch its part of the loss of the mini-batch, and log it as such a part.

    Before::

        def value_loss(config, output, data):
            found = output["values"]
            mask = data.select("mask")["mask"]
            loss, clipped = compute_value_loss(vpreds=found, response_mask=mask, loss_agg_mode=config.mode)
            return loss, {"loss": loss.detach().item()}

    After::

        def value_loss(config, output, data):
            # unhang critic-microbatch-scale: engines add up micro-batches, so each is to be its part of the mini-batch
            from verl.utils import metric

            ...
            whole["loss_scale_factor"] = getattr(config, "loss_scale_factor", None)

            found = output["values"]
            mask = data.select("mask")["mask"]
            loss, clipped = compute_value_loss(vpreds=found, response_mask=mask, loss_agg_mode=config.mode)
            # unhang critic-microbatch-scale: so far a mean over the micro-batch, and NaN where that has no token
            nothing, logged = ~mask.any(), None
            loss = mean = loss.masked_fill(nothing, 0.0)
            ...
                given = mask.float(), mask, config.mode
                loss = (mean * (agg_loss(*given, **whole) / agg_loss(*given))).masked_fill(nothing, 0.0)
                ...
            # unhang critic-microbatch-scale: a sum over micro-batches, as the loss is; 0.7.0 averages what is logged
            return loss, {"loss": mean.item() if logged is None else logged}
    """

    def plan(self, function: Function) -> list[Edit]:
        refuse_own(function, [*_OWN, *_KEYS])
        row, found, call = once(_computed(function), f"..., ... = {_LOSS}(...)")
        config, _, data = (one.arg for one in function.args.args[:3])
        loss = expression(found)
        names = {
            "mask": operand(argument(call, "response_mask"), "response_mask=..."),
            "mode": operand(argument(call, "loss_agg_mode"), "loss_agg_mode=..."),
        }
        number = once(calls(function, f"{loss}.detach().item"), f"{loss}.detach().item()")
        first = function.body[has_docstring(function)]
        return [
            span(first, first, preceded_by(_READ.format(mark=_MARK, data=data, config=config))),
            span(row, row, followed_by(_SCALE.format(mark=_MARK, loss=loss, **names))),
            replaced_by(function, number, "mean.item() if logged is None else logged", f"{_MARK}{_LOGGED}"),
        ]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset({"agg_loss"})

    def fixed_upstream(self, function: Function) -> bool:
        *_, call = once(_computed(function), f"..., ... = {_LOSS}(...)")
        return _SUM in mentioned(function) and all(argument(call, key) is not None for key in _KEYS)


def _computed(function: Function) -> list[tuple[ast.Assign, ast.expr, ast.Call]]:
    """Return where the loss of a micro-batch is computed: the statement, the name of the loss, the call."""
    return [
        (row, row.targets[0].elts[0], call)
        for row in ast.walk(function)
        if isinstance(row, ast.Assign) and isinstance(row.targets[0], ast.Tuple)
        for call in calls(row, _LOSS)
        if call is row.value
    ]


CODEMODS = {
    "value_loss": ValueLoss(),
}
