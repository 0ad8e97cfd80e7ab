"""moe-aux-tracker-hang's proof: which layers have routers, and what is wrong with what ranks log. Runs no torch."""

from __future__ import annotations

import pytest

from unhang.prove.fixes import moe_aux_tracker_hang as proof
from unhang.prove.ranks import routers

CASES = {case.name: case for case in proof.CASES}


def test_the_case_of_a_users_job_supposes_what_the_others_have() -> None:
    assert "no MoE layer on the first stage" in proof.caveat(proof.YOURS)
    assert not proof.caveat(CASES["pp3"])


@pytest.mark.parametrize(
    ("name", "layers", "frequencies"),
    [
        ("pp3", [[], [3, 4], [5, 6, 7, 8, 9]], [0, 0, 1, 1, 1, 1, 1, 1]),
        ("pp3-two-mtp-layers", [[], [3, 4], [5, 6, 7, 8, 9, 10]], [0, 0, 1, 1, 1, 1, 1, 1]),
        ("pp3-two-dense-stages", [[], [], [5, 6, 7, 8, 9]], [0, 0, 0, 0, 1, 1, 1, 1]),
        ("pp3-no-mtp", [[], [3, 4], [5, 6, 7, 8]], [0, 0, 1, 1, 1, 1, 1, 1]),
        ("pp3-moe-on-all-stages", [[1, 2], [3, 4], [5, 6, 7, 8, 9]], [1] * 8),
    ],
)
def test_the_layers_with_experts(name: str, layers: list[list[int]], frequencies: list[int]) -> None:
    case = CASES[name]
    assert [routers.numbers(proof._frequencies(case), proof._mtp(case), 3, stage) for stage in range(3)] == layers
    assert proof._frequencies(case) == frequencies


MEAN = {"load_balancing_loss": 1.0, "z_loss": 2.0}
RECORDED = {"load_balancing_loss": 7.0, "z_loss": 14.0}
RIGHT = proof.Seen(RECORDED, MEAN, MEAN, 18)


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (RIGHT, ""),
        (RIGHT._replace(total={}), "rank 2 logs {'load_balancing_loss': 1.0, 'z_loss': 2.0}, but adds {}"),
        (RIGHT._replace(per_layer=16), "rank 2 logs 16 values of layers"),
        (RIGHT._replace(recorded={**RECORDED, "z_loss": 15.0}), "rank 0 logs z_loss 2.0, but the mean is 2.07"),
    ],
)
def test_every_rank_logs_the_mean_of_what_was_recorded(seen: proof.Seen, why: str) -> None:
    empty = RIGHT._replace(recorded=dict.fromkeys(MEAN, 0.0))
    ranks = [[empty] * 2, [RIGHT] * 2, [RIGHT, seen]]
    assert proof._wrong(CASES["pp3"], ranks).startswith(why)
    assert bool(proof._wrong(CASES["pp3"], ranks)) is bool(why)
