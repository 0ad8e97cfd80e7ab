"""megatron-core: give the grouped linears zero rows to work on when no token was routed to this rank.

https://github.com/NVIDIA/Megatron-LM/pull/4851 (which tests sum(tokens_per_expert), wrong with over-allocated buffers)
"""

from __future__ import annotations

import ast

from unhang.codemods.base import (
    AnchorError,
    Codemod,
    Edit,
    Function,
    digests,
    expression,
    followed_by,
    matches,
    once,
    only_first,
    preceded_by,
    span,
    wanted,
)

_HIDDEN = "permuted_local_hidden_states"
_PROBS = "permuted_probs"
_TOLIST = "tokens_per_expert = tokens_per_expert.tolist()"
_UNSQUEEZE = "permuted_probs = permuted_probs.unsqueeze(-1)"
_RETURN = "return output, output_bias"
_SLICE = "if has_no_tokens:\n    output = output[:0]\n"
# Two ways in which a forward leaves the padding for quantization to others; then our rows must be aligned themselves.
_PADDED_ELSEWHERE = ("skip_routed_expert_padding(self.config)", "self.config.moe_router_padding_for_quantization")
# The statements of pull request 4851 as written.
_AS_WRITTEN_ROWS = ["a0e5a0156d8670db", "10460f6b1bf8ce26"]
_AS_WRITTEN_SLICE = ["2a9c571df1cfca95"]


class TEGroupedMLPForward(Codemod):
    """Append zero rows with zero probability, so that fc1 and fc2 run and have gradients; slice them off at the end."""

    def plan(self, function: Function) -> list[Edit]:
        body = function.body
        anchor, rows = _anchor(function), _rows(function)
        index = body.index(anchor)
        last = body[-1]
        if not matches([last], _RETURN):
            raise AnchorError(f"{_RETURN}, as the last statement")
        for name in ("linear_fc1", "linear_fc2"):
            if not any(_uses(node, name) for node in body[index:]):
                raise AnchorError(f"self.{name}, after {expression(anchor)}")
        if _is_grouped(function):
            return [span(anchor, anchor, preceded_by(rows)), span(last, last, preceded_by(_SLICE))]
        edits = []
        if digests(body[index + 1 : index + 3]) == _AS_WRITTEN_ROWS:
            edits.append(span(anchor, body[index + 2], lambda nodes: followed_by("\n" + rows)(nodes[:1])))
        else:
            edits.append(span(anchor, anchor, followed_by("\n" + rows)))
        for before, node in zip(body, body[1:]):
            if digests([node]) == _AS_WRITTEN_SLICE:
                edits.append(span(before, node, only_first))
        return [*edits, span(last, last, preceded_by(_SLICE))]

    def holds(self, function: Function) -> bool:
        try:
            anchor = _anchor(function)
        except AnchorError:
            return False
        body = function.body
        rows = wanted(_rows(function))
        start = body.index(anchor) - len(rows) if _is_grouped(function) else body.index(anchor) + 1
        assigned = [node for node in ast.walk(function) if isinstance(node, ast.Name) and node.id == "has_no_tokens"]
        return (
            start > 0
            and digests(body[start : start + len(rows)]) == rows
            and matches(body[-2:], _SLICE + _RETURN)
            and len(assigned) == 3  # set once, asked twice
            and not set(digests(body)) & {*_AS_WRITTEN_ROWS, *_AS_WRITTEN_SLICE}
            and all(any(_uses(node, name) for node in body[start:]) for name in ("linear_fc1", "linear_fc2"))
        )

    def names(self, function: Function) -> frozenset[str]:
        names = {"torch"}
        if _padded_elsewhere(function):
            names.add("get_align_size_for_quantization")
        if _padded_elsewhere(function) == _PADDED_ELSEWHERE[0]:
            names.add("skip_routed_expert_padding")
        return frozenset(names)


def _anchor(function: Function) -> ast.stmt:
    """The statement behind which the rows are added, or before which (grouped tensors)."""
    if _is_grouped(function):
        assigns = [node for node in function.body if isinstance(node, ast.Assign)]
        return once([node for node in assigns if matches([node], _UNSQUEEZE)], _UNSQUEEZE)
    return once([node for node in function.body if _is_tolist(node)], _TOLIST)


def _is_grouped(function: Function) -> bool:
    """Whether this forward may hand tokens_per_expert on as a tensor, and so has no list of it at its top level."""
    return _uses(function, "_use_grouped_tensor") and not any(_is_tolist(node) for node in function.body)


def _is_tolist(node: ast.stmt) -> bool:
    """``tokens_per_expert = tokens_per_expert.tolist()``, annotated or not."""
    if isinstance(node, ast.AnnAssign):
        targets: list[ast.expr] = [node.target]
    elif isinstance(node, ast.Assign):
        targets = node.targets
    else:
        return False
    return (
        node.value is not None
        and [expression(target) for target in targets] == ["tokens_per_expert"]
        and expression(node.value) == "tokens_per_expert.tolist()"
    )


def _padded_elsewhere(function: Function) -> str | None:
    """The condition under which this forward does not pad for quantization itself, if it has one."""
    for node in function.body:
        if isinstance(node, ast.If) and matches(node.body, "pass") and expression(node.test) in _PADDED_ELSEWHERE:
            return expression(node.test)
    return None


def _rows(function: Function) -> str:
    """The statements that add the rows, for this forward's arguments and its way of padding."""
    grouped, condition = _is_grouped(function), _padded_elsewhere(function)
    lines = [
        "# unhang empty-expert-hang: with no token here, run fc1 and fc2 on zero rows of no weight",
        f"has_no_tokens = {_HIDDEN}.shape[0] == 0" + (" and not self._use_grouped_tensor" if grouped else ""),
        "if has_no_tokens:",
    ]
    per_expert, rows = "1", "self.num_local_experts"
    if condition:
        per_expert, rows = "rows_per_expert", "rows_per_expert * self.num_local_experts"
        lines += [
            "    rows_per_expert = 1",
            *_if(f"{condition} and (", "self.config.fp8 or self.config.fp4", ")"),
            "        rows_per_expert = get_align_size_for_quantization(self.config)",
        ]
    lines += [
        f"    num_rows = {rows}",
        f"    zero_rows = {_HIDDEN}.new_zeros(",
        f"        num_rows, {_HIDDEN}.shape[1]",
        "    )",
        f"    {_HIDDEN} = torch.cat([{_HIDDEN}, zero_rows])",
    ]
    if _PROBS in {argument.arg for argument in function.args.args}:
        lines.append(f"    {_PROBS} = torch.cat([{_PROBS}, {_PROBS}.new_zeros(num_rows)])")
    if grouped:
        lines += [
            "    tokens_per_expert = torch.full(",
            f"        (self.num_local_experts,), {per_expert}, dtype=torch.int64, device='cpu'",
            "    )",
        ]
    else:
        lines.append(f"    tokens_per_expert = [{per_expert}] * self.num_local_experts")
    return "".join(f"{line}\n" for line in lines)


def _if(before: str, inner: str, after: str) -> list[str]:
    """An ``if`` in a block of ours, folded in its parentheses where upstream's 100 columns do not hold it."""
    line = f"    if {before}{inner}{after}:"
    return [line] if len(line) + 8 <= 100 else [f"    if {before}", f"        {inner}", f"    {after}:"]


def _uses(node: ast.AST, name: str) -> bool:
    """Whether ``self.NAME`` stands in this node."""
    return any(isinstance(inner, ast.Attribute) and inner.attr == name for inner in ast.walk(node))


CODEMODS = {"TEGroupedMLP.forward": TEGroupedMLPForward()}
