"""reinforce-turn-returns: its anchors, and what the sessions need of it."""

from __future__ import annotations

from functools import partial

from fuzz.subject import Fuzz
from mutants.by_hand import ByHand, Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources

FIX = "reinforce-turn-returns"
BEFORE, SINCE = ("0.4.0", "0.4.1", "0.5.0", "0.8.0"), ("0.9.0", "0.9.1")
CASES = sources.cases(FIX, {"verl": [*BEFORE, *SINCE]})
_RESET, _PASSED = "running_return * response_mask[:, t]", "running_return * (1 - response_mask[:, t])"
_EDITED = [
    ("0.8.0", "gamma * running_return", "running_return", r"not found: \.\.\. = REWARDS"),
    ("0.8.0", "token_level_rewards[:, t] +", "rewards +", r"not found: \.\.\. = REWARDS"),
    ("0.8.0", f"= {_RESET}", f"= {_RESET} * 1", "not found: RETURN"),
    ("0.8.0", f"= {_RESET}", "= running_return * not_done[:, t]", "not found: RETURN"),
    ("0.8.0", f"= {_RESET}", "= running_return * (1 - done[:, t])", "not found: RETURN"),
    ("0.8.0", f"= {_RESET}", f"= {_RESET}; running_return = {_RESET}", "found 2 times, expected once: RETURN"),
    ("0.9.1", f"+ {_PASSED}", "+ running_return * (1 - done[:, t])", "not found: RETURN"),
    ("0.9.1", "new_running_return = token", "carried = new_running_return = token", "carried, which is ours"),
]
REFUSED = [edit for version, *row in _EDITED for edit in sources.edits(sources.case(FIX, version), [row])]

# -- for the sessions -------------------------------------------------------------------------------------------------

_carried = partial(Sub, "token_level_rewards[:, t] + running_return")
_WHERE = "torch.where(response_mask[:, t].bool(), running_return, carried)"
_where = partial(Sub, _WHERE)
BY_HAND: ByHand = {
    "without its reward": _carried("0 + running_return"),
    "without the return": _carried("token_level_rewards[:, t] + 0"),
    "discounted": _carried("token_level_rewards[:, t] + gamma * running_return"),
    "its reward discounted": _carried("gamma * token_level_rewards[:, t] + running_return"),
    "in single precision": _carried("(token_level_rewards[:, t] + running_return).float()"),
    "the other way": _where("torch.where(response_mask[:, t].bool(), carried, running_return)"),
    "always carried": _where("carried"),
    "never carried": _where("running_return"),
    "carried if any token counts": _where("torch.where(response_mask[:, t].bool().any(), running_return, carried)"),
    "the mask of the token before": _where("torch.where(response_mask[:, t - 1].bool(), running_return, carried)"),
    "not in the last column": _carried("token_level_rewards[:, t] * (t + 1 < returns.shape[1]) + running_return"),
    "as precise as a reward": _where(f"{_WHERE}.to(token_level_rewards.dtype)"),
}
MUTANTS = [Mutants("verl", ("0.4.0", "0.8.0", "0.9.1"), BY_HAND)]
_RELEASES = [Release(version, core=version == "0.8.0") for version in (*BEFORE, "0.7.1", *SINCE)]
_HALF = Other(without(r"carried = (\w+)", r"carried = 0 * \g<1>"), ("last-turn-of-a-tool",))
PROOFS = [Proofs("verl", _RELEASES, {"half: without the reward": _HALF})]
FUZZ = Fuzz(CASES, 2, "running_return|response_mask|token_level_rewards|gamma", examples=40)
