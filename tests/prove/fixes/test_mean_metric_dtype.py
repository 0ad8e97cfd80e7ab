"""mean-metric-dtype's proof: a user's job, what each rank should reduce and return. Runs no torch."""

from __future__ import annotations

import pytest

from unhang.prove.fixes import mean_metric_dtype as proof

_SEQ_2, _TOKEN_2, _ALL_2, _NONE_2 = (
    next(case for case in proof.CASES if case.name == name)
    for name in ("seq-2", "token-2", "seq-2-all-update", "no-update-2")
)
_FLOAT = ("torch.float32",)


def test_some_ranks_update_the_metric_and_others_do_not() -> None:
    updates = [[proof._updates(case, rank) for rank in (0, 1)] for case in (_SEQ_2, _ALL_2, _NONE_2)]
    assert updates == [[True, False], [True, True], [False, False]]


@pytest.mark.parametrize(
    ("second", "wrong"),
    [
        (proof.Seen(_FLOAT, 0.5, 2.0), ""),
        (proof.Seen(("torch.float64",), 0.5, 2.0), "rank 1 reduces torch.float64, and rank 0 torch.float32"),
        (proof.Seen((), 0.5, 2.0), "rank 1 reduces nothing, and rank 0 torch.float32"),
        (proof.Seen(_FLOAT, 0.75, 2.0), "rank 1 returns 0.75, then 2.0; the mean is 0.5"),
        (proof.Seen(_FLOAT, 0.5, 3.0), "rank 1 returns 0.5, then 3.0; the mean is 0.5"),
    ],
)
def test_every_rank_reduces_one_dtype_and_returns_the_mean(second: proof.Seen, wrong: str) -> None:
    assert proof._wrong(_SEQ_2, [proof.Seen(_FLOAT, 0.5, 2.0), second]) == wrong


def test_the_mean_depends_on_the_strategy() -> None:
    assert not proof._wrong(_TOKEN_2, [proof.Seen(_FLOAT, 0.875, 1.0)])
    assert not proof._wrong(_NONE_2, [proof.Seen(_FLOAT, None, 1.0)])
    assert proof._wrong(_TOKEN_2, [proof.Seen(_FLOAT, 0.5, 1.0)]) == "rank 0 returns 0.5, then 1.0; the mean is 0.875"


def test_a_rank_that_reduces_twice_is_wrong() -> None:
    twice = proof.Seen(_FLOAT * 2, 0.5, 1.0)
    assert proof._wrong(_SEQ_2, [twice]).startswith("rank 0 reduces torch.float32, torch.float32")
