"""mean-metric-dtype's scene: a user's job, what each rank should reduce and return. Runs no torch."""

from __future__ import annotations

import pytest

from unhang.prove.cases import Topology
from unhang.prove.fixes import mean_metric_dtype as proof

_CASES = {case.name: case for case in proof.CASES}
_FLOAT, _DOUBLE = "torch.float32 on cpu", "torch.float64 on cpu"
_FINE: proof.Seen = ([_FLOAT], [(0.5, 1, 2)], 2)


def test_some_ranks_update_the_metric_and_others_do_not() -> None:
    chosen = (_CASES[name] for name in ("seq-2", "seq-2-all-update", "no-update-2"))
    updates = [[proof._is_updated(proof._job(case), rank) for rank in (0, 1)] for case in chosen]
    assert updates == [[True, False], [True, True], [False, False]]
    pairs = next(case for case in proof.GRID if case.topology == Topology(dp=4) and case.options["updates"] == (1,))
    assert [proof._is_updated(proof._job(pairs), rank) for rank in range(4)] == [False, True, False, True]


@pytest.mark.parametrize(
    ("second", "wrong"),
    [
        (_FINE, ""),
        (([_DOUBLE], *_FINE[1:]), f"rank 1 reduces {[_DOUBLE]}, and rank 0 {[_FLOAT]}"),
        (([], *_FINE[1:]), f"rank 1 reduces [], and rank 0 {[_FLOAT]}"),
        (([_FLOAT, _FLOAT], *_FINE[1:]), f"rank 1 reduces {[_FLOAT, _FLOAT]}, and rank 0"),
        (([_FLOAT], [(0.75, 1, 2)], 2), "rank 1 returns [(0.75, 1, 2)], then 2; the means are [(0.5, 1, 2)]"),
        (([_FLOAT], [(0.5, 2, 4)], 2), "rank 1 returns [(0.5, 2, 4)], then 2; the means are [(0.5, 1, 2)]"),
        (([_FLOAT], [(0.5, 1, 2)], 3), "rank 1 returns [(0.5, 1, 2)], then 3; the means are [(0.5, 1, 2)]"),
    ],
)
def test_every_rank_reduces_one_dtype_and_returns_the_mean(second: proof.Seen, wrong: str) -> None:
    found = proof.wrong(_CASES["seq-2"], [_FINE, second])
    assert found.startswith(wrong)
    assert bool(found) == bool(wrong)


def test_a_second_window_has_a_mean_of_its_own() -> None:
    both = _CASES["seq-2"]._replace(options={**_CASES["seq-2"].options, "windows": 2})
    two = [_FLOAT, _FLOAT], [*_FINE[1], (2**-17, 2**-16 * 70_001, 140_002)], 2
    assert not proof.wrong(both, [two, two])
    assert proof.wrong(both, [_FINE, _FINE])  # the second reduces nothing


def test_a_job_without_a_group_reduces_nothing_and_a_device_without_float64_no_double() -> None:
    case = _CASES["seq-1"]
    alone: proof.Seen = ([], [(0.5, 1, 2)], 1)
    assert not proof.wrong(case._replace(options={**case.options, "place": "no group"}), [alone])
    strict = case._replace(options={**case.options, "place": "no float64"})
    assert not proof.wrong(strict, [([_FLOAT], *alone[1:])])
    assert "float64" in proof.wrong(strict, [([_DOUBLE], *alone[1:])])
