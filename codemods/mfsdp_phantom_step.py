"""megatron-core: Megatron-FSDP makes the states of an optimizer, and takes no step for it.

https://github.com/NVIDIA/Megatron-LM/pull/5976
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from unhang.codemods.base import (
    AnchorError,
    Codemod,
    expression,
    followed_by,
    matches,
    mentioned,
    once,
    preceded_by,
    replaced_by,
    span,
)
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

if TYPE_CHECKING:
    from unhang.codemods.edit import Statements

_WHY = "# unhang mfsdp-phantom-step: a state that was loaded before is to stay as it is"
_BEFORE = """\
# unhang mfsdp-phantom-step: keep the states that this step makes, and take all else of it back
made = [it for one in {of}.param_groups for it in one["params"] if it.grad is not None]
weights = [getattr(it, "_local_tensor", it).detach() for it in made]
copies = [weight.clone() for weight in weights]
decays = [one.get("weight_decay") for one in {of}.param_groups]
counts = [one.get("step", 0) + 0 for one in {of}.param_groups]  # a copy of a tensor
for one in {of}.param_groups:
    if "weight_decay" in one:
        one["weight_decay"] = 0.0
"""
_AFTER = """\
for weight, copy in zip(weights, copies):
    weight.copy_(copy)
for one, decay, count in zip({of}.param_groups, decays, counts):
    if "weight_decay" in one:
        one["weight_decay"] = decay
    if "step" in one:
        one["step"] = one["step"] * 0 + count
for new in [{of}.state.get(it) or {{}} for it in made]:
    for name, first in (("step", 0), ("mu_product", 1)):  # the latter is NAdam's
        if name in new:
            new[name] = new[name] * 0 + first
"""


class FullyShardOptimizer(Codemod):
    """Take back the weights, the counts and the decay of the step that makes the states.

    Before::

        def shard(optimizer):
            for param in optimizer.params():
                param.grad = torch.zeros_like(param)
            optimizer.step()
            optimizer.zero_grad()

    After::

        def shard(optimizer):
            for param in optimizer.params():
                # unhang mfsdp-phantom-step: a state that was loaded before is to stay as it is
                param.grad = None if optimizer.state.get(param) else torch.zeros_like(param)
            # unhang mfsdp-phantom-step: keep the states that this step makes, and take all else of it back
            ...
            copies = [weight.clone() for weight in weights]
            ...

            optimizer.step()
            for weight, copy in zip(weights, copies):
                weight.copy_(copy)
            ...
            optimizer.zero_grad()
    """

    def plan(self, function: Function) -> list[Edit]:
        of = function.args.args[0].arg
        zeros = once(_zeros(function), "param.grad = torch.zeros_like(param)")
        step = once(_steps(function), f"{of}.step()")
        if "lr" in mentioned(function):
            raise AnchorError(f"{of}.step() at the rate that the user has set")
        new = f"None if {of}.state.get({expression(zeros.args[0])}) else {expression(zeros)}"
        before, after = preceded_by(_BEFORE.format(of=of)), followed_by(_AFTER.format(of=of))

        def around(nodes: Statements) -> Statements:
            return after(before(nodes))

        return [replaced_by(function, zeros, new, _WHY), span(step, step, around)]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset()

    def fixed_upstream(self, function: Function) -> bool:
        return len(_steps(function)) == 1 and {"lr", "weight_decay", "step"} <= mentioned(function)


def _steps(function: Function) -> list[ast.stmt]:
    return [row for row in function.body if matches([row], f"{function.args.args[0].arg}.step()\n")]


def _zeros(function: Function) -> list[ast.Call]:
    """Return the gradients of zeros that the parameters get."""
    return [
        it.value
        for it in ast.walk(function)
        if isinstance(it, ast.Assign)
        and isinstance(it.value, ast.Call)
        and isinstance(it.targets[0], ast.Attribute)
        and expression(it) == "{0}.grad = torch.zeros_like({0})".format(expression(it.targets[0].value))
    ]


CODEMODS = {"fully_shard_optimizer": FullyShardOptimizer()}
