"""hybrid-aux-tracker-hang's proof: which layers have routers, and what is wrong with what ranks log. Runs no torch."""

from __future__ import annotations

import pytest

from unhang.prove.fixes import hybrid_aux_tracker_hang as proof
from unhang.prove.ranks import routers

CASES = {case.name: case for case in proof.CASES}


def test_the_case_of_a_users_job_supposes_what_the_others_have() -> None:
    assert "no MoE layer on the first stage" in proof.caveat(proof.YOURS)
    assert not proof.caveat(CASES["pp3"])


@pytest.mark.parametrize(
    ("name", "layers", "pattern"),
    [
        ("pp3", [[], [4], [6, 8]], "M*ME*EME"),
        ("pp3-mtp", [[], [4], [6, 8, 9]], "M*ME*EME/*E"),
        ("pp3-experts-on-all-stages", [[2], [4], [5, 7]], "ME*EEMEM"),
        ("pp3-not-hybrid", [[], [3, 4], [5, 6, 7, 8]], None),
        ("pp3-not-hybrid-mtp", [[], [3, 4], [5, 6, 7, 8, 9]], None),
    ],
)
def test_the_layers_with_experts(name: str, layers: list[list[int]], pattern: str | None) -> None:
    case = CASES[name]
    assert [routers.numbers(proof._experts(case), case.options.get("mtp"), 3, stage) for stage in range(3)] == layers
    args = proof._arguments(case)
    assert args.hybrid_layer_pattern == pattern
    assert args.moe_layer_freq == (1 if pattern else [0, 0, 1, 1, 1, 1, 1, 1])
    assert not args.anything_else


MEAN = {"load_balancing_loss": 1.0, "z_loss": 2.0}


@pytest.mark.parametrize(("name", "count"), [("pp3", 3), ("pp3-mtp", 5), ("pp3-not-hybrid-mtp", 7)])
def test_every_rank_logs_the_mean_of_what_was_recorded(name: str, count: int) -> None:
    recorded = {loss: 2 * count * mean for loss, mean in MEAN.items()}
    right = [proof.Seen(recorded, MEAN)] * 2
    ranks = [[proof.Seen(dict.fromkeys(MEAN, 0.0), MEAN)] * 2] * 2
    assert not proof._wrong(CASES[name], [*ranks, right])
    other = [right[0], right[0]._replace(logged={**MEAN, "z_loss": 1.0})]
    assert proof._wrong(CASES[name], [*ranks, other]).startswith("rank 2 logs z_loss 1.0, but the mean is 2.0")
