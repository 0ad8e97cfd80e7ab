"""verl: let all FSDP ranks cut a batch into the same number of micro-batches.

https://github.com/verl-project/verl/pull/5591
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from unhang.codemods.base import AnchorError, Codemod, argument, calls, expression, refuse_own, with_argument
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

if TYPE_CHECKING:
    import libcst as cst

    from unhang.codemods.edit import Statements

_CUTS = ("prepare_dynamic_batch", "rearrange_micro_batches")
"""What cuts a batch. Before verl 0.5 the second was called, without the first around it."""
_WORLD = "torch.distributed.group.WORLD"
_COMMENT = "# unhang fsdp-dynamic-bsz: all ranks take as many micro-batches as the one with the most tokens"


class DynamicBatch(Codemod):
    """Pass the group of all ranks to the function that cuts a batch by its tokens.

    Before::

        def compute(self, data):
            micro_batches, order = prepare_dynamic_batch(data, max_token_len=self.bound)
            return self.run(micro_batches), order

    After::

        def compute(self, data):
            # unhang fsdp-dynamic-bsz: all ranks take as many micro-batches as the one with the most tokens
            world = torch.distributed.group.WORLD
            micro_batches, order = prepare_dynamic_batch(data, max_token_len=self.bound, dp_group=world)
            return self.run(micro_batches), order
    """

    def plan(self, function: Function) -> list[Edit]:
        refuse_own(function, ["world"])
        cuts = [call for call in _cuts(function) if _group(call) is None]
        if not cuts:
            raise AnchorError(f"{_CUTS[0]}(..., max_token_len=...) without a group")
        edits = [with_argument(function, cut, "dp_group=world", _COMMENT) for cut in cuts]
        return [edit._replace(change=_after_world(edit.change)) for edit in sorted(edits, key=lambda edit: edit.first)]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset({"torch"})

    def fixed_upstream(self, function: Function) -> bool:
        groups = {_group(call) for call in _cuts(function)}
        return groups == {_WORLD}


def _cuts(function: Function) -> list[ast.Call]:
    return [call for name in _CUTS for call in calls(function, name)]


def _group(call: ast.Call) -> str | None:
    """Return the group that a call is given by name; None if it is given the batch and the bound alone."""
    group = argument(call, "dp_group")
    if group is not None:
        return expression(group)
    # a third argument, *args or **kwargs may be the group
    return None if len(call.args) + len(call.keywords) == 2 and argument(call, "max_token_len") else "unknown"


def _after_world(change: Callable[[Statements], Statements]) -> Callable[[Statements], Statements]:
    """Return a change that binds ``world`` first: in one line, the call would be too long."""

    def changed(nodes: Statements) -> Statements:
        from unhang.codemods import splice

        cut = cast("cst.SimpleStatementLine", change(nodes)[0])
        (world,) = splice.suite(f"world = {_WORLD}")
        return [world.with_changes(leading_lines=cut.leading_lines), cut.with_changes(leading_lines=[])]

    return changed


CODEMODS = {
    "DataParallelPPOActor.compute_log_prob": DynamicBatch(),
    "DataParallelPPOActor.update_policy": DynamicBatch(),
    "DataParallelPPOCritic.compute_values": DynamicBatch(),
    "DataParallelPPOCritic.update_critic": DynamicBatch(),
}
