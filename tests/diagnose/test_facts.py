"""What all files come to, once: counts that compare, who waits for whom, whose errors are their own."""

from __future__ import annotations

from support.hung_jobs import issued, job, rank
from unhang.diagnose import facts
from unhang.diagnose.evidence import Count, Group, Message

WORLD = Group("0", "default_pg", (0, 1, 2))
STAGE = Group("5", "PIPELINE_MODEL_PARALLEL_GROUP", (0, 1, 2))
CALL = "torch/distributed/distributed_c10d.py::all_reduce"
WAITS = issued(WORLD, 3, "all_reduce", 2)
FAILED = [Message("ValueError: no", "log:9")]


def test_counts_are_compared_only_where_all_ranks_count_alike() -> None:
    counts = {"0": Count(3, 2), "5": Count(9, 8), "7": Count(4, 4, shared=False)}
    found = facts.of(job([rank(issued(STAGE, 9, "send", 2))._replace(counts=counts), rank()._replace(counts=counts)]))
    assert found.counts == {"0": {0: Count(3, 2), 1: Count(3, 2)}}


def test_an_error_is_a_rank_s_own_unless_it_went_on() -> None:
    ranks = [rank(WAITS), rank(lines=FAILED), rank(at=(CALL,), lines=FAILED)]
    found = facts.of(job(ranks))
    assert [*found.errors] == [1]
    assert found.waits_for == {0: frozenset({1, 2})}
    assert [bool(call) for call in found.calls.values()] == [True]


def test_an_error_that_nobody_caught_is_newer_than_a_stack() -> None:
    uncaught = [one._replace(uncaught=True) for one in FAILED]
    assert [*facts.of(job([rank(WAITS), rank(at=(CALL,), lines=uncaught)])).errors] == [1]


def test_a_job_is_over_where_logs_tell_its_end_and_no_stack_shows_it_alive() -> None:
    assert facts.of(job([rank(WAITS, recorded=False)])).is_over
    assert not facts.of(job([rank(WAITS)])).is_over
    assert not facts.of(job([rank(at=(CALL,), lines=FAILED)])).is_over


def test_who_is_missing_is_of_the_group_that_waits() -> None:
    assert facts.of(job([rank(WAITS), None, rank()], size=9)).unseen == {1}
