"""mtp-zero-tokens: TODO: what the rewrite changes, and the link of the pull request."""

from __future__ import annotations

from unhang.codemods.base import Codemod, replacing
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_POSTPROCESS = (
    (
        replacing,
        # in the release
        "MTPLossLoggingHelper.save_loss_to_tracker(\n"
        "    torch.sum(mtp_loss) / num_tokens,\n"
        "    mtp_layer_number,\n"
        "    self.config.mtp_num_layers,\n"
        "    avg_group=parallel_state.get_data_parallel_group(\n"
        "        with_context_parallel=True\n"
        "    ),\n"
        ")\n",
        # in the diff
        "# unhang mtp-zero-tokens: TODO: why\n"
        "MTPLossLoggingHelper.save_loss_to_tracker(\n"
        "    torch.sum(mtp_loss) / (num_tokens + (num_tokens == 0)),\n"
        "    mtp_layer_number,\n"
        "    self.config.mtp_num_layers,\n"
        "    avg_group=parallel_state.get_data_parallel_group(\n"
        "        with_context_parallel=True\n"
        "    ),\n"
        ")\n",
    ),
    (
        replacing,
        # in the release
        "hidden_states = MTPLossAutoScaler.apply(\n"
        "    hidden_states, mtp_loss_scale * mtp_loss / num_tokens\n"
        ")\n",
        # in the diff
        "# unhang mtp-zero-tokens: TODO: why\n"
        "hidden_states = MTPLossAutoScaler.apply(\n"
        "    hidden_states, mtp_loss_scale * mtp_loss / (num_tokens + (num_tokens == 0))\n"
        ")\n",
    ),
)


class Postprocess(Codemod):
    """TODO: the change in one sentence, and an example as `Codemod` describes it."""

    def plan(self, function: Function) -> list[Edit]:
        return [edit(function, old, new) for edit, old, new in _POSTPROCESS]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset({"MTPLossAutoScaler", "MTPLossLoggingHelper", "parallel_state", "torch"})


CODEMODS = {
    "GPTModel._postprocess": Postprocess(),
}
