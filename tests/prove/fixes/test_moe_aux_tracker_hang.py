"""moe-aux-tracker-hang's proof: which layers have routers, and what is wrong with what ranks log. Runs no torch."""

from __future__ import annotations

from typing import Any

import pytest

from unhang.prove.cases import Topology
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
    assert [routers.numbers(proof._experts(case), proof._mtp(case), 3, stage) for stage in range(3)] == layers
    assert proof._experts(case) == frequencies


_MEAN = {"load_balancing_loss": 1.0, "z_loss": 1.0}
_LAYERS = {f"moe/{name}_layer_{at}": 1.0 * at for name in _MEAN for at in range(2)}
RIGHT = proof.Seen([0, 1], {}, {**_MEAN, **_LAYERS}, {}, {**_MEAN, "load_balancing_loss": 2.0}, left=False, devices=[])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, ""),
        ({"total": _MEAN}, "rank 1 adds load_balancing_loss 1.0, but the mean is 2.0"),
        ({"logged": _MEAN}, "rank 1 logs moe/load_balancing_loss_layer_0 None, but the mean is 0.0"),
        ({"logged": {**_MEAN, **_LAYERS, "z_loss": 2.0}}, "rank 1 logs z_loss 2.0, but the mean is 1.0"),
        ({"devices": ["cuda", "cpu"]}, "rank 1 makes an entry on ['cuda', 'cpu']"),
        ({"left": True}, "rank 1 has a value left in the tracker"),
    ],
)
def test_every_rank_logs_the_mean_of_what_was_recorded(change: dict[str, Any], why: str) -> None:
    case = proof.CASES[0]._replace(topology=Topology(pp=2), options={"mtp": None})
    recorded = RIGHT._replace(recorded={name: [0.0, 2.0] for name in _MEAN})
    found = proof.wrong(case, [[recorded], [RIGHT._replace(**change)]])
    assert found == why
