"""verl: let all FSDP ranks cut a batch into the same number of micro-batches.

https://github.com/verl-project/verl/pull/5591
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from unhang.codemods.base import AnchorError, Codemod, calls, expression, refuse_own, with_argument
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
    """Return the group that a call is given by name; None if it is given none, and ranks are to agree."""
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    if "dp_group" in given:
        return expression(given["dp_group"])
    # a third argument, *args or **kwargs may be the group; ranks that are told not to agree do not, whatever the group
    is_open = len(call.args) > 2 or any(isinstance(one, ast.Starred) for one in call.args) or None in given
    has_bound = len(call.args) == 2 or "max_token_len" in given
    return None if has_bound and not is_open and "same_micro_num_in_dp" not in given else "unknown"


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
