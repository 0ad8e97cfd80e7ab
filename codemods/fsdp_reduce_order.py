"""fsdp-reduce-order: TODO: what the rewrite changes, and the link of the pull request."""

from __future__ import annotations

from unhang.codemods.base import Codemod, before
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_REDUCE_GRADIENTS = (
    (
        before,
        # in the release
        "for param in params:\n"
        "    ...\n",
        # in the diff
        "# unhang fsdp-reduce-order: TODO: why\n"
        "TODO: upstream's line stood here\n",
    ),
)


class ReduceGradients(Codemod):
    """TODO: the change in one sentence, and an example as `Codemod` describes it."""

    def plan(self, function: Function) -> list[Edit]:
        return [edit(function, old, new) for edit, old, new in _REDUCE_GRADIENTS]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset()


CODEMODS = {
    "GradReducePipeline.reduce_gradients": ReduceGradients(),
}
