"""verl: let tokens that do not count, such as those of a tool, neither end a return nor take a reward away.

https://github.com/verl-project/verl/pull/7300, as merged, still takes away the reward of such a token.
"""

from __future__ import annotations

import re

from unhang.codemods.base import Codemod, assignments, expression, followed_by, once, preceded_by, refuse_own, span
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_OWN = "carried"
_SUM = re.compile(r"(\w+(\[[^]]+\])) \+ \w+ \* (\w+)")
_MASK = "response_mask"  # the callers give it by this name
_MARK = "# unhang reinforce-turn-returns: "
_CARRIED = f"{_MARK}at a token that does not count, nothing is discounted or lost\n{_OWN} = {{}} + {{}}\n"
_KEPT = f"{_MARK}as above\n{{0}} = torch.where({{1}}.bool(), {{0}}, {_OWN})\n"


class Returns(Codemod):
    """Carry the return over a token that does not count, with a reward that is put there.

    Before::

        def returns_of(rewards, response_mask, gamma):
            returns, running = torch.zeros_like(rewards), 0
            for t in reversed(range(rewards.shape[1])):
                running = rewards[:, t] + gamma * running
                returns[:, t] = running
                running = running * response_mask[:, t]
            return returns

    After::

        def returns_of(rewards, response_mask, gamma):
            returns, running = torch.zeros_like(rewards), 0
            for t in reversed(range(rewards.shape[1])):
                # unhang reinforce-turn-returns: at a token that does not count, nothing is discounted or lost
                carried = rewards[:, t] + running

                running = rewards[:, t] + gamma * running
                returns[:, t] = running
                running = running * response_mask[:, t]
                # unhang reinforce-turn-returns: as above
                running = torch.where(response_mask[:, t].bool(), running, carried)
            return returns

    The product stays: it makes the return as precise as the mask, if rewards are less. Upstream's own fix, which adds
    ``running * (1 - response_mask[:, t])`` to it, gets the same rows.
    """

    def plan(self, function: Function) -> list[Edit]:
        refuse_own(function, [_OWN])
        rows = assignments(function)
        sums = [(row, new, found) for row, new, value in rows if (found := _SUM.fullmatch(expression(value)))]
        first, new, found = once(sums, "... = REWARDS[:, ...] + ... * RETURN")
        rewards, at, name = found.groups()
        mask = f"{_MASK}{at}"
        ends = f"{new} * {mask}", f"{new} * {mask} + {name} * (1 - {mask})"
        resets = [row for row, target, value in rows if target == name and expression(value) in ends]
        last = once(resets, f"RETURN = RETURN * {mask}, or the like")
        return [
            span(first, first, preceded_by(_CARRIED.format(rewards, name))),
            span(last, last, followed_by(_KEPT.format(name, mask))),
        ]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset({"torch"})


CODEMODS = {"compute_reinforce_plus_plus_outcome_advantage": Returns()}
