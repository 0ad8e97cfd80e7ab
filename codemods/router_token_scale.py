"""megatron-core: count the tokens of a router's auxiliary losses as the division by all tokens does."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any

from unhang.codemods import base
from unhang.codemods.base import AnchorError, Codemod, assignments, expression, mentioned, once
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function, unannotated

_ATTACH, _COUNT = "MoEAuxLossAutoScaler.apply", "get_tokens_per_expert_and_token_count"
_PER_TOKEN, _MASKED, _HANDED = "self.calculate_per_token_loss", "with_padding_mask", "valid_token_count"
_EACH = r"topk=[\w.]+ \* ([\w.]+)"
_NAME, _REDUCE = r"(\w+)", "reduce_from_tensor_model_parallel_region"
_WORLD = "parallel_state.get_tensor_and_context_parallel_world_size()"
_SIZE, _PARTITION = "self.tp_cp_group.size()", "sequence_partition_group"
_COMMENT = "# unhang router-token-scale: "
_LOSS = f"""\
{_COMMENT}every rank of the group adds a part of this loss
{{0}} = {_ATTACH}(
    {{0}},
    {{1}}
    * {{2}},
)
"""
_MEAN = f"{_COMMENT}the mean of the group; what was summed is reduced in place"
_GLOBAL = f"""\
{_COMMENT}times the size of this group, it is all tokens
if {_MASKED}:
    {{0}} = {{1}} / {_SIZE}
"""


class Attach(Codemod):
    """Multiply the loss by the tokens of the group, and not of the rank.

    Before::

        def attach(self, activation, loss):
            if self.calculate_per_token_loss:
                activation = MoEAuxLossAutoScaler.apply(activation, loss * activation.shape[0])

    After::

        ...
                # unhang router-token-scale: every rank of the group adds a part of this loss
                activation = MoEAuxLossAutoScaler.apply(
                    activation,
                    loss * activation.shape[0]
                    * self.tp_cp_group.size(),
                )
    """

    def plan(self, function: Function) -> list[Edit]:
        row, (name, loss, count) = _attached(function)
        rows = f"{name}.shape[0]"
        given = [it for node in _arm(function, _PER_TOKEN) for it in assignments(node)]
        if count not in {rows, *(it for _, it, value in given if expression(value).endswith(f" else {rows}"))}:
            raise AnchorError(f"a loss times {rows}")
        size = _WORLD if "parallel_state" in mentioned(function) else _SIZE
        if "alltoall_seq" in mentioned(function):  # before the loss, it gathers over TP what is counted
            group = base.operand(once(_given(function, _PARTITION), f"{_PARTITION}=..."), f"{_PARTITION}=...")
            size = f"(1 if {group} is None else {group}.size())"
        return [base.replacing(function, expression(row), _LOSS.format(name, f"{loss} * {count}", size))]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset({"MoEAuxLossAutoScaler", *({"parallel_state"} & mentioned(function))})

    def fixed_upstream(self, function: Function) -> bool:
        return expression(_attached(function)[0]).endswith(f" * {_SIZE})")


class SequenceLoss(Codemod):
    """Hand on the tokens of the micro-batch, and not of one sequence.

    Before::

        def sequences(self, probs, routing, size, loss):
            experts, tokens, every = get_tokens_per_expert_and_token_count(routing, topk=self.topk * size)
            return self.attach(probs, loss(experts, every) / size, valid_token_count=tokens)

    After::

        ...
            # unhang router-token-scale: the tokens of all sequences
            return self.attach(probs, loss(experts, every) / size, valid_token_count=tokens * size)
    """

    def plan(self, function: Function) -> list[Edit]:
        _, (_, mine, _, sequences) = _counted(function, _EACH)
        tokens = f"{mine} * {sequences}"
        return [base.replaced_by(function, _handed(function, mine), tokens, f"{_COMMENT}the tokens of all sequences")]

    def fixed_upstream(self, function: Function) -> bool:
        _, (_, mine, _, sequences) = _counted(function, _EACH)
        return [*map(expression, _given(function, _HANDED))] == [f"{mine} * {sequences}"]


class GlobalLoss(Codemod):
    """Hand on what gives all tokens, once it is multiplied: where tokens are padded, the count is that of all ranks.

    Before::

        def everywhere(self, probs, routing, loss, with_padding_mask=False):
            experts, tokens, every = get_tokens_per_expert_and_token_count(routing, self.tp_dp_cp_group)
            return self.attach(probs, loss(experts, every), valid_token_count=tokens)

    After::

        ...
            # unhang router-token-scale: times the size of this group, it is all tokens
            if with_padding_mask:
                tokens = every / self.tp_cp_group.size()
            ...
    """

    def plan(self, function: Function) -> list[Edit]:
        row, (_, mine, every) = _counted(function)
        _handed(function, mine)
        if {mine, every} & {name for _, name, _ in assignments(function)}:
            raise AnchorError(f"{mine} and {every} as {_COUNT} returns them")
        return [base.after(function, expression(row), _GLOBAL.format(mine, every))]


class TokenCount(Codemod):
    """Take the mean over the group for the tokens of a rank: what was to be summed has been reduced in place.

    Before::

        def count(routing, experts, group, topk, with_padding_mask=False):
            everywhere = reduce_from_tensor_model_parallel_region(experts, group)
            if with_padding_mask:
                mine = experts.sum() / topk
                every = everywhere.sum() / topk
            else:
                mine = routing.shape[0]
                every = mine * group.size()

    After::

        ...
                # unhang router-token-scale: the mean of the group; what was summed is reduced in place
                mine = everywhere.sum() / topk / group.size()
            ...
    """

    def plan(self, function: Function) -> list[Edit]:
        arm, other = (_arm(function, _MASKED, field) for field in ("body", "orelse"))
        _, (every, mine, size) = _spelled(other, rf"{_NAME} = {_NAME} \* ([\w.]+\(\))", f"... * ... without {_MASKED}")
        _, (_, reduced) = _spelled(function.body, rf"{_NAME} = {_REDUCE}\({_NAME}, .+\)", "the name of what is reduced")
        row, _ = _spelled(arm, rf"{mine} = .*{reduced}\.sum\(\).*", "a sum of what was reduced")
        _, (whole,) = _spelled(arm, rf"{every} = ([^/]+ //? [^/]+)", f"{every} = ... / ...")
        return [base.replaced_by(function, row.value, f"{whole} / {size}", _MEAN)]


def _arm(function: Function, test: str, field: str = "body") -> Any:
    """Return the block of the only ``if`` with this condition."""
    found = [node for node in ast.walk(function) if isinstance(node, ast.If) and expression(node.test) == test]
    return getattr(once(found, f"if {test}"), field)


def _spelled(block: Sequence[ast.stmt], pattern: str, anchor: str) -> tuple[Any, tuple[str, ...]]:
    """Return the only statement of a block with such code, and what the groups of the pattern match."""
    found = [(row, one.groups()) for row in block if (one := re.fullmatch(pattern, expression(unannotated(row))))]
    return once(found, anchor)


def _attached(function: Function) -> tuple[Any, tuple[str, ...]]:
    """Return the statement that attaches a loss, what to, the loss, and by what that is multiplied."""
    pattern = rf"{_NAME} = {re.escape(_ATTACH)}\(\1, {_NAME} \* ([^,]+)\)"
    return _spelled(_arm(function, _PER_TOKEN), pattern, f"... = {_ATTACH}(..., ... * ...) with {_PER_TOKEN}")


def _counted(function: Function, argument: str = "") -> tuple[Any, tuple[str, ...]]:
    """Return the statement that counts tokens, the three names that it gives a value, and what an argument matches."""
    pattern = rf"\(?{_NAME}, {_NAME}, {_NAME}\)? = {_COUNT}\(.*{argument}(?:, .*)?\)"
    return _spelled(function.body, pattern, f"..., ..., ... = {_COUNT}(...{argument and ', topk=... * ...'})")


def _given(function: Function, name: str) -> list[ast.expr]:
    """Return what calls give for a keyword."""
    return [node.value for node in ast.walk(function) if isinstance(node, ast.keyword) and node.arg == name]


def _handed(function: Function, mine: str) -> ast.expr:
    """Return the only count that is handed on: that of this rank, which nothing else reads."""
    handed = once(_given(function, _HANDED), f"{_HANDED}=...")
    read = [node for node in ast.walk(function) if isinstance(node, ast.Name) and node.id == mine]
    if expression(handed) != mine or len(read) != 2:
        raise AnchorError(f"{_HANDED}={mine}, which nothing else reads")
    if any(word.startswith("aux_loss_scale") for word in mentioned(function)):
        raise AnchorError("one count alone")
    return handed


CODEMODS = {
    "TopKRouter.apply_load_balancing_loss": Attach(),
    "TopKRouter.attach_and_log_load_balancing_loss": Attach(),
    "TopKRouter.apply_z_loss": Attach(),
    "TopKRouter._apply_seq_aux_loss": SequenceLoss(),
    "TopKRouter._apply_global_aux_loss": GlobalLoss(),
    "get_tokens_per_expert_and_token_count": TokenCount(),
}
