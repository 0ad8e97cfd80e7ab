"""ms-swift: divide by the micro-batches of the window that is accumulated, of which an epoch's last has fewer.

https://github.com/modelscope/ms-swift/pull/10084 does so in two trainers, in an evaluation too.
"""

from __future__ import annotations

import ast
import re

from unhang.codemods.base import Codemod, expression, instead, once, refuse_own, span
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_ALL, _OWN = "self.args.gradient_accumulation_steps", "window"
_DIVIDED = re.compile(rf"/=? {re.escape(_ALL)}")
_OURS = f"""\
# unhang short-last-window: the last window of an epoch may have fewer micro-batches
{_OWN} = {_ALL}
if {{model}}.training:
    {_OWN} = getattr(self, 'current_gradient_accumulation_steps', {_OWN})
{{row}}
"""


class ComputeLoss(Codemod):
    """Divide the loss of a step by the count of its own window; that of an evaluation as before.

    Before::

        def compute_loss(self, model, inputs):
            loss = model(inputs) / self.args.gradient_accumulation_steps
            return loss

    After::

        def compute_loss(self, model, inputs):
            # unhang short-last-window: the last window of an epoch may have fewer micro-batches
            window = self.args.gradient_accumulation_steps
            if model.training:
                window = getattr(self, 'current_gradient_accumulation_steps', window)
            loss = model(inputs) / window
            return loss

    A factor that the division takes back, as in DPO with packing, is made of the same count.
    """

    def plan(self, function: Function) -> list[Edit]:
        refuse_own(function, [_OWN])
        stored = [it for it in ast.walk(function) if isinstance(it, (ast.Assign, ast.AnnAssign, ast.AugAssign))]
        rows = sorted((it for it in stored if _ALL in expression(it)), key=lambda it: it.lineno)
        texts = [expression(it) for it in rows]
        once([at for text in texts for at in _DIVIDED.findall(text)], f"... / {_ALL}")
        new = [_OURS.format(model=function.args.args[1].arg, row=text.replace(_ALL, _OWN)) for text in texts]
        return [span(row, row, instead(text)) for row, text in zip(rows, new)]


_NAMES = ("Trainer", "RerankerTrainer", "RLHFTrainerMixin", "DPOTrainer")
CODEMODS = {f"{name}.compute_loss": ComputeLoss() for name in _NAMES}
