"""megatron-core: count the tokens of a router's auxiliary losses as the division by all tokens does.

https://github.com/NVIDIA/Megatron-LM/pull/5047 and https://github.com/NVIDIA/Megatron-LM/pull/5798 have the factors.
The count of a mask and that of the global loss are not upstream's.
"""

from __future__ import annotations

import ast

from unhang.codemods.base import (
    AnchorError,
    Codemod,
    argument,
    assigned,
    calls,
    expression,
    followed_by,
    instead,
    mentioned,
    once,
    operand,
    replaced_by,
    span,
)
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_ATTACH, _COUNT = "MoEAuxLossAutoScaler.apply", "get_tokens_per_expert_and_token_count"
_PER_TOKEN, _MASKED, _HANDED = "self.calculate_per_token_loss", "with_padding_mask", "valid_token_count"
_WORLD = "parallel_state.get_tensor_and_context_parallel_world_size()"
_SIZE = "self.tp_cp_group.size()"
# before the loss, this dispatcher gathers over TP what is counted
_GATHERING, _PARTITION = "alltoall_seq", "sequence_partition_group"
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
            else:
                activation = MoEAuxLossAutoScaler.apply(activation, loss)
            return activation

    After::

        def attach(self, activation, loss):
            if self.calculate_per_token_loss:
                # unhang router-token-scale: every rank of the group adds a part of this loss
                activation = MoEAuxLossAutoScaler.apply(
                    activation,
                    loss * activation.shape[0]
                    * self.tp_cp_group.size(),
                )
            else:
                activation = MoEAuxLossAutoScaler.apply(activation, loss)
            return activation
    """

    def plan(self, function: Function) -> list[Edit]:
        arm = _arm(function, _PER_TOKEN)
        found = [(row, call) for row in arm for call in calls(row, _ATTACH) if len(call.args) == 2]
        row, call = once(found, f"{_ATTACH}(..., ...) with {_PER_TOKEN}")
        what, loss = call.args
        name = assigned(row)
        if name is None or name[1] is not call or name[0] != expression(what):
            raise AnchorError(f"... = {_ATTACH}(..., ...)")
        rows = f"{name[0]}.shape[0]"
        counts = {rows, *(it for it, value in _assigned(arm) if _falls_back(value, rows))}
        if not isinstance(loss, ast.BinOp) or not isinstance(loss.op, ast.Mult) or expression(loss.right) not in counts:
            raise AnchorError(f"a loss times {rows}")
        size = _WORLD if "parallel_state" in mentioned(function) else _SIZE
        if any(isinstance(node, ast.Constant) and node.value == _GATHERING for node in ast.walk(function)):
            given = [argument(node, _PARTITION) for node in ast.walk(function) if isinstance(node, ast.Call)]
            group = operand(once([it for it in given if it is not None], f"{_PARTITION}=..."), f"{_PARTITION}=...")
            size = f"(1 if {group} is None else {group}.size())"
        return [span(row, row, instead(_LOSS.format(name[0], expression(loss), size)))]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset({"MoEAuxLossAutoScaler", *({"parallel_state"} & mentioned(function))})

    def fixed_upstream(self, function: Function) -> bool:
        found = [call for row in _arm(function, _PER_TOKEN) for call in calls(row, _ATTACH) if len(call.args) == 2]
        return len(found) == 1 and expression(found[0].args[1]).endswith(f" * {_SIZE}")


class SequenceLoss(Codemod):
    """Hand on the tokens of the micro-batch, and not of one sequence.

    Before::

        def sequences(self, probs, routing, size, loss):
            experts, tokens, every = get_tokens_per_expert_and_token_count(routing, topk=self.topk * size)
            return self.attach(probs, loss(experts, every) / size, valid_token_count=tokens)

    After::

        def sequences(self, probs, routing, size, loss):
            experts, tokens, every = get_tokens_per_expert_and_token_count(routing, topk=self.topk * size)
            # unhang router-token-scale: the tokens of all sequences
            return self.attach(probs, loss(experts, every) / size, valid_token_count=tokens * size)
    """

    def plan(self, function: Function) -> list[Edit]:
        call, _, names = _counted(function)
        each = argument(call, "topk")
        if not isinstance(each, ast.BinOp) or not isinstance(each.op, ast.Mult):
            raise AnchorError(f"{_COUNT}(..., topk=... * ...)")
        sequences = operand(each.right, "a number of sequences")
        handed = _handed(function, names[1])
        return [replaced_by(function, handed, f"{names[1]} * {sequences}", f"{_COMMENT}the tokens of all sequences")]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset()

    def fixed_upstream(self, function: Function) -> bool:
        call, _, names = _counted(function)
        each = argument(call, "topk")
        wanted = isinstance(each, ast.BinOp) and f"{names[1]} * {expression(each.right)}"
        return [expression(one) for one in _all_handed(function)] == [wanted]


class GlobalLoss(Codemod):
    """Hand on what gives all tokens, once it is multiplied: where tokens are padded, the count is that of all ranks.

    Before::

        def everywhere(self, probs, routing, loss, with_padding_mask=False):
            experts, tokens, every = get_tokens_per_expert_and_token_count(routing, self.tp_dp_cp_group)
            return self.attach(probs, loss(experts, every), valid_token_count=tokens)

    After::

        def everywhere(self, probs, routing, loss, with_padding_mask=False):
            experts, tokens, every = get_tokens_per_expert_and_token_count(routing, self.tp_dp_cp_group)
            # unhang router-token-scale: times the size of this group, it is all tokens
            if with_padding_mask:
                tokens = every / self.tp_cp_group.size()
            return self.attach(probs, loss(experts, every), valid_token_count=tokens)
    """

    def plan(self, function: Function) -> list[Edit]:
        _, row, (_, mine, every) = _counted(function)
        _handed(function, mine)
        if [name for name, _ in filter(None, map(assigned, ast.walk(function))) if name in (mine, every)]:
            raise AnchorError(f"{mine} and {every} as {_COUNT} returns them")
        return [span(row, row, followed_by(_GLOBAL.format(mine, every)))]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset()


class TokenCount(Codemod):
    """Take the mean over the group for the tokens of a rank: what was to be summed has been reduced in place.

    Before::

        def count(routing, group, topk, with_padding_mask=False):
            experts = routing.sum(dim=0)
            everywhere = reduce_from_tensor_model_parallel_region(experts, group)
            if with_padding_mask:
                mine = experts.sum() / topk
                every = everywhere.sum() / topk
            else:
                mine = routing.shape[0]
                every = mine * group.size()
            return everywhere, mine, every

    After::

        def count(routing, group, topk, with_padding_mask=False):
            experts = routing.sum(dim=0)
            everywhere = reduce_from_tensor_model_parallel_region(experts, group)
            if with_padding_mask:
                # unhang router-token-scale: the mean of the group; what was summed is reduced in place
                mine = everywhere.sum() / topk / group.size()
                every = everywhere.sum() / topk
            else:
                mine = routing.shape[0]
                every = mine * group.size()
            return everywhere, mine, every
    """

    def plan(self, function: Function) -> list[Edit]:
        arm, other = (dict(_assigned(_arm(function, _MASKED, field))) for field in ("body", "orelse"))
        totals = [(it, value) for it, value in other.items() if isinstance(value, ast.BinOp) and it in arm]
        every, total = once(totals, f"... = ... * ... without {_MASKED}")
        mine, size = expression(total.left), operand(total.right, "the size of a group")
        if not isinstance(total.op, ast.Mult) or mine not in arm:
            raise AnchorError(f"{every} = {mine} * {size}")
        once([it for it in calls(arm[mine], f"{_reduced(function)}.sum") if not it.args], "a sum of what was reduced")
        whole = arm[every]
        if not isinstance(whole, ast.BinOp) or not isinstance(whole.op, (ast.Div, ast.FloorDiv)):
            raise AnchorError(f"{every} = ... / ...")
        return [replaced_by(function, arm[mine], f"{expression(whole)} / {size}", _MEAN)]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset()


def _arm(function: Function, test: str, field: str = "body") -> list[ast.stmt]:
    """Return the block of the only ``if`` with this condition."""
    found = [node for node in ast.walk(function) if isinstance(node, ast.If) and expression(node.test) == test]
    block: list[ast.stmt] = getattr(once(found, f"if {test}"), field)
    return block


def _assigned(block: list[ast.stmt]) -> list[tuple[str, ast.expr]]:
    """Return the names that a block's statements assign, and the values."""
    return [one for one in map(assigned, block) if one is not None]


def _falls_back(value: ast.expr, rows: str) -> bool:
    """Return whether a value is the count of a mask, or, without one, of all rows."""
    return isinstance(value, ast.IfExp) and expression(value.orelse) == rows


def _counted(function: Function) -> tuple[ast.Call, ast.stmt, list[str]]:
    """Return the call that counts tokens, its statement, and the three names that it gives a value."""
    found = [
        (row.value, row, [expression(one) for one in row.targets[0].elts])
        for row in function.body
        if isinstance(row, ast.Assign) and isinstance(row.targets[0], ast.Tuple) and isinstance(row.value, ast.Call)
        if expression(row.value.func) == _COUNT
    ]
    call, row, names = once(found, f"..., ..., ... = {_COUNT}(...)")
    if len(names) != 3:
        raise AnchorError(f"..., ..., ... = {_COUNT}(...)", len(names))
    return call, row, names


def _all_handed(function: Function) -> list[ast.expr]:
    found = [argument(node, _HANDED) for node in ast.walk(function) if isinstance(node, ast.Call)]
    return [one for one in found if one is not None]


def _handed(function: Function, mine: str) -> ast.expr:
    """Return the only count that is handed on: that of this rank, which nothing else reads."""
    handed = once(_all_handed(function), f"{_HANDED}=...")
    read = [node for node in ast.walk(function) if isinstance(node, ast.Name) and node.id == mine]
    if expression(handed) != mine or len(read) != 2:
        raise AnchorError(f"{_HANDED}={mine}, which nothing else reads")
    if any(word.startswith("aux_loss_scale") for word in mentioned(function)):
        raise AnchorError("one count alone")
    return handed


def _reduced(function: Function) -> str:
    """Return the name of what is reduced in place."""
    reduce = "reduce_from_tensor_model_parallel_region"
    found = [call for call in calls(function, reduce) if call.args]
    return operand(once(found, f"{reduce}(..., ...)").args[0], "a name")


CODEMODS = {
    "TopKRouter.apply_load_balancing_loss": Attach(),
    "TopKRouter.attach_and_log_load_balancing_loss": Attach(),
    "TopKRouter.apply_z_loss": Attach(),
    "TopKRouter._apply_seq_aux_loss": SequenceLoss(),
    "TopKRouter._apply_global_aux_loss": GlobalLoss(),
    "get_tokens_per_expert_and_token_count": TokenCount(),
}
