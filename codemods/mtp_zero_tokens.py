"""megatron-core, mcore-bridge, verl: never divide the loss of multi-token prediction by zero.

https://github.com/NVIDIA/Megatron-LM/pull/3396
"""

from __future__ import annotations

import ast

from unhang.codemods.base import AnchorError, Codemod, assigned, calls, expression, followed_by, once, span
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_ROLL, _SCALER = "roll_tensor", "MTPLossAutoScaler.apply"
_COMMENT = "# unhang mtp-zero-tokens: the loss of no token is zero, and not 0 / 0"


class Loss(Codemod):
    """Count no token as one; any other number, also one below one, stays as it is.

    Before::

        def forward(self, mask, losses, hidden):
            mask, count = roll_tensor(mask, shifts=-1)
            losses = mask * losses
            self.log(losses.sum() / count)
            return MTPLossAutoScaler.apply(hidden, losses / count)

    After::

        def forward(self, mask, losses, hidden):
            mask, count = roll_tensor(mask, shifts=-1)
            # unhang mtp-zero-tokens: the loss of no token is zero, and not 0 / 0
            count = count + (count == 0)
            losses = mask * losses
            self.log(losses.sum() / count)
            return MTPLossAutoScaler.apply(hidden, losses / count)
    """

    def plan(self, function: Function) -> list[Edit]:
        once(calls(function, _SCALER)[:1], f"{_SCALER}(...)")
        divided = [it for it in ast.walk(function) if isinstance(it, ast.BinOp) and isinstance(it.op, ast.Div)]
        divisors = [expression(it.right) for it in divided]
        row, count = once([it for it in _counted(function) if it[1] in divisors], f"..., ... = {_ROLL}(...)")
        if divisors.count(count) != 2:
            raise AnchorError(f"... / {count}, twice", divisors.count(count))
        others = [assigned(it) for it in ast.walk(function) if it is not row]
        if any(name == count for name, _ in filter(None, others)):
            raise AnchorError(f"{count} as {_ROLL} returns it")
        return [span(row, row, followed_by(f"{_COMMENT}\n{count} = {count} + ({count} == 0)\n"))]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset()

    def fixed_upstream(self, function: Function) -> bool:
        safe = [call for _, count in _counted(function) for call in calls(function, f"{count}.clamp")]
        return any(expression(call).endswith(".clamp(min=1)") for call in safe)


def _counted(function: Function) -> list[tuple[ast.stmt, str]]:
    """Return where tokens are counted, and the name of their number: the second that a shift gives, or a sum."""
    found: list[tuple[ast.stmt, str]] = []
    for row in (node for node in ast.walk(function) if isinstance(node, ast.stmt)):
        if isinstance(row, ast.Assign) and isinstance(row.targets[0], ast.Tuple) and row.value in calls(row, _ROLL):
            found.append((row, expression(row.targets[0].elts[1])))
        elif (named := assigned(row)) and expression(named[1]).endswith(".sum()"):
            found.append((row, named[0]))
    return found


CODEMODS = dict.fromkeys(
    (
        *("GPTModel._postprocess", "MultiTokenPredictionBlock.forward", "process_mtp_loss"),
        "_megatron_gptmodel_postprocess",
    ),
    Loss(),
)
