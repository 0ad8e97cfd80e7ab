"""mtp-cp-deadlock's proof: the case of a user's job, and which metrics are wrong. Runs no torch."""

from __future__ import annotations

from unhang.prove.cases import HUNG, PASSED, Case, Topology
from unhang.prove.fixes import mtp_cp_deadlock as proof


def test_the_case_of_a_users_job() -> None:
    small, large = Topology(cp=2), Topology(tp=2, pp=2, dp=64)
    assert proof.case_for(small, "verl", ()) == Case("yours", small, "ranks", HUNG, "reduce_loss_in_tracker")
    assert proof.case_for(large, "verl", ()) == Case("yours", large, "schedule", PASSED)


def test_only_source_ranks_report_the_mean() -> None:
    case = next(case for case in proof.CASES if case.name == "tp2-pp2-dp2")
    right: list[dict[str, float] | None] = [None] * 8
    for rank in 4, 6:  # of the last stage, whose ranks are 4 to 7; these two are one group
        right[rank] = {"mtp_losses/mtp_1_loss": 6.0}
    assert not proof._wrong_metrics(case, right)
    assert proof._wrong_metrics(case, [*right[:6], None, None]) == "rank 6 is a source rank, but reports None"
    assert proof._wrong_metrics(case, [right[4], *right[1:]]).startswith("rank 0 is no source rank, but reports")
    wrong = [*right[:4], {"mtp_losses/mtp_1_loss": 5.0}, *right[5:]]
    assert proof._wrong_metrics(case, wrong).endswith("but the mean is 6.0")
