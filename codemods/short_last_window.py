"""ms-swift: divide by the micro-batches of the window that is accumulated, of which an epoch's last has fewer.

https://github.com/modelscope/ms-swift/pull/10084 does so in two trainers, in an evaluation too.
"""

from __future__ import annotations

import ast

from unhang.codemods.base import Codemod, expression, once, replaced_by
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_ALL, _WINDOW = "self.args.gradient_accumulation_steps", "'current_gradient_accumulation_steps'"
_DIVIDED = f"... / {_ALL}"
_COMMENT = "# unhang short-last-window: the last window of an epoch may have fewer micro-batches"


class ComputeLoss(Codemod):
    """Divide the loss of a step by the count of its own window; that of an evaluation as before.

    Before::

        def compute_loss(self, model, inputs, num_items_in_batch=None):
            loss = model(inputs)
            if num_items_in_batch is not None:
                loss = loss / self.args.gradient_accumulation_steps
            return loss

    After::

        def compute_loss(self, model, inputs, num_items_in_batch=None):
            loss = model(inputs)
            if num_items_in_batch is not None:
                # unhang short-last-window: the last window of an epoch may have fewer micro-batches
                loss = loss / getattr(self if model.training else None, 'current_gradient_accumulation_steps', self.args.gradient_accumulation_steps)
            return loss

    A factor that the division is to take back, as in DPO with packing, gets the same count.
    """  # noqa: E501

    def plan(self, function: Function) -> list[Edit]:
        nodes = [*ast.walk(function)]
        divisors = [it.right for it in nodes if isinstance(it, ast.BinOp) and isinstance(it.op, ast.Div)]
        divisors += [it.value for it in nodes if isinstance(it, ast.AugAssign) and isinstance(it.op, ast.Div)]
        once([it for it in divisors if expression(it) == _ALL], _DIVIDED)
        model = function.args.args[1].arg
        new = f"getattr(self if {model}.training else None, {_WINDOW}, {_ALL})"
        found = [it for it in nodes if isinstance(it, ast.Attribute) and expression(it) == _ALL]
        return [replaced_by(function, it, new, _COMMENT) for it in sorted(found, key=lambda it: it.lineno)]


_NAMES = ("Trainer", "RerankerTrainer", "RLHFTrainerMixin", "DPOTrainer")
CODEMODS = {f"{name}.compute_loss": ComputeLoss() for name in _NAMES}
