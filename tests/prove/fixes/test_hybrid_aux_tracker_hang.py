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


_NAMES, _GIVEN = {"global_load_balancing_loss", "hybrid_layer_pattern"}, {"force_initialize", "mtp_num_layers"}
_MAIN = {"parse_hybrid_pattern", "mtp_use_repeated_layer"}
_REPEATED = {"mtp": 2, "repeated": True}


@pytest.mark.parametrize(
    ("options", "of_today", "of_old", "of_main"),
    [
        ({}, 3, 3, 3),
        ({"mtp": 1}, 5, 4, 4),
        ({"mtp": 1, "depth": "*-"}, 4, 4, 3),
        (_REPEATED, 7, 5, 4),
        ({**_REPEATED, "pattern": ""}, 8, 8, 7),
        ({"mtp": 1, "pattern": "", "frequency": [1, 0] * 4}, 5, 5, 4),
    ],
)
def test_the_layers_that_upstream_counts(options: dict[str, object], of_today: int, of_old: int, of_main: int) -> None:
    case = CASES["pp3"]._replace(options=options)
    for names, count in (_NAMES, of_today), (_NAMES - {"hybrid_layer_pattern"}, of_old), (_NAMES | _MAIN, of_main):
        assert proof._count(proof._known(case, names, _GIVEN)) == count
    assert not proof._known(case, (), {"force_initialize"}).options["mtp"]


def test_every_rank_logs_the_mean_of_what_was_recorded() -> None:
    mean = {"load_balancing_loss": 1.0, "z_loss": 2.0}
    last = [proof.Seen({loss: 6 * it for loss, it in mean.items()}, [mean], 3)] * 2
    ranks = [[proof.Seen(dict.fromkeys(mean, 0.0), [mean], 3)] * 2] * 2
    assert not proof.wrong(CASES["pp3"], [*ranks, last])
    other = [last[0], last[0]._replace(logged=[mean, {**mean, "z_loss": 1.0}])]
    assert proof.wrong(CASES["pp3"], [*ranks, other]) == "rank 2 logs z_loss 1.0, but the mean is 2.0"
    assert proof.wrong(CASES["pp3"]._replace(options={"z_loss": None}), [*ranks, other]) == ""
