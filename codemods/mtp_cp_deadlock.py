"""verl: let every rank of the last pipeline stage join the all-reduce of the multi-token-prediction loss.

https://github.com/verl-project/verl/pull/5895
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from unhang.codemods.base import (
    AnchorError,
    Codemod,
    assigned,
    bound,
    calls,
    expression,
    holder,
    matches,
    mentioned,
    once,
    operand,
    replaced_by,
)
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

if TYPE_CHECKING:
    from unhang.codemods.edit import Statements

_ENABLED = "self.model_config.mtp.enable"
_SOURCE_RANK = "self.is_mp_src_rank_with_outputs()"
_LAST_STAGE = "mpu.is_pipeline_last_stage(ignore_virtual=True)"
_CALL = "metrics = get_megatron_mtp_loss(n_micro_batch)"
_GATE = f"if ... and {_SOURCE_RANK}: {_CALL}, and what is done with it"
_COMMENT = "# unhang mtp-cp-deadlock: all ranks of the last stage join the all-reduce, the source rank reports"


class ForwardBackwardBatch(Codemod):
    """Gate on the pipeline stage, which is the same on all ranks of the all-reduce, and never on the rank itself.

    Before::

        def forward_backward_batch(self, batches):
            n_micro_batch = len(batches)
            if self.model_config.mtp.enable and self.is_mp_src_rank_with_outputs():
                metrics = get_megatron_mtp_loss(n_micro_batch)
                self.log(metrics)

    After::

        def forward_backward_batch(self, batches):
            n_micro_batch = len(batches)
            # unhang mtp-cp-deadlock: all ranks of the last stage join the all-reduce, the source rank reports
            if self.model_config.mtp.enable and n_micro_batch > 0 and mpu.is_pipeline_last_stage(ignore_virtual=True):
                metrics = get_megatron_mtp_loss(n_micro_batch)
                if self.is_mp_src_rank_with_outputs():
                    self.log(metrics)
    """

    def plan(self, function: Function) -> list[Edit]:
        call = once(calls(function, "get_megatron_mtp_loss"), _CALL)
        around = [node for node in ast.walk(function) if isinstance(node, ast.If) and holder(node.body, call)]
        gate = once([node for node in around if _SOURCE_RANK in expression(node.test)], _GATE)
        rank, place = once(_asked(gate), _GATE), _place(gate, call)
        if place is None:
            raise AnchorError(_GATE)
        count = operand(once([*call.args, *(keyword.value for keyword in call.keywords)], _CALL), _CALL)
        before = [item for node in ast.walk(gate.body[place]) if isinstance(node, ast.With) for item in node.items]
        if bound(gate.test, *gate.body[:place], *before) & mentioned(call):
            raise AnchorError(f"{_CALL}, of a number that is known before the gate")
        joined = replaced_by(function, rank, f"{count} > 0 and {_LAST_STAGE}", _COMMENT)
        return [joined._replace(change=lambda nodes: _reported(joined.change(nodes), place, len(gate.body)))]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset({"mpu", "get_megatron_mtp_loss"})

    def fixed_upstream(self, function: Function) -> bool:
        gates = _gates(function, _LAST_STAGE)
        if len(gates) != 1 or expression(function).count("get_megatron_mtp_loss") != 1:
            return False
        report = gates[0].body[1]
        return isinstance(report, ast.If) and expression(report.test) == _SOURCE_RANK


def _gates(function: Function, where: str) -> list[ast.If]:
    """Return each ``if`` that computes the loss, and does something with it, on the ranks that ``where`` selects."""
    found = [node for node in function.body if isinstance(node, ast.If) and len(node.body) > 1 and not node.orelse]
    return [
        node for node in found if expression(node.test) == f"{_ENABLED} and {where}" and matches(node.body[:1], _CALL)
    ]


def _asked(gate: ast.If) -> list[ast.expr]:
    """Return where this ``if`` without an ``else`` asks for the source rank, alone or among other conditions."""
    return [value for value in _conditions(gate.test) if expression(value) == _SOURCE_RANK and not gate.orelse]


def _conditions(test: ast.expr) -> list[ast.expr]:
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return [value for part in test.values for value in _conditions(part)]
    return [test]


def _place(gate: ast.If, call: ast.Call) -> int | None:
    """Return the place in the gate of the statement that names the call's result; None if nothing follows it there."""
    for place, node in enumerate(gate.body[:-1]):
        while isinstance(node, ast.With) and len(node.body) == 1:  # what follows the call in it would run on all ranks
            node = node.body[0]
        made = assigned(node)
        if made is not None and made[1] is call:
            return place
    return None


def _reported(nodes: Statements, place: int, many: int) -> Statements:
    """Let the source rank alone run what comes after the call, which is at this place of so many statements."""
    import libcst as cst

    from unhang.codemods import splice

    gate = cst.ensure_type(nodes[0], cst.If)
    body = splice.body_of(gate.body)
    if len(body) != many:
        raise splice.SpanError("two statements share a line")
    report = cst.If(cst.parse_expression(_SOURCE_RANK), cst.IndentedBlock(body[place + 1 :]))
    return [gate.with_changes(body=splice.block([*body[: place + 1], report], gate.body))]


CODEMODS = {"MegatronEngine.forward_backward_batch": ForwardBackwardBatch()}
