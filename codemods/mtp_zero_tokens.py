"""megatron-core: divide the loss of multi-token prediction by no zero.

https://github.com/NVIDIA/Megatron-LM/pull/3396
"""

from __future__ import annotations

import ast

from unhang.codemods.base import AnchorError, Codemod, calls, expression, once, replaced_by
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_ROLL, _SCALER = "roll_tensor", "MTPLossAutoScaler.apply"
_COMMENT = "# unhang mtp-zero-tokens: {}"
_WHY = "without a token the loss is zero, and its gradient, not 0 / 0"


class Loss(Codemod):
    """Divide by one where no token is left; any other count, also one below one, stays as it is.

    Before::

        def forward(self, mask, losses, hidden):
            mask, count = roll_tensor(mask, shifts=-1)
            losses = mask * losses
            self.log(losses.sum() / count)
            return MTPLossAutoScaler.apply(hidden, losses / count)

    After::

        def forward(self, mask, losses, hidden):
            mask, count = roll_tensor(mask, shifts=-1)
            losses = mask * losses
            # unhang mtp-zero-tokens: without a token the loss is zero, and its gradient, not 0 / 0
            self.log(losses.sum() / (count + (count == 0)))
            # unhang mtp-zero-tokens: as above
            return MTPLossAutoScaler.apply(hidden, losses / (count + (count == 0)))
    """

    def plan(self, function: Function) -> list[Edit]:
        once(calls(function, _SCALER)[:1], f"{_SCALER}(...)")
        count = _count(function)
        divided = [it for it in ast.walk(function) if isinstance(it, ast.BinOp) and isinstance(it.op, ast.Div)]
        by_count = [it.right for it in divided if expression(it.right) == count]
        if len(by_count) != 2:
            raise AnchorError(f"... / {count}, twice", len(by_count))
        by_count.sort(key=lambda node: node.lineno)
        new = f"({count} + ({count} == 0))"
        whys = (_WHY, "as above")
        return [replaced_by(function, node, new, _COMMENT.format(why)) for node, why in zip(by_count, whys)]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset()

    def fixed_upstream(self, function: Function) -> bool:
        count = _count(function)
        return any(expression(call) == f"{count}.clamp(min=1)" for call in calls(function, f"{count}.clamp"))


def _count(function: Function) -> str:
    """Return the name of the number of tokens: the second that a call gives, where it is used."""
    rows = [
        row.targets[0].elts[1]
        for row in ast.walk(function)
        if isinstance(row, ast.Assign) and isinstance(row.targets[0], ast.Tuple) and row.value in calls(row, _ROLL)
    ]
    return once([expression(name) for name in rows if expression(name) != "_"], f"..., ... = {_ROLL}(...)")


CODEMODS = dict.fromkeys(
    ("GPTModel._postprocess", "MultiTokenPredictionBlock.forward", "process_mtp_loss"),
    Loss(),
)
