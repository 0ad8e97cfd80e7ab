"""ms-swift: train Megatron's DPO with the loss that loss_type names.

https://github.com/modelscope/ms-swift/pull/10167, open, also passes the type and takes means for IPO.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from unhang.codemods.base import (
    AnchorError,
    Codemod,
    argument,
    assigned,
    calls,
    changing,
    expression,
    mentioned,
    once,
)
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

if TYPE_CHECKING:
    import libcst as cst

    from unhang.codemods.edit import Statements

_TRAINER = "self.dummy_dpo_trainer"
_LOSS, _LOGPS = f"{_TRAINER}.dpo_loss", "self.get_logps"
_ANCHOR = f"{_LOSS}(...[...], ...[...], ...[...], ...[...])"
_OURS = ("scores", "ref_scores")
_SCORES = """\
# unhang megatron-dpo-loss-type: IPO takes means over the tokens of an answer; get_logps counts these
scores, ref_scores = {}, {}
if {trainer}.loss_type == 'ipo':
    each = torch.full_like({}, -1, dtype=torch.float32)
    tokens = {counts}(each, {}).clamp(min=1)
    scores, ref_scores = scores / tokens, ref_scores / tokens
import inspect
named = {{}}
if 'loss_type' in inspect.signature({loss}).parameters:
    named['loss_type'] = {trainer}.loss_type
"""
_WHY = "# unhang megatron-dpo-loss-type: it goes by its argument; that of trl before 0.20 has none"


class LossFunc(Codemod):
    """Hand dpo_loss the type of the loss, and, for IPO, means in place of sums.

    Before::

        def loss_func(self, output, labels, packed):
            logps = self.get_logps(output, labels, packed)
            ref = self.get_logps(self.frozen(output), labels, packed)
            loss, *_ = self.dummy_dpo_trainer.dpo_loss(logps[:2], logps[2:], ref[:2], ref[2:])
            return loss.mean()

    After::

        def loss_func(self, output, labels, packed):
            logps = self.get_logps(output, labels, packed)
            ref = self.get_logps(self.frozen(output), labels, packed)
            # unhang megatron-dpo-loss-type: IPO takes means over the tokens of an answer; get_logps counts these
            scores, ref_scores = logps, ref
            if self.dummy_dpo_trainer.loss_type == 'ipo':
                each = torch.full_like(output, -1, dtype=torch.float32)
                tokens = self.get_logps(each, labels, packed).clamp(min=1)
                scores, ref_scores = scores / tokens, ref_scores / tokens
            import inspect
            named = {}
            if 'loss_type' in inspect.signature(self.dummy_dpo_trainer.dpo_loss).parameters:
                named['loss_type'] = self.dummy_dpo_trainer.loss_type
            # unhang megatron-dpo-loss-type: it goes by its argument; that of trl before 0.20 has none
            loss, *_ = self.dummy_dpo_trainer.dpo_loss(scores[:2], scores[2:], ref_scores[:2], ref_scores[2:], **named)
            return loss.mean()
    """

    def plan(self, function: Function) -> list[Edit]:
        call = once(calls(function, _LOSS), _ANCHOR)
        names = [expression(it.value) for it in call.args if isinstance(it, ast.Subscript)]
        if len(names) != len(call.args) or call.keywords or names != [*names[:1] * 2, *names[2:3] * 2]:
            raise AnchorError(_ANCHOR)
        logps = names[0]
        anchor = f"{logps} = {_LOGPS}(...)"
        rows = [value for name, value in filter(None, map(assigned, function.body)) if name == logps]
        counted = once([it for it in calls(function, _LOGPS) if it in rows], anchor)
        output, *others = map(expression, counted.args)
        template = _SCORES.format(*names[1:3], output, ", ".join(others), trainer=_TRAINER, counts=_LOGPS, loss=_LOSS)
        inner = changing(function, call, _named, _WHY)

        def change(nodes: Statements) -> Statements:
            from unhang.codemods import splice

            return [*splice.suite(template), *inner.change(nodes)]

        return [inner._replace(change=change)]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset({"torch"})

    def fixed_upstream(self, function: Function) -> bool:
        call = once(calls(function, _LOSS), _ANCHOR)
        return argument(call, "loss_type") is not None and "ipo" in mentioned(function)


def _named(old: cst.BaseExpression) -> cst.BaseExpression:
    """Return the call with our names in the place of those of the sums, and with what names the loss."""
    import libcst as cst

    from unhang.codemods import splice

    call = cst.ensure_type(old, cst.Call)
    names = [_OURS[0]] * 2 + [_OURS[1]] * 2
    args = [arg.with_deep_changes(arg.value, value=cst.Name(name)) for arg, name in zip(call.args, names)]
    return splice.with_argument(call.with_changes(args=args), "**named", len(args))


CODEMODS = {"MegatronDPOTrainer.loss_func": LossFunc()}
