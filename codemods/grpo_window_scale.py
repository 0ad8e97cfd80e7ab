"""trl: divide the loss of a GRPO step by the tokens of its own window, not by those of the generation.

https://github.com/huggingface/trl/pull/6024
"""

from __future__ import annotations

import ast
import re

from unhang.codemods.base import Codemod, assignments, expression, followed_by, mentioned, once, refuse_own, span
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_TOKENS, _STEPS, _WINDOW = "num_items_in_batch", "steps_per_generation", "current_gradient_accumulation_steps"
_DIVIDED = rf"inputs\['{_TOKENS}'\](\.clamp\(min=1\.0\))? / self\.accelerator\.num_processes"
_SCALED = """\
# unhang grpo-window-scale: so far the tokens of a generation; an optimizer step has those of its window
if self.model.training:
    {name} = {name} * (self.{window} / self.args.{steps})
"""


class ComputeLoss(Codemod):
    """Scale the number of a generation's tokens to one window of gradient accumulation.

    Before::

        def loss_of(self, losses, inputs):
            divisor = inputs["num_items_in_batch"] / self.accelerator.num_processes
            return losses.sum() / divisor

    After::

        def loss_of(self, losses, inputs):
            divisor = inputs["num_items_in_batch"] / self.accelerator.num_processes
            # unhang grpo-window-scale: so far the tokens of a generation; an optimizer step has those of its window
            if self.model.training:
                divisor = divisor * (self.current_gradient_accumulation_steps / self.args.steps_per_generation)
            return losses.sum() / divisor
    """

    def plan(self, function: Function) -> list[Edit]:
        refuse_own(function, [_STEPS])  # or upstream's own fix
        row, name = _divisor(function)
        return [span(row, row, followed_by(_SCALED.format(name=name, window=_WINDOW, steps=_STEPS)))]

    def fixed_upstream(self, function: Function) -> bool:
        _, name = _divisor(function)
        later = [value for _, other, value in assignments(function) if other == name]
        return any({_STEPS, _WINDOW, name} <= mentioned(value) for value in later)


def _divisor(function: Function) -> tuple[ast.stmt, str]:
    """Return the row that divides the tokens of a generation among the processes, and the name of the result."""
    found = [(row, name) for row, name, value in assignments(function) if re.fullmatch(_DIVIDED, expression(value))]
    return once(found, f"... = inputs['{_TOKENS}'] / self.accelerator.num_processes")


CODEMODS = {"GRPOTrainer._compute_loss": ComputeLoss(), "DPPOTrainer._compute_loss": ComputeLoss()}
