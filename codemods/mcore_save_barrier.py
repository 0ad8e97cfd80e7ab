"""mcore-save-barrier: TODO: what the rewrite changes, and the link of the pull request."""

from __future__ import annotations

from unhang.codemods.base import Codemod, replacing
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_PATCH_MCORE_BRIDGE = (
    (
        replacing,
        # in the release (drafted with upstream's lines; left out here)
        # in the diff
    ),
)


class PatchMcoreBridge(Codemod):
    """TODO: the change in one sentence, and an example as `Codemod` describes it."""

    def plan(self, function: Function) -> list[Edit]:
        return [edit(function, old, new) for edit, old, new in _PATCH_MCORE_BRIDGE]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset({"get_model_processor", "torch"})


CODEMODS = {
    "_patch_mcore_bridge": PatchMcoreBridge(),
}
