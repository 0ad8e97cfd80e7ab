"""verl: the returns and advantages of its real REINFORCE++, beside sums over the rewards that follow each token.

The modules around it are stand-ins. A response is written as the lengths of its turns: tokens that count, and in
between tokens of a tool, or such that rejection sampling has taken out.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

from ..cases import DIFFERS, PASSED, Case, Topology
from ..ranks.around import Around, Filled

if TYPE_CHECKING:
    from collections.abc import Sequence

WARM = ("torch", "tensordict", "transformers")
_ALGORITHMS = "verl.trainer.ppo.core_algos"
_WHERE = "the returns where a token counts are"
_BATCHES = {
    "one turn": ((5,), (7,), (50,), (8,)),
    "several turns": ((2, 2, 3), (1, 1, 1, 1, 1), (3, 4, 1), (4,)),
    "begins with a gap": ((0, 1, 4), (0, 2, 2, 1, 1), (6,), (0, 3, 3)),
    "ends with a gap": ((2, 1), (4, 3), (1, 2, 2, 2), (7,)),
    "nothing of a row counts": ((5,), (0, 6), (3,), (8,)),
}
_SCORES = (1.0, -0.5, 2.0, 0.25)
_RIGHT = ("one turn", "nothing of a row counts")


def _case(name: str, batch: str, core: bool = False, **options: Any) -> Case:
    """Return a case; whether several turns are wrong depends on the release."""
    may = {"may_pass": True} if batch in ("several turns", "begins with a gap") else {}
    ends = (PASSED, "") if batch in _RIGHT else (DIFFERS, _WHERE)
    return Case(name, Topology(), *ends, {"batch": batch, **may, **options}, core)


_COARSE = _case("one-turn-bfloat16", "one turn", gamma=0.999, mask="float32", dtype="bfloat16")
CASES = (
    _case("several-turns", "several turns", core=True),
    _case("several-turns-discounted", "several turns", gamma=0.5, core=True),
    _case("several-turns-kl", "several turns", kl="where it counts"),
    _case("last-turn-of-a-tool", "ends with a gap", core=True),
    _case("last-turn-of-a-tool-discounted", "ends with a gap", gamma=0.5),
    _case("one-turn", "one turn", core=True),
    _COARSE,
    _case("rejected-row", "nothing of a row counts"),
    _case("rewards-on-padding", "one turn", padding=1.0)._replace(patched=DIFFERS),
)
GRID = [_COARSE]
GRID += [
    _case(f"{batch}, gamma {gamma}, KL {kl}, {mask}, {dtype}", batch, gamma=gamma, kl=kl, mask=mask, dtype=dtype)
    for batch, gamma, kl in itertools.product(_BATCHES, (1.0, 0.5), ("nowhere", "where it counts", "everywhere"))
    for mask, dtype in (("int64", "float32"), ("float32", "float32"), ("int64", "float64"))
]
YOURS = _case("yours", "ends with a gap")


def caveat(case: Case) -> str:
    """Return what the case leaves open."""
    return "responses of the proof's own, which end with a tool's answer: yours may not"


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of such a job sets."""
    batch, is_struck = case.options["batch"], case.options["batch"] not in _RIGHT
    return {
        **{"version verl": "0.8.0", "adv_estimator": "reinforce_plus_plus"},
        "tokens within a response that do not count (of a tool, rejected)": is_struck,
        "a reward on a token that does not count, after one that does": is_struck
        and (batch == "ends with a gap" or case.options.get("kl") == "everywhere"),
        "a reward manager of your own puts rewards on padding": "padding" in case.options,
    }


def prepare() -> None:
    """Import the real modules among stand-ins."""
    sys.meta_path.insert(0, Around("verl", (_ALGORITHMS, "verl.utils.torch_functional"), Filled))
    module: Any = importlib.import_module(_ALGORITHMS)
    module.ADV_ESTIMATOR_REGISTRY = MagicMock()  # it takes no second function of a name


def on_rank(case: Case, rank: int) -> tuple[Any, Any]:
    """Return the returns where a token counts (elsewhere releases differ, and nothing reads them), and advantages."""
    estimate = importlib.import_module(_ALGORITHMS).compute_reinforce_plus_plus_outcome_advantage
    (rewards, mask), gamma = _batch(case), case.options.get("gamma", 1.0)
    by_name = "gamma" in inspect.signature(estimate).parameters  # up to 0.4.0
    more = {"gamma": gamma} if by_name else {"config": SimpleNamespace(gamma=gamma), "index": None}
    advantages, returns = estimate(token_level_rewards=rewards, response_mask=mask, **more)
    return returns * mask, advantages


def wrong(case: Case, ranks: Sequence[tuple[Any, Any]]) -> str:
    """Return what is wrong with returns and advantages; empty where nothing is."""
    (found,), due, (rewards, mask) = ranks, _due(case), _batch(case)
    near = {"bfloat16": (1e-2, 1e-1), "float64": (1e-12, 1e-4)}.get(str(rewards.dtype)[6:], (1e-5, 1e-4))
    for one, other, by in zip(found, due, near):  # whitening adds 1e-8
        apart = (one - other).abs().max(1).values
        if one.dtype != (rewards * mask).dtype or not apart.max() < by:
            row = int((~(apart < by)).int().argmax())  # the first that is wrong
            return f"{_WHERE} {_text(case, found[0], row)}; right: {_text(case, due[0], row)}"
    return ""


def right(case: Case, ranks: Sequence[tuple[Any, Any]]) -> str:
    """Return what was seen."""
    return f"{_WHERE} {_text(case, ranks[0][0], 0)}, as they should be"


def _text(case: Case, returns: Any, row: int) -> str:
    """Return the returns of a response, token by token."""
    values, counts = returns[row].tolist(), _batch(case)[1][row].tolist()
    return "[" + ", ".join(f"{value:.2f}" for value, is_one in zip(values, counts) if is_one) + "]"


def _batch(case: Case) -> tuple[Any, Any]:
    """Return the rewards and the mask; the score of a response is at its last token, whether that counts or not."""
    import torch

    options, rows = case.options, _BATCHES[case.options["batch"]]
    width = max(map(sum, rows)) + (options.get("mask") != "float32")  # no padding with a float32 mask
    rewards = torch.zeros(len(rows), width, dtype=getattr(torch, options.get("dtype", "float32")))
    mask = torch.zeros(len(rows), width, dtype=getattr(torch, options.get("mask", "int64")))
    for row, turns in enumerate(rows):
        ends = [0, *itertools.accumulate(turns)]
        for start, end in [*itertools.pairwise(ends)][::2]:
            mask[row, start:end] = 1
        kl = {"nowhere": 0, "everywhere": 1}.get(options.get("kl", "nowhere"), mask[row, : ends[-1]])
        rewards[row, : ends[-1]] = -0.1 * (1 + torch.arange(ends[-1]) % 3) * kl
        rewards[row, ends[-1] - 1] += _SCORES[row]
        rewards[row, ends[-1] :] = options.get("padding", 0)
    return rewards, mask


def _due(case: Case) -> tuple[Any, Any]:
    """Return, for each token that counts, the sum of the rewards from there on: each discounted as often as there are
    tokens that count from that one up to the reward's. The advantages are these less their mean, over their deviation.
    """
    import torch

    rewards, mask = (it.tolist() for it in _batch(case._replace(options={**case.options, "padding": 0})))
    returns, advantages = (torch.zeros(len(mask), len(mask[0]), dtype=torch.float64) for _ in range(2))
    counts = [(row, at) for row, each in enumerate(mask) for at, is_one in enumerate(each) if is_one]
    gamma = case.options.get("gamma", 1.0)
    for row, at in counts:
        pairs = [*zip(mask[row], rewards[row])][at:]
        passed = itertools.accumulate((int(is_one) for is_one, _ in pairs), initial=0)
        returns[row, at] = sum(gamma**number * reward for number, (_, reward) in zip(passed, pairs))
    values = torch.stack([returns[place] for place in counts])
    for place in counts:
        advantages[place] = (returns[place] - values.mean()) / values.std()
    return returns, advantages
