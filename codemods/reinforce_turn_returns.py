"""verl: let tokens that do not count, such as those of a tool, neither end a return nor take a reward away.

https://github.com/verl-project/verl/pull/7300, as merged, still takes away the reward of such a token.
"""

from __future__ import annotations

import ast
import re
from typing import Any

from unhang.codemods.base import Codemod, assigned, expression, once, preceded_by, refuse_own, replaced_by, span
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_OWN = "carried"
_SUM = re.compile(r"(\w+\[[^]]+\]) \+ \w+ \* (\w+)")
_MASK = r"(\w+\[[^]]+\])"
_MARK = "# unhang reinforce-turn-returns: "
_CARRIED = f"{_MARK}at a token that does not count, nothing is discounted or lost\n{_OWN} = {{}} + {{}}\n"


class Returns(Codemod):
    """Carry the return over a token that does not count, with a reward that is put there.

    Before::

        def returns_of(rewards, mask, gamma):
            returns, running = torch.zeros_like(rewards), 0
            for t in reversed(range(rewards.shape[1])):
                running = rewards[:, t] + gamma * running
                returns[:, t] = running
                running = running * mask[:, t]
            return returns

    After::

        def returns_of(rewards, mask, gamma):
            returns, running = torch.zeros_like(rewards), 0
            for t in reversed(range(rewards.shape[1])):
                # unhang reinforce-turn-returns: at a token that does not count, nothing is discounted or lost
                carried = rewards[:, t] + running

                running = rewards[:, t] + gamma * running
                returns[:, t] = running
                # unhang reinforce-turn-returns: as above
                running = torch.where(mask[:, t].bool(), running, carried)
            return returns

    In upstream's own fix, ``running * (1 - mask[:, t])`` gets ``carried`` in the same way.
    """

    def plan(self, function: Function) -> list[Edit]:
        refuse_own(function, [_OWN])
        rows = [(row, value) for row in ast.walk(function) if isinstance(row, ast.stmt) and (value := assigned(row))]
        sums = [(row, found) for row, (_, value) in rows if (found := _SUM.fullmatch(expression(value)))]
        row, found = once(sums, "... = REWARDS[:, ...] + ... * RETURN")
        rewards, name = found.groups()
        values = [value for _, (target, value) in rows if target == name]
        resets = [(it, f"torch.where({of[1]}.bool(), {name}, {_OWN})") for it, of in _times(name, _MASK, values)]
        parts = [it for value in values for it in ast.walk(value) if isinstance(it, ast.BinOp)]
        passes = [(it.left, _OWN) for it, _ in _times(name, rf"\(1 - {_MASK}\)", parts)]
        old, new = once([*resets, *passes], "RETURN = RETURN * MASK[:, ...], or the like")
        return [
            span(row, row, preceded_by(_CARRIED.format(rewards, name))),
            replaced_by(function, old, new, f"{_MARK}as above"),
        ]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset({"torch"})


def _times(name: str, factor: str, among: list[Any]) -> list[tuple[Any, re.Match[str]]]:
    """Return the products of a name and what this pattern matches, each with the match."""
    return [(it, found) for it in among if (found := re.fullmatch(rf"{name} \* {factor}", expression(it)))]


CODEMODS = {"compute_reinforce_plus_plus_outcome_advantage": Returns()}
