"""megatron-core: permute and unpermute without Transformer Engine's fusion where no token is for a local expert.

https://github.com/NVIDIA/Megatron-LM/pull/3626 (closed; its zeros for an empty batch cut the graph)
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, cast

from unhang.codemods.base import AnchorError, Codemod, expression, matches, once, span
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

if TYPE_CHECKING:
    from unhang.codemods.edit import Statements

_FUSION = "self.config.moe_permute_fusion"
# On the CPU, so that the condition does not wait for the GPU.
_TOKENS = "tokens_per_expert = self.local_map.sum(dim=0).long().cpu()"


class Permutation(Codemod):
    """Fuse only with a token for some local expert: the fused kernel does not permute some rows into none.

    Before::

        def dispatch_postprocess(self, hidden_states):
            tokens_per_expert = self.local_map.sum(dim=0).long().cpu()
            rows, self.mapping = permute(
                hidden_states,
                fused=self.config.moe_permute_fusion,
            )
            return rows, tokens_per_expert

    After::

        def dispatch_postprocess(self, hidden_states):
            tokens_per_expert = self.local_map.sum(dim=0).long().cpu()
            # unhang allgather-empty-expert: the fused kernel does not permute some rows into none
            rows, self.mapping = permute(
                hidden_states,
                fused=self.config.moe_permute_fusion and tokens_per_expert.sum().item() > 0,
            )
            return rows, tokens_per_expert
    """

    def plan(self, function: Function) -> list[Edit]:
        once([node for node in function.body if matches([node], _TOKENS)], _TOKENS)
        call = once(_fused_calls(function, "permute"), _anchor("permute"))
        why = "the fused kernel does not permute some rows into none"
        return [_fused_if(call, "tokens_per_expert.sum().item() > 0", why)]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset({"permute"})


class Unpermutation(Codemod):
    """Fuse only with rows: without any, the permutation was not fused, and its mapping is not for the fused kernel.

    Before::

        def token_unpermutation(self, hidden_states, bias):
            tokens = unpermute(hidden_states, fused=self.config.moe_permute_fusion)
            if self.add_bias:
                bias = unpermute(bias, fused=self.config.moe_permute_fusion)
            return tokens, bias

    After::

        def token_unpermutation(self, hidden_states, bias):
            # unhang allgather-empty-expert: without rows, the permutation was not fused either
            tokens = unpermute(hidden_states, fused=self.config.moe_permute_fusion and hidden_states.shape[0] > 0)
            if self.add_bias:
                # unhang allgather-empty-expert: without rows, the permutation was not fused either
                bias = unpermute(bias, fused=self.config.moe_permute_fusion and hidden_states.shape[0] > 0)
            return tokens, bias
    """

    def plan(self, function: Function) -> list[Edit]:
        calls = _fused_calls(function, "unpermute")
        if not calls:
            raise AnchorError(_anchor("unpermute"))
        why = "without rows, the permutation was not fused either"
        return [_fused_if(call, "hidden_states.shape[0] > 0", why) for call in calls]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset({"unpermute"})


def _fused_calls(function: Function, name: str) -> list[ast.Assign]:
    """Return the assignments from calls of ``name``. Raises AnchorError unless all are fused as configured."""
    calls = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and expression(node.value.func) == name
    ]
    for node in calls:
        given = cast("ast.Call", node.value).keywords
        if [expression(each.value) for each in given if each.arg == "fused"] != [_FUSION]:
            raise AnchorError(_anchor(name))
    return calls


def _anchor(name: str) -> str:
    return f"{name}(..., fused={_FUSION})"


def _fused_if(call: ast.Assign, condition: str, why: str) -> Edit:
    """Return the edit that fuses this call under a condition only."""

    def change(nodes: Statements) -> Statements:
        import libcst as cst

        line = cst.ensure_type(nodes[0], cst.SimpleStatementLine)
        old = cst.ensure_type(cst.ensure_type(line.body[0], cst.Assign).value, cst.Call)
        value = cst.parse_expression(f"{_FUSION} and {condition}")
        args = [
            arg.with_changes(value=value) if arg.keyword and arg.keyword.value == "fused" else arg for arg in old.args
        ]
        comment = cst.EmptyLine(comment=cst.Comment(f"# unhang allgather-empty-expert: {why}"))
        changed = cst.ensure_type(line.with_deep_changes(old, args=args), cst.SimpleStatementLine)
        return [changed.with_changes(leading_lines=[*line.leading_lines, comment])]

    return span(call, call, change)


CODEMODS = {
    "MoEAllGatherTokenDispatcher.dispatch_postprocess": Permutation(),
    "MoEAllGatherTokenDispatcher.combine_preprocess": Unpermutation(),
    "MoEAllGatherTokenDispatcher.token_permutation": Permutation(),
    "MoEAllGatherTokenDispatcher.token_unpermutation": Unpermutation(),
}
