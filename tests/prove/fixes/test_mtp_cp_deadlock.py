"""mtp-cp-deadlock's proof: the case of a user's job, and what is wrong with what the ranks did. Runs no torch."""

from __future__ import annotations

import pytest

from unhang.prove.cases import HUNG, PASSED, Case, Topology
from unhang.prove.fixes import mtp_cp_deadlock as proof


def test_the_case_of_a_users_job() -> None:
    small, large = Topology(cp=2), Topology(tp=2, pp=8, dp=64)
    assert proof.case_for(small, "verl", ()) == Case("yours", small, HUNG, "reduce_loss_in_tracker")
    assert proof.case_for(large, "verl", ()) == Case("yours", Topology(tp=2, pp=3, dp=2), PASSED)
    virtual = Topology(pp=2, cp=2, vpp=3)
    assert proof.case_for(virtual, "verl", ()).options == {"chunks": 3}


OWN = {"pg_loss": [0.5, 0.5]}
LOSSES = [1.0, 2.0]
MEAN = {"mtp_losses/mtp_1_loss": [6.0]}
CASES = {case.name: case for case in proof.CASES}


def right(joins: tuple[int, ...] = (4, 5, 6, 7)) -> list[proof.Seen]:
    """Return 8 ranks at TP 2 x PP 2 x DP 2: the last stage is rank 4 to 7, and of these 4 and 6 report."""
    last = [proof.Seen((2,) if rank in joins else (), OWN, LOSSES) for rank in (4, 5, 6, 7)]
    last[::2] = [one._replace(metrics={**OWN, **MEAN}) for one in last[::2]]
    return [proof.Seen((), {}, [])] * 4 + last


def wrong_at_first(case: Case, seen: list[proof.Seen]) -> str:
    """Return what is wrong with the first of the two calls."""
    return proof._wrong(case, 0, seen)


def but(rank: int, one: proof.Seen) -> list[proof.Seen]:
    seen = right()
    seen[rank] = one
    return seen


@pytest.mark.parametrize(
    ("rank", "one", "why"),
    [
        (6, proof.Seen((2,), OWN, LOSSES), "rank 6 is a source rank, but reports"),
        (5, proof.Seen((2,), {**OWN, **MEAN}, LOSSES), "rank 5 is no source rank, but reports"),
        (
            4,
            proof.Seen((2,), {**OWN, "mtp_losses/mtp_1_loss": [5.0]}, LOSSES),
            "rank 4 reports [5.0], but the mean is 6.0",
        ),
        (4, proof.Seen((2,), {"pg_loss": [0.5], **MEAN}, LOSSES), "rank 4 loses the metrics of its own loss"),
        (4, proof.Seen((4,), {**OWN, **MEAN}, LOSSES), "rank 4 of 8 joins 1 reductions, of [4] micro-batches"),
        (6, proof.Seen((), {**OWN, **MEAN}, LOSSES), "rank 6 of 8 joins 0 reductions"),
        (0, proof.Seen((2,), {}, LOSSES), "rank 0 of 8 joins 1 reductions"),
    ],
)
def test_the_last_stage_joins_and_only_source_ranks_report_the_mean(rank: int, one: proof.Seen, why: str) -> None:
    case = CASES["tp2-pp2-dp2"]
    assert not wrong_at_first(case, right())
    assert wrong_at_first(case, but(rank, one)).startswith(why)


def test_without_context_parallelism_the_source_ranks_may_join_alone() -> None:
    assert not wrong_at_first(CASES["tp2-pp2-dp2"], right(joins=(4, 6)))
    needs_all = CASES["tp2-pp2-dp2"]._replace(untouched=HUNG)
    assert wrong_at_first(needs_all, right(joins=(4, 6))).startswith("rank 5 of 8 joins 0 reductions")


def test_without_multi_token_prediction_nobody_joins() -> None:
    off = CASES["mtp-off"]
    plain = [proof.Seen((), {}, [])] * 4 + [proof.Seen((), OWN, LOSSES)] * 4
    assert not wrong_at_first(off, plain)
    plain[4] = proof.Seen((2,), OWN, LOSSES)
    assert wrong_at_first(off, plain).startswith("rank 4 of 8 joins 1 reductions")
