"""ms-swift: give each micro-batch its own share of the tokens that dapo, cispo and fipo divide by.

https://github.com/modelscope/ms-swift/pull/10116 does so where a step has all micro-batches of a generation.
"""

from __future__ import annotations

import ast
import re

from unhang.codemods.base import Codemod, assignments, expression, followed_by, instead, once, refuse_own, span
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function, unannotated

_TOKENS, _STEPS, _UNDO = "num_items_in_batch", "steps_per_generation", "self._undo_gradient_accumulation_scaling"
_DIVISOR = re.compile(rf"\w+(\.{_TOKENS}|\['{_TOKENS}'\]) / self\.accelerator\.num_processes")
_CHUNK = re.compile(
    r"(?P<first>\w+) < (?P<size>\w+): \(?(?P<pair>\w+, )?(?P<own>\w+)\)? = "
    r"self\.get_chunked_inputs\((\w+, )?(?P<all>\w+), (?P=first), (?P<last>\w+)(, \w+)?\)"
)
_SCALED = f"""\
# unhang dapo-window-scale: transformers takes the mean over micro-batches; a generation has so many
if self.model.training:
    {{loss}} = {{loss}} * (self.args.{_STEPS} * self.template.sequence_parallel_size)
"""


class ComputeLoss(Codemod):
    """Scale a loss that is divided by the tokens of a generation, in training. Upstream's own factor gives way to it.

    Before::

        def loss_of(self, losses, batch):
            tokens = batch.num_items_in_batch / self.accelerator.num_processes
            loss = losses.sum() / tokens

    After::

        def loss_of(self, losses, batch):
            tokens = batch.num_items_in_batch / self.accelerator.num_processes
            loss = losses.sum() / tokens
            # unhang dapo-window-scale: transformers takes the mean over micro-batches; a generation has so many
            if self.model.training:
                loss = loss * (self.args.steps_per_generation * self.template.sequence_parallel_size)
    """

    def plan(self, function: Function) -> list[Edit]:
        refuse_own(function, [_STEPS, "gradient_accumulation_steps", "current_gradient_accumulation_steps"])
        rows = [(row, name, expression(value)) for row, name, value in assignments(function)]
        divisor = once([name for _, name, value in rows if _DIVISOR.fullmatch(value)], f"... = {_TOKENS} / ...")
        row, loss = once([it[:2] for it in rows if it[2].endswith(f".sum() / {divisor}")], f"....sum() / {divisor}")
        new = _SCALED.format(loss=loss)
        undone = [row for row, _, value in rows if value == f"{_UNDO}({loss})"]
        return [span(undone[0], undone[0], instead(new))] if undone else [span(row, row, followed_by(new))]


class ComputeLossChunked(Codemod):
    """Give a chunk its share of the tokens, since the mean of the chunks is taken.

    Before::

        def loss_of(self, batch, first, last, size):
            if first < size:
                chunk = self.get_chunked_inputs(batch, first, last)

    After::

        def loss_of(self, batch, first, last, size):
            if first < size:
                chunk = self.get_chunked_inputs(batch, first, last)
                # unhang dapo-window-scale: the chunks are averaged
                chunk['num_items_in_batch'] = batch['num_items_in_batch'] * (last - first) / size
    """

    def plan(self, function: Function) -> list[Edit]:
        refuse_own(function, [_TOKENS])
        ifs = [it for it in ast.walk(function) if isinstance(it, ast.If)]
        rows = [(row, f"{expression(it.test)}: {expression(unannotated(row))}") for it in ifs for row in it.body]
        found = [(row, of) for row, text in rows if (of := _CHUNK.fullmatch(text))]
        row, of = once(found, "if first < size: ... = self.get_chunked_inputs(..., first, last)")
        own, whole = (f"{of[it]}.{_TOKENS}" if of["pair"] else f"{of[it]}['{_TOKENS}']" for it in ("own", "all"))
        share = f"{own} = {whole} * ({of['last']} - {of['first']}) / {of['size']}"
        return [span(row, row, followed_by(f"# unhang dapo-window-scale: the chunks are averaged\n{share}\n"))]


CODEMODS = {
    "GRPOTrainer._compute_loss_and_metrics": ComputeLoss(),
    "GRPOTrainer._compute_loss_chunked": ComputeLossChunked(),
}
