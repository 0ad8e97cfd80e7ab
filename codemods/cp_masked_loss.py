"""megatron-core: divide a masked loss by the tokens of the whole context-parallel group, as if no rank had split it.

https://github.com/NVIDIA/Megatron-LM/issues/7452 names the defect (finding 9), and
https://github.com/NVIDIA/Megatron-LM/pull/7513 has a change of upstream's.
"""

from __future__ import annotations

import ast

from unhang.codemods.base import AnchorError, Codemod, expression, instead, once, refuse_own, span
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_AVERAGED = "not config.calculate_per_token_loss"
_TOKENS = "cp_tokens"
_MODEL, _SIZE = "model", "cp_group_size"
_OURS = f"""# unhang cp-masked-loss: a mean over the tokens of the whole CP group
{_TOKENS} = {{tokens}}
if {_SIZE} > 1 and torch.is_grad_enabled():
    try:
        cp_group = get_attr_wrapped_model({_MODEL}, "cp_group")
    except RuntimeError:  # no module in it has one
        cp_group = None
    if cp_group is None:
        cp_group = parallel_state.get_context_parallel_group(
            check_initialized=False
        )
    if cp_group is not None and cp_group.size() == {_SIZE}:
        # In a type that all ranks share: a sum of counts in halves overflows.
        # Exact below 2**24 tokens; HCCL has no float64.
        {_TOKENS} = torch.as_tensor(
            {{tokens}}, dtype=torch.float32, device={{loss}}.device
        )
        {_TOKENS} = {_TOKENS}.detach().clone()
        torch.distributed.all_reduce({_TOKENS}, group=cp_group)
        {{loss}} *= {_SIZE}
{{divided}}
"""


class CalcLoss(Codemod):
    """Sum the count of tokens over the group before the division, and take back the mean of DDP over that group.

    Before::

        def forward_step_calc_loss(model, output, loss_func, config, cp_group_size=None):
            output, tokens, report = loss_func(output)
            if not config.calculate_per_token_loss:
                output /= torch.clamp(tokens, min=1)
            return output, tokens

    After::

        def forward_step_calc_loss(model, output, loss_func, config, cp_group_size=None):
            output, tokens, report = loss_func(output)
            if not config.calculate_per_token_loss:
                # unhang cp-masked-loss: a mean over the tokens of the whole CP group
                cp_tokens = tokens
                if cp_group_size > 1 and torch.is_grad_enabled():
                    try:
                        cp_group = get_attr_wrapped_model(model, "cp_group")
                    except RuntimeError:  # no module in it has one
                        cp_group = None
                    if cp_group is None:
                        cp_group = parallel_state.get_context_parallel_group(
                            check_initialized=False
                        )
                    if cp_group is not None and cp_group.size() == cp_group_size:
                        # In a type that all ranks share: a sum of counts in halves overflows.
                        # Exact below 2**24 tokens; HCCL has no float64.
                        cp_tokens = torch.as_tensor(
                            tokens, dtype=torch.float32, device=output.device
                        )
                        cp_tokens = cp_tokens.detach().clone()
                        torch.distributed.all_reduce(cp_tokens, group=cp_group)
                        output *= cp_group_size
                output /= torch.clamp(cp_tokens, min=1)
            return output, tokens
    """

    def plan(self, function: Function) -> list[Edit]:
        refuse_own(function, [_TOKENS])
        given = {it.arg for it in function.args.args}
        if not {_MODEL, _SIZE} <= given:
            raise AnchorError(f"arguments {_MODEL} and {_SIZE}")
        outputs = [[*map(expression, it.elts)] for it in _taken_apart(function)]
        loss, tokens, _ = once(outputs, "a loss, its tokens and a report = ...")
        arms = [it for it in ast.walk(function) if isinstance(it, ast.If) and expression(it.test) == _AVERAGED]
        by = {tokens, f"torch.clamp({tokens}, min=1)"}
        divisions = [it for arm in arms for it in arm.body if _divides(it, loss) in by]
        row = once(divisions, f"if {_AVERAGED}: {loss} /= {tokens}")
        divided = f"{loss} /= {_divides(row, loss).replace(tokens, _TOKENS)}"
        return [span(row, row, instead(_OURS.format(tokens=tokens, loss=loss, divided=divided)))]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset({"torch", "parallel_state", "get_attr_wrapped_model"})


def _taken_apart(function: Function) -> list[ast.Tuple]:
    """Return where three values are given names."""
    tuples = [it for it in ast.walk(function) if isinstance(it, ast.Tuple) and isinstance(it.ctx, ast.Store)]
    return [it for it in tuples if len(it.elts) == 3]


def _divides(row: ast.stmt, name: str) -> str:
    """Return what a statement divides a name by, in place; empty for any other."""
    if isinstance(row, ast.AugAssign) and isinstance(row.op, ast.Div) and expression(row.target) == name:
        return expression(row.value)
    return ""


CODEMODS = {"forward_step_calc_loss": CalcLoss()}
