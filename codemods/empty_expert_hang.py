"""megatron-core: give the grouped linears rows of zeros when no token was routed to this rank.

https://github.com/NVIDIA/Megatron-LM/pull/4851 (it tests sum(tokens_per_expert): wrong with over-allocated buffers)
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from unhang.codemods.base import (
    AnchorError,
    Codemod,
    assigned,
    calls,
    expression,
    followed_by,
    matches,
    mentioned,
    once,
    only_first,
    preceded_by,
    span,
)
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_ROWS = """\
# unhang empty-expert-hang: no token here, so run fc1 and fc2 on zero rows of probability 0
has_no_tokens = permuted_local_hidden_states.shape[0] == 0{unless_grouped}
if has_no_tokens:
{size}    num_rows = {num_rows}
    zero_rows = permuted_local_hidden_states.new_zeros(
        num_rows, permuted_local_hidden_states.shape[1]
    )
{padded}    permuted_local_hidden_states = torch.cat([permuted_local_hidden_states, zero_rows])
{probs}{tokens}"""
_PROBS = "    permuted_probs = torch.cat([permuted_probs, permuted_probs.new_zeros(num_rows)])\n"
_TOKENS = "    {counts} = [{per_expert}] * self.num_local_experts\n"
_TOKENS_TENSOR = """\
    {counts} = torch.full(
        (self.num_local_experts,), {per_expert}, dtype=torch.int64, device='cpu'
    )
"""
_PADDED = """\
    if {condition}:
        # the bias comes after the unpadding: rows that are aligned already fit both
        zero_rows, {counts} = self.{padding}(
            zero_rows, {counts}
        )
        num_rows = zero_rows.shape[0]
"""
# Where a forward leaves the alignment for fp8 and fp4 to others, our own rows must come aligned: under one of these
# conditions, or (the last) in a forward that never pads.
_SIZES = {
    "skip_routed_expert_padding(self.config)": """\
    rows_per_expert = 1
    if skip_routed_expert_padding(self.config) and (self.config.fp8 or self.config.fp4):
        rows_per_expert = get_align_size_for_quantization(self.config)
""",
    "self.config.moe_router_padding_for_quantization": """\
    rows_per_expert = 1
    if self.config.moe_router_padding_for_quantization and (
        self.config.fp8 or self.config.fp4
    ):
        rows_per_expert = get_align_size_for_quantization(self.config)
""",
}
_SIZE_WITHOUT_PADDING = "    rows_per_expert = 16 if self.config.fp8 else 1\n"
_SLICE = "if has_no_tokens:\n    {output} = {output}[:0]\n"
_TOLIST = "tokens_per_expert = tokens_per_expert.tolist()"
_UNSQUEEZE = "permuted_probs.unsqueeze(-1)"
_BIAS = "_apply_bias"
_RETURN = "return output, output_bias"
_ARGUMENTS = ("self", "permuted_local_hidden_states", "tokens_per_expert", "permuted_probs")
# What our rewrite (of any generation) and pull request 4851 as written call it. Two statements add the rows, and one
# slices them off.
_HAS_NO_TOKENS = frozenset({"has_no_tokens", "is_dummy_forward"})


class TEGroupedMLPForward(Codemod):
    """Append zero rows with zero probability, so that fc1 and fc2 run and have gradients; slice them off at the end.

    Before::

        def forward(self, permuted_local_hidden_states, tokens_per_expert, permuted_probs):
            tokens_per_expert = tokens_per_expert.tolist()
            output, output_bias = self.run(permuted_local_hidden_states, tokens_per_expert, permuted_probs)
            return output, output_bias

    After::

        def forward(self, permuted_local_hidden_states, tokens_per_expert, permuted_probs):
            tokens_per_expert = tokens_per_expert.tolist()

            # unhang empty-expert-hang: no token here, so run fc1 and fc2 on zero rows of probability 0
            has_no_tokens = permuted_local_hidden_states.shape[0] == 0
            if has_no_tokens:
                ...
            output, output_bias = self.run(permuted_local_hidden_states, tokens_per_expert, permuted_probs)
            if has_no_tokens:
                output = output[:0]

            return output, output_bias
    """

    def plan(self, function: Function) -> list[Edit]:
        arguments = [argument.arg for argument in function.args.args[:4]]
        if arguments not in ([*_ARGUMENTS], [*_ARGUMENTS[:3]]):
            raise AnchorError(f"the arguments {', '.join(_ARGUMENTS)}")
        body, rows = function.body, _rows(function)
        last = body[-1]
        sliced = _SLICE.format(output=_output(last))
        in_place = [node for node in body if _HAS_NO_TOKENS & mentioned(node)]
        if in_place and (_is_grouped(function) or matches(in_place[:2], rows)):
            raise AnchorError(f"{function.name} without our rows")
        if _is_grouped(function):
            named = [node for node in body if assigned(node) and calls(node, "permuted_probs.unsqueeze")]
            anchor = once(named, _UNSQUEEZE)
            return [span(anchor, anchor, preceded_by(rows)), span(last, last, preceded_by(sliced))]
        anchor = once([node for node in body if _counts(node)], _TOLIST)
        after = body[body.index(anchor) + 1 :][:2]
        if in_place and in_place[:2] != after:
            raise AnchorError(f"{_TOLIST}, followed by the rows in place")
        return [
            span(anchor, after[-1] if in_place else anchor, lambda nodes: followed_by("\n" + rows)(nodes[:1])),
            *(span(before, node, only_first) for before, node in zip(body, body[1:]) if node in in_place[2:]),
            span(last, last, preceded_by(sliced)),
        ]

    def names(self, function: Function) -> frozenset[str]:
        used = mentioned(ast.parse(_rows(function)))
        return frozenset({"torch", "skip_routed_expert_padding", "get_align_size_for_quantization"} & used)


def _is_grouped(function: Function) -> bool:
    """Return whether this forward may keep tokens_per_expert a tensor, and so makes no list of it at its top level."""
    return "_use_grouped_tensor" in mentioned(function) and not any(map(_counts, function.body))


def _counts(node: ast.stmt) -> str:
    """Return the name that a statement gives to the list of tokens per expert; empty for any other statement."""
    name, value = assigned(node) or ("", None)
    made = value is not None and re.fullmatch(r"tokens_per_expert(\..+)?\.tolist\(\)", expression(value))
    return name if made else ""


def _output(last: ast.stmt) -> str:
    """Return the name of the output, which the last statement returns beside the bias. Raises AnchorError."""
    value = last.value if isinstance(last, ast.Return) else None
    if isinstance(value, ast.Tuple) and len(value.elts) == 2 and isinstance(value.elts[0], ast.Name):
        return value.elts[0].id
    raise AnchorError(f"{_RETURN}, as the last statement")


def _rows(function: Function) -> str:
    """Return the statements that add the rows, for this forward's arguments and padding."""
    grouped, size, before_bias = _is_grouped(function), _size(function), _unpadding_before_bias(function)
    counts = next(filter(None, map(_counts, function.body)), "tokens_per_expert")
    per_expert = "rows_per_expert" if size else "1"
    tokens = (_TOKENS_TENSOR if grouped else _TOKENS).format(counts=counts, per_expert=per_expert)
    padded = ""
    if before_bias:
        condition, padding = before_bias
        tokens, padded = "", tokens + _PADDED.format(counts=counts, condition=condition, padding=padding)
    return _ROWS.format(
        unless_grouped=" and not self._use_grouped_tensor" if grouped else "",
        size=size,
        num_rows="rows_per_expert * self.num_local_experts" if size else "self.num_local_experts",
        padded=padded,
        probs=_PROBS if "permuted_probs" in [argument.arg for argument in function.args.args] else "",
        tokens=tokens,
    )


def _size(function: Function) -> str:
    """Return the statements that align our rows, for a forward that does not pad them itself. Raises AnchorError."""
    if not _pads(function.body):
        return _SIZE_WITHOUT_PADDING
    for node in function.body:
        if isinstance(node, ast.If) and not _pads(node.body) and _pads(node.orelse):
            if (condition := expression(node.test)) in _SIZES:
                return _SIZES[condition]
            raise AnchorError(f"padding that is left out under one of {', '.join(_SIZES)}")
    return ""


def _pads(block: Sequence[ast.stmt]) -> bool:
    return any("padd" in name for name in mentioned(*block))


def _unpadding_before_bias(function: Function) -> tuple[str, str] | None:
    """Return the condition and the name of this forward's padding, if its bias comes after the unpadding.

    The bias is then split by the padded counts, which are those of the unpadded rows only if these are aligned.
    """
    for index, node in enumerate(function.body):
        names = [name for name in sorted(mentioned(node)) if name.endswith("_unpadding")]
        if isinstance(node, ast.If) and names and _BIAS in mentioned(*function.body[index:]):
            return expression(node.test), names[0].replace("_unpadding", "_padding")
    return None


CODEMODS = {"TEGroupedMLP.forward": TEGroupedMLPForward()}
