"""verl: let every rank of the last pipeline stage join the all-reduce of the multi-token-prediction loss.

https://github.com/verl-project/verl/pull/5895
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from unhang.codemods.base import (
    AnchorError,
    Codemod,
    bound,
    check_plain,
    digests,
    expression,
    leaving,
    matches,
    mentioned,
    once,
    span,
)
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

if TYPE_CHECKING:
    from unhang.codemods.edit import Statements

_ENABLED = "self.model_config.mtp.enable"
_SOURCE_RANK = "self.is_mp_src_rank_with_outputs()"
_LAST_STAGE = "mpu.is_pipeline_last_stage(ignore_virtual=True)"
_SOME_BATCH = "n_micro_batch > 0"
_CALL = "metrics = get_megatron_mtp_loss(n_micro_batch)"
# The two statements that write the metrics, as upstream has them.
_WRITE = ["a73db47b0f601fb2", "0af6eeda91acd74b"]
# The names that the gate uses, and the only statements that may assign them.
_MADE = {
    "n_micro_batch": "n_micro_batch = len(micro_batches)",
    "losses_reduced": "losses_reduced = forward_backward_func(forward_step_func=forward_step, "
    "data_iterator=batch_generator, model=self.module, num_microbatches=n_micro_batch, seq_length=1, "
    "micro_batch_size=1, forward_only=forward_only)",
}
_COMMENT = "# unhang mtp-cp-deadlock: all ranks of the last stage join the all-reduce, the source rank reports"


class ForwardBackwardBatch(Codemod):
    """Gate on the pipeline stage, which is the same on all ranks of the all-reduce, and never on the rank itself."""

    def plan(self, function: Function) -> list[Edit]:
        gate = _gate(function)
        once(_callers(function), "get_megatron_mtp_loss(...)")
        return [span(gate, gate, _regated)]

    def check(self, function: Function) -> None:
        _check_around(function, _gate(function))

    def holds(self, function: Function) -> bool:
        return _gated_by(function, {_ENABLED, _LAST_STAGE, _SOME_BATCH})

    def holds_upstream(self, function: Function) -> bool:
        return _gated_by(function, {_ENABLED, _LAST_STAGE})

    def lacks_feature(self, function: Function) -> bool:
        return not _callers(function)

    def names(self, function: Function) -> frozenset[str]:
        return frozenset({"mpu", "get_megatron_mtp_loss"})


def _gate(function: Function) -> ast.stmt:
    """Return the ``if`` with the wrong gate."""
    gates = [
        node
        for node in function.body
        if isinstance(node, ast.If)
        and not node.orelse
        and _conditions(node) == [_ENABLED, _SOURCE_RANK]
        and matches(node.body[:1], _CALL)
        and digests(node.body[1:]) == _WRITE
    ]
    return once(gates, f"if {_ENABLED} and {_SOURCE_RANK}: {_CALL}, then the metrics are written")


def _regated(nodes: Statements) -> Statements:
    import libcst as cst

    from unhang.codemods import splice

    (gate,) = nodes
    gate = cst.ensure_type(gate, cst.If)
    call, *write = splice.body_of(gate.body)
    test = cst.parse_expression(f"{_ENABLED} and {_SOME_BATCH} and {_LAST_STAGE}")
    report = cst.If(cst.parse_expression(_SOURCE_RANK), cst.IndentedBlock(write))
    comment = cst.EmptyLine(comment=cst.Comment(_COMMENT))
    changed = gate.with_changes(test=test, body=splice.block([call, report], gate.body))
    return [changed.with_changes(leading_lines=[*gate.leading_lines, comment])]


def _gated_by(function: Function, wanted: set[str]) -> bool:
    """Return whether the only call is in an ``if`` at the function's top level with exactly these conditions.

    Only the source rank must write the metrics, directly after the call.
    """
    callers = _callers(function)
    if len(callers) != 1 or callers[0] not in function.body:
        return False
    gate = callers[0]
    if not isinstance(gate, ast.If) or gate.orelse or len(gate.body) != 2 or not matches(gate.body[:1], _CALL):
        return False
    try:
        _check_around(function, gate)
    except AnchorError:
        return False
    report = gate.body[1]
    return (
        set(_conditions(gate)) == wanted
        and isinstance(report, ast.If)
        and not report.orelse
        and expression(report.test) == _SOURCE_RANK
        and digests(report.body) == _WRITE
    )


def _check_around(function: Function, gate: ast.stmt) -> None:
    """Raise AnchorError unless only the gate works with what it tests, reads and writes.

    Every rank must reach the gate, with the schedule's own number of micro-batches and losses.
    """
    check_plain(function, ("self", "mpu", "get_megatron_mtp_loss"))
    before = function.body[: function.body.index(gate)]
    others = [node for node in function.body if node is not gate]
    if leaving(*before):
        raise AnchorError("no return before the metrics are written")
    for name, template in _MADE.items():
        once([node for node in before if matches([node], template)], template.partition("(")[0] + "(...)")
        if sum(name in bound(node) for node in others) != 1:
            raise AnchorError(f"one assignment of {name}")
    made = [node for other in others for node in ast.walk(other) if isinstance(node, ast.Assign)]
    if not all(isinstance(node.value, ast.Call) for node in made if "micro_batches" in bound(*node.targets)):
        raise AnchorError("micro_batches from a call")
    if any("losses_reduced" in mentioned(node) for node in before if "losses_reduced" not in bound(node)):
        raise AnchorError("no other use of losses_reduced before the metrics are written")
    for name in ("mtp", "metrics"):
        if name in mentioned(*others):
            raise AnchorError(f"{name} only where the metrics are written")


def _conditions(gate: ast.If) -> list[str]:
    """Return the conditions that an ``if`` joins with ``and``."""
    test = gate.test
    joined = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    return [expression(value) for value in joined]


def _callers(function: Function) -> list[ast.stmt]:
    """Return the function's top-level statements that call get_megatron_mtp_loss, one entry for each call."""
    return [node for node in function.body for _ in _calls(node)]


def _calls(node: ast.stmt) -> Iterator[ast.AST]:
    return (inner for inner in ast.walk(node) if isinstance(inner, ast.Name) and inner.id == "get_megatron_mtp_loss")


CODEMODS = {"MegatronEngine.forward_backward_batch": ForwardBackwardBatch()}
