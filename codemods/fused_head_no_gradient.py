"""fused-head-no-gradient: TODO: what the rewrite changes, and the link of the pull request."""

from __future__ import annotations

from unhang.codemods.base import Codemod, replacing
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_BACKWARD = (
    (
        replacing,
        # in the release
        "if hidden_states.requires_grad:\n"
        "    dhidden_states = torch.zeros_like(hidden_states)\n",
        # in the diff
        "# unhang fused-head-no-gradient: TODO: why\n"
        "if ctx.needs_input_grad[0]:\n"
        "    dhidden_states = torch.zeros_like(hidden_states)\n",
    ),
    (
        replacing,
        # in the release
        "if vocab_weights.requires_grad:\n"
        "    dvocab_weights = torch.zeros_like(vocab_weights)\n",
        # in the diff
        "# unhang fused-head-no-gradient: TODO: why\n"
        "if ctx.needs_input_grad[1]:\n"
        "    dvocab_weights = torch.zeros_like(vocab_weights)\n",
    ),
    (
        replacing,
        # in the release
        "if hidden_states.requires_grad:\n"
        "    dhidden_states[chunk_start:chunk_end] += h\n"
        "if vocab_weights.requires_grad:\n"
        "    dvocab_weights += v\n",
        # in the diff
        "# unhang fused-head-no-gradient: TODO: why\n"
        "if ctx.needs_input_grad[0]:\n"
        "    dhidden_states[chunk_start:chunk_end] += h\n"
        "if ctx.needs_input_grad[1]:\n"
        "    dvocab_weights += v\n",
    ),
    (
        replacing,
        # in the release
        "if orig_ndim == 3 and hidden_states.requires_grad:\n"
        "    hidden_size = hidden_states.shape[-1]\n"
        "    dhidden_states = dhidden_states.view(orig_batch_size, -1, hidden_size)\n",
        # in the diff
        "# unhang fused-head-no-gradient: TODO: why\n"
        "if orig_ndim == 3 and ctx.needs_input_grad[0]:\n"
        "    hidden_size = hidden_states.shape[-1]\n"
        "    dhidden_states = dhidden_states.view(orig_batch_size, -1, hidden_size)\n",
    ),
)


class Backward(Codemod):
    """TODO: the change in one sentence, and an example as `Codemod` describes it."""

    def plan(self, function: Function) -> list[Edit]:
        return [edit(function, old, new) for edit, old, new in _BACKWARD]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset({"torch"})


CODEMODS = {
    "FusedLinearForPPOFunction.backward": Backward(),
}
