"""megatron-core: give the grouped linears rows of zeros when no token was routed to this rank.

https://github.com/NVIDIA/Megatron-LM/pull/4851 (it tests sum(tokens_per_expert): wrong with over-allocated buffers)
"""

from __future__ import annotations

import ast

from unhang.codemods.base import (
    AnchorError,
    Codemod,
    check_plain,
    digests,
    expression,
    followed_by,
    leaving,
    matches,
    mentioned,
    once,
    only_first,
    preceded_by,
    refuse_own,
    span,
    wanted,
)
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_HIDDEN = "permuted_local_hidden_states"
_PROBS = "permuted_probs"
_TOLIST = "tokens_per_expert = tokens_per_expert.tolist()"
_UNSQUEEZE = "permuted_probs = permuted_probs.unsqueeze(-1)"
_RETURN = "return output, output_bias"
_BIAS = "output = self._apply_bias(output, output_bias, tokens_per_expert, permuted_probs)"
_SLICE = "if has_no_tokens:\n    output = output[:0]\n"
_OURS = frozenset({"has_no_tokens", "rows_per_expert", "num_rows", "zero_rows"})
# The names that carry the tokens through the forward.
_CARRIERS = frozenset(
    {
        *(_HIDDEN, _PROBS, "tokens_per_expert", "output", "output_bias"),
        *("intermediate_parallel", "bias_parallel", "fc1_output", "bias_act_output", "bias_act_func"),
    }
)
# Upstream's dev branch had this statement twice in July 2026, with no effect: it makes an object that is not used yet.
_AGAIN = "5c3580af6c470be4"
_PADS = frozenset(
    {
        *("ef123e4c5f97fa3d", "a52e9736bd38a692", "6ee48f0911fb942f", "be2f7a85c6bf0b50", "c570fe56e2642a94"),
        "ab95fa74376819fd",  # with grouped tensors
    }
)
# Upstream's statements that use these names, in five stages: up to fc1, fc1, the activation, fc2, the rest.
_STAGES = (
    _PADS
    | {
        *("9e041b3e60c05672", "de3fcaffdfc0918c", "adf2419b0f25e2cc", "4e2c97c8633ecb77", "bbb0f4b4b1ccc39c"),
    },
    frozenset(
        {"4341be5dfc0a064b", "6066fd3a3209add9", "147b969389cd66c5", "ea29278ce98c3ccd", "cc09bb97fe82b26d"},
    ),
    frozenset(
        {
            *("33d963972656db6f", "b06f6238312ad157", "422d191439c97be1", "f22b5c02b3d3417f", "3fa981188f051707"),
            *("be56e03c897c8665", "6db398a18c37cb22", "7daf0cb15d44ffd4", "0839e25b4d1abecb", "0e5c92edeb4b279c"),
            *("5c3580af6c470be4", "d2ac914ccbf070ae", "2aac0bf985cce406", "a16bc6407407e00a", "ace740461d30e034"),
            *("327b099bd4284608", "e1349f2f01a05ee8", "108cfca010f2a0b2", "a1d78ff6480a7327", "cbba7c2c5a7d2d42"),
            *("050d3dd890470fa2", "d53e9a9450e1a581"),
        }
    ),
    frozenset(
        {"74ef5ebac95492d2", "84b4e26fc51129a7", "f181e657a4f67240", "70025aa4307ba09d", "94648e46b717aa56"},
    ),
    frozenset(
        {
            *("a81cc219f1be3297", "72cf139dc61d94ef", "5c3c736bc0497979", "0ca825ce9d546349", "dee45270971a45ce"),
            *("500e5e985ff185f5", "2397b4e360b084c0", "29f952f89d45f3e8", "cb726f3b4a7a5bfc"),
        }
    ),
)
# Two conditions under which a forward does not pad for quantization; then our own rows must be aligned.
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
        older = wanted(_rows(function, older=True))
        if older != wanted(rows) and digests(body[index + 1 : index + 1 + len(older)]) == older:  # of generation 1
            return [span(anchor, body[index + len(older)], lambda nodes: followed_by("\n" + rows)(nodes[:1]))]
        refuse_own(function, _OURS)
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

    def check(self, function: Function) -> None:
        body, index = function.body, function.body.index(_anchor(function))
        if mentioned(*body) & _OURS:
            raise AnchorError("a forward without added rows")
        as_written = [node for node in body if digests([node])[0] in {*_AS_WRITTEN_ROWS, *_AS_WRITTEN_SLICE}]
        _check_flow(function, body[:index], [node for node in body[index + 1 : -1] if node not in as_written])

    def holds(self, function: Function) -> bool:
        try:
            anchor = _anchor(function)
        except AnchorError:
            return False
        body = function.body
        rows = wanted(_rows(function))
        start = body.index(anchor) - len(rows) if _is_grouped(function) else body.index(anchor) + 1
        if (
            start < 0
            or digests(body[start : start + len(rows)]) != rows
            or not matches(body[-2:], _SLICE + _RETURN)
            or set(digests(body)) & {*_AS_WRITTEN_ROWS, *_AS_WRITTEN_SLICE}
        ):
            return False
        before, after = body[:start], body[start + len(rows) : -2]
        before = [node for node in before if node is not anchor]
        after = [node for node in after if node is not anchor]
        if mentioned(*before, *after) & _OURS:
            return False
        try:
            _check_flow(function, before, after)
        except AnchorError:
            return False
        return True

    def names(self, function: Function) -> frozenset[str]:
        names = {"torch"}
        if _padded_elsewhere(function):
            names.add("get_align_size_for_quantization")
        if _padded_elsewhere(function) == _PADDED_ELSEWHERE[0]:
            names.add("skip_routed_expert_padding")
        return frozenset(names)


def _check_flow(function: Function, before: list[ast.stmt], after: list[ast.stmt]) -> None:
    """Raise AnchorError unless the added rows go through the same statements as tokens do, up to the last one.

    ``before`` and ``after``: the statements before the anchor, and those between the added rows and the slice. Every
    statement that uses the names which carry the tokens must be one that a release has, and in that order. None of
    those looks at the tokens' values, so what holds with tokens also holds with the added rows.
    """
    check_plain(function, ("self", "torch", "skip_routed_expert_padding", "get_align_size_for_quantization"))
    fused = [node for node in before if isinstance(node, ast.If) and expression(node.test) == "self._with_fused_impl"]
    before = [node for node in before if node not in fused]
    if leaving(*before, *after):
        raise AnchorError(f"{_RETURN} as the only return")
    if not _is_grouped(function) and mentioned(*before) & _CARRIERS:
        raise AnchorError(f"no use of the tokens before {_TOLIST}")
    working = [node for node in [*before, *after] if mentioned(node) & _CARRIERS]
    found = digests(working)
    stages = [[number for number, stage in enumerate(_STAGES) if shape in stage] for shape in found]
    for node, stage in zip(working, stages):
        if not stage:
            raise AnchorError(f"a release's statement about the tokens, in place of line {node.lineno}")
    once_each = [shape for shape in found if shape != _AGAIN]
    if stages != sorted(stages) or len({*once_each}) != len(once_each):
        raise AnchorError("the statements about the tokens in a release's order, each of them once")
    for number, name in (1, "linear_fc1"), (3, "linear_fc2"):
        if stages.count([number]) != 1:
            raise AnchorError(f"self.{name}", stages.count([number]))
    probs = wanted(_UNSQUEEZE)[0]
    if probs in found and _PADS & {*found[: found.index(probs)]}:
        raise AnchorError(f"{_UNSQUEEZE} before the padding")
    if len(_PADS & {*found}) != any("padd" in name for name in mentioned(*before, *after)):
        raise AnchorError("if ...: ..._padding(...)")


def _anchor(function: Function) -> ast.stmt:
    """Return the statement after which the rows are added; with grouped tensors, before which."""
    if _is_grouped(function):
        assigns = [node for node in function.body if isinstance(node, ast.Assign)]
        return once([node for node in assigns if matches([node], _UNSQUEEZE)], _UNSQUEEZE)
    return once([node for node in function.body if _is_tolist(node)], _TOLIST)


def _is_grouped(function: Function) -> bool:
    """Return whether this forward may keep tokens_per_expert a tensor, and so makes no list of it at its top level."""
    return _uses(function, "_use_grouped_tensor") and not any(_is_tolist(node) for node in function.body)


def _is_tolist(node: ast.stmt) -> bool:
    """Return whether this is ``tokens_per_expert = tokens_per_expert.tolist()``, annotated or not."""
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
    """Return the condition under which this forward does not pad for quantization, if it has one."""
    for node in function.body:
        if isinstance(node, ast.If) and matches(node.body, "pass") and expression(node.test) in _PADDED_ELSEWHERE:
            return expression(node.test)
    return None


def _unpadding_before_bias(function: Function) -> tuple[str, str] | None:
    """Return the condition and the name of this forward's padding, if its bias comes after the unpadding.

    The bias is then split by the padded counts, which are those of the unpadded rows only if these are aligned.
    """
    for node in function.body:
        if matches([node], _BIAS):
            return None
        if isinstance(node, ast.If) and (
            names := {name for name in mentioned(*node.body) if name.endswith("_unpadding")}
        ):
            rest = function.body[function.body.index(node) :]
            if any(matches([after], _BIAS) for after in rest):
                return expression(node.test), names.pop().replace("_unpadding", "_padding")
    return None


def _rows(function: Function, *, older: bool = False) -> str:
    """Return the statements that add the rows, for this forward's arguments and padding.

    ``older`` returns those of generation 1, which aligned no rows where the forward pads before its bias, or not at
    all: there fp8 and fp4 then failed with rows of ours, and not without.
    """
    grouped, condition = _is_grouped(function), _padded_elsewhere(function)
    padding = None if older else _unpadding_before_bias(function)
    never_pads = not older and not any("padd" in name for name in mentioned(*function.body))
    lines = [
        "# unhang empty-expert-hang: no token here, so run fc1 and fc2 on zero rows of probability 0",
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
    elif never_pads:
        per_expert, rows = "rows_per_expert", "rows_per_expert * self.num_local_experts"
        lines.append("    rows_per_expert = 16 if self.config.fp8 else 1")
    lines += [
        f"    num_rows = {rows}",
        f"    zero_rows = {_HIDDEN}.new_zeros(",
        f"        num_rows, {_HIDDEN}.shape[1]",
        "    )",
    ]
    if padding:
        lines += [
            f"    tokens_per_expert = [{per_expert}] * self.num_local_experts",
            f"    if {padding[0]}:",
            "        # the bias comes after the unpadding: rows that are aligned already fit both",
            f"        zero_rows, tokens_per_expert = self.{padding[1]}(",
            "            zero_rows, tokens_per_expert",
            "        )",
            "        num_rows = zero_rows.shape[0]",
        ]
    lines.append(f"    {_HIDDEN} = torch.cat([{_HIDDEN}, zero_rows])")
    if _PROBS in {argument.arg for argument in function.args.args}:
        lines.append(f"    {_PROBS} = torch.cat([{_PROBS}, {_PROBS}.new_zeros(num_rows)])")
    if grouped:
        lines += [
            "    tokens_per_expert = torch.full(",
            f"        (self.num_local_experts,), {per_expert}, dtype=torch.int64, device='cpu'",
            "    )",
        ]
    elif not padding:
        lines.append(f"    tokens_per_expert = [{per_expert}] * self.num_local_experts")
    return "".join(f"{line}\n" for line in lines)


def _if(before: str, inner: str, after: str) -> list[str]:
    """Return the lines of an ``if`` in our block, split at its parentheses if it exceeds upstream's 100 columns."""
    line = f"    if {before}{inner}{after}:"
    return [line] if len(line) + 8 <= 100 else [f"    if {before}", f"        {inner}", f"    {after}:"]


def _uses(node: ast.AST, name: str) -> bool:
    """Return whether this node uses an attribute ``NAME``."""
    return any(isinstance(inner, ast.Attribute) and inner.attr == name for inner in ast.walk(node))


CODEMODS = {"TEGroupedMLP.forward": TEGroupedMLPForward()}
