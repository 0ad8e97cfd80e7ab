"""megatron-core: permute and unpermute without Transformer Engine's fusion if no token is for a local expert.

https://github.com/NVIDIA/Megatron-LM/pull/3626 (closed; its zeros for an empty batch are outside of the graph)
"""

from __future__ import annotations

import ast

from unhang.codemods.base import AnchorError, Codemod, argument, calls, guarded_by, operand
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_FUSION = "moe_permute_fusion"
_COMMENT = "# unhang allgather-empty-expert: "


class Permutation(Codemod):
    """Fuse only with a token for a local expert: the fused kernel does not permute some rows into none.

    Before::

        def dispatch_postprocess(self, hidden_states):
            tokens_per_expert = self.local_map.sum(dim=0).long().cpu()
            rows, self.mapping = permute(
                hidden_states,
                num_out_tokens=tokens_per_expert.sum(),
                fused=self.config.moe_permute_fusion,
            )
            return rows, tokens_per_expert

    After::

        def dispatch_postprocess(self, hidden_states):
            tokens_per_expert = self.local_map.sum(dim=0).long().cpu()
            # unhang allgather-empty-expert: the fused kernel does not permute some rows into none
            rows, self.mapping = permute(
                hidden_states,
                num_out_tokens=tokens_per_expert.sum(),
                fused=self.config.moe_permute_fusion and tokens_per_expert.sum().item() > 0,
            )
            return rows, tokens_per_expert
    """

    def plan(self, function: Function) -> list[Edit]:
        (fused,) = _fusions(function, "permute", at_most=1)
        (call,) = calls(function, "permute")
        rows = operand(argument(call, "num_out_tokens"), "permute(num_out_tokens=...)")
        rows += ".item()" if rows.endswith(".sum()") else ""
        why = "the fused kernel does not permute some rows into none"
        return [guarded_by(function, fused, f"{rows} > 0", _COMMENT + why)]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset({"permute"})


class Unpermutation(Codemod):
    """Fuse only with rows: where there is none, the permutation was not fused, and its map is no fused one.

    Before::

        def token_unpermutation(self, hidden_states, bias):
            tokens = unpermute(hidden_states, fused=self.config.moe_permute_fusion)
            if self.add_bias:
                bias = unpermute(bias, fused=self.config.moe_permute_fusion)
            return tokens, bias

    After::

        def token_unpermutation(self, hidden_states, bias):
            # unhang allgather-empty-expert: without a row, the permutation was not fused either
            tokens = unpermute(hidden_states, fused=self.config.moe_permute_fusion and hidden_states.shape[0] > 0)
            if self.add_bias:
                # unhang allgather-empty-expert: without a row, the permutation was not fused either
                bias = unpermute(bias, fused=self.config.moe_permute_fusion and hidden_states.shape[0] > 0)
            return tokens, bias
    """

    def plan(self, function: Function) -> list[Edit]:
        why = "without a row, the permutation was not fused either"
        fusions = _fusions(function, "unpermute", at_most=2)  # up to 0.12.0 the bias is unpermuted too
        if len(function.args.args) < 2:
            raise AnchorError("the argument hidden_states")
        rows = f"{function.args.args[1].arg}.shape[0]"
        return [guarded_by(function, fused, f"{rows} > 0", _COMMENT + why) for fused in fusions]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset({"unpermute"})


def _fusions(function: Function, name: str, at_most: int) -> list[ast.Attribute]:
    """Return what each call of a function gives for ``fused``. Raises AnchorError unless that is the setting alone."""
    fusions = [argument(call, "fused") for call in calls(function, name)]
    found = [fused for fused in fusions if isinstance(fused, ast.Attribute) and fused.attr == _FUSION]
    if not found or len(found) > at_most or len(found) < len(fusions):
        raise AnchorError(f"{name}(fused=self.config.{_FUSION})", len(found))
    return found


CODEMODS = {
    "MoEAllGatherTokenDispatcher.dispatch_postprocess": Permutation(),
    "MoEAllGatherTokenDispatcher.combine_preprocess": Unpermutation(),
    "MoEAllGatherTokenDispatcher.token_permutation": Permutation(),
    "MoEAllGatherTokenDispatcher.token_unpermutation": Unpermutation(),
}
