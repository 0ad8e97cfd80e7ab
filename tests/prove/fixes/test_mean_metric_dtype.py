"""mean-metric-dtype's scene: a user's job, what each rank should reduce and return. Runs no torch."""

from __future__ import annotations

import pytest

from unhang.prove.cases import Topology
from unhang.prove.fixes import mean_metric_dtype as proof

_CASES = {case.name: case for case in proof.CASES}
_FLOAT, _DOUBLE = (("torch.float32", "cpu"),), (("torch.float64", "cpu"),)
_FINE = proof.Seen(_FLOAT, 0.5, (1, 2), 2)


def test_some_ranks_update_the_metric_and_others_do_not() -> None:
    chosen = (_CASES[name] for name in ("seq-2", "seq-2-all-update", "no-update-2"))
    updates = [[proof._updates(case, rank) for rank in (0, 1)] for case in chosen]
    assert updates == [[True, False], [True, True], [False, False]]
    pairs = next(case for case in proof.GRID if case.topology == Topology(dp=4) and case.options["updates"] == "last")
    assert [proof._updates(pairs, rank) for rank in range(4)] == [False, True, False, True]


@pytest.mark.parametrize(
    ("second", "wrong"),
    [
        (_FINE, ""),
        (_FINE._replace(reduced=_DOUBLE), "rank 1 reduces torch.float64 on cpu, and rank 0 torch.float32 on cpu"),
        (_FINE._replace(reduced=()), "rank 1 reduces nothing, and rank 0 torch.float32 on cpu"),
        (_FINE._replace(reduced=_FLOAT * 2), "rank 1 reduces torch.float32 on cpu, torch.float32 on cpu, and rank 0"),
        (_FINE._replace(value=0.75), "rank 1 returns 0.75, then 2; the mean is 0.5"),
        (_FINE._replace(state=(2, 4)), "rank 1 returns 0.5, then 2; the mean is 0.5"),
        (_FINE._replace(after=3), "rank 1 returns 0.5, then 3; the mean is 0.5"),
    ],
)
def test_every_rank_reduces_one_dtype_and_returns_the_mean(second: proof.Seen, wrong: str) -> None:
    found = proof.wrong(_CASES["seq-2"], [_FINE, second])
    assert found.startswith(wrong)
    assert bool(found) == bool(wrong)


def test_a_job_without_a_group_reduces_nothing_and_a_device_without_float64_no_double() -> None:
    case = _CASES["seq-1"]
    alone = _FINE._replace(reduced=(), after=1)
    assert not proof.wrong(case._replace(options={**case.options, "place": "no group"}), [alone])
    strict = case._replace(options={**case.options, "place": "no float64"})
    assert not proof.wrong(strict, [alone._replace(reduced=_FLOAT)])
    assert "float64" in proof.wrong(strict, [alone._replace(reduced=_DOUBLE)])
