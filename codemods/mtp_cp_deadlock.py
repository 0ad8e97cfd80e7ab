"""verl: let every rank of the last pipeline stage join the all-reduce of the multi-token-prediction loss.

https://github.com/verl-project/verl/pull/5895
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from unhang.codemods.base import Codemod, expression, matches, once, span
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

if TYPE_CHECKING:
    from unhang.codemods.edit import Statements

_ENABLED = "self.model_config.mtp.enable"
_SOURCE_RANK = "self.is_mp_src_rank_with_outputs()"
_LAST_STAGE = "mpu.is_pipeline_last_stage(ignore_virtual=True)"
_CALL = "metrics = get_megatron_mtp_loss(n_micro_batch)"
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
        gate = once(_gates(function, _SOURCE_RANK), f"if {_ENABLED} and {_SOURCE_RANK}: {_CALL}")
        return [span(gate, gate, _regated)]

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


def _regated(nodes: Statements) -> Statements:
    import libcst as cst

    from unhang.codemods import splice

    (gate,) = nodes
    gate = cst.ensure_type(gate, cst.If)
    call, *write = splice.body_of(gate.body)
    test = cst.parse_expression(f"{_ENABLED} and n_micro_batch > 0 and {_LAST_STAGE}")
    report = cst.If(cst.parse_expression(_SOURCE_RANK), cst.IndentedBlock(write))
    comment = cst.EmptyLine(comment=cst.Comment(_COMMENT))
    changed = gate.with_changes(test=test, body=splice.block([call, report], gate.body))
    return [changed.with_changes(leading_lines=[*gate.leading_lines, comment])]


CODEMODS = {"MegatronEngine.forward_backward_batch": ForwardBackwardBatch()}
