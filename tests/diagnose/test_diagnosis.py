"""A diagnosis says who, then where all ranks are, and last what that code is."""

from __future__ import annotations

from support import fixes, needed
from support.hung_jobs import C10D, failing, issued, job, rank
from unhang.diagnose import diagnosis
from unhang.diagnose.evidence import Group

WORLD = Group("0", "default_pg", (0, 1, 2, 3))
STEP = "job/train.py::step"
MTP = next(hung.job for hung in fixes.of_each("HANGS")["mtp-cp-deadlock"])


def test_each_rank_is_in_one_place_and_the_most_come_first() -> None:
    waits = issued(WORLD, 3, "all_reduce", 2, at=(C10D, STEP))
    failed = rank(lines=failing("ValueError: no", STEP), recorded=False)
    found = diagnosis.diagnose(job([failed, rank(waits), rank(waits), rank(at=("job/data.py::read",))]))
    assert [*found.who.why] == [0]
    assert [(place.ranks, place.doing) for place in found.places] == [
        ((1, 2), "waiting in all_reduce 3 of default_pg, [2] Float"),
        ((0,), "failing"),
        ((3,), "in read"),
    ]


def test_an_answer_has_the_ranks_that_wait_in_the_function_alone() -> None:
    (answer,) = needed.answers(MTP)
    assert [place.ranks for place in answer.places] == [(0, 2)]
    assert (answer.answer, answer.before, answer.question) == ("known", (), "")


def test_where_one_fix_is_known_those_that_something_else_explains_are_left_out() -> None:
    mixed = {**needed.NEEDED, "infer-metric-rank0": ()}
    whole = next(hung.job for hung in fixes.of_each("HANGS")["infer-metric-rank0"] if hung.name == "stacks")
    both, known = (
        needed.words(diagnosis.answers(diagnosis.diagnose(whole), needed.SIGNATURES, needed.Lines(), stands))
        for stands in ({}, mixed)
    )
    assert both == {"infer-metric-rank0": "possible", "mean-metric-dtype": "possible"}
    assert known == {"mean-metric-dtype": "known"}
