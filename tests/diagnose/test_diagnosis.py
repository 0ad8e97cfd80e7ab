"""The answers of a diagnosis, and what they say of each rank."""

from __future__ import annotations

import pytest

from support.hung_jobs import issued, job, rank, without_frames
from unhang.diagnose import diagnosis, signature
from unhang.diagnose.answer import Answer, Place
from unhang.diagnose.evidence import Count, Group, Job, Message, Operation, Rank, Trail

WORLD = Group("0", "default_pg", (0, 1, 2, 3))
PIPELINE = Group("7", "PIPELINE_MODEL_PARALLEL_GROUP", (0, 1, 2, 3))
TRACKER = (
    "megatron/core/transformer/moe/moe_utils.py::reduce_aux_losses_tracker_across_ranks",
    "megatron/core/transformer/moe/moe_utils.py::track_moe_metrics",
)
CALL, STEP, READ = "torch/distributed/distributed_c10d.py::all_reduce", "job/train.py::step", "job/data.py::read"


def diagnosed(whole: Job) -> tuple[Answer, ...]:
    return diagnosis.diagnose(whole, signature.signatures()).answers


def waits(size: int = 2, number: int = 3, at: tuple[str, ...] = (STEP,)) -> Operation:
    return issued(WORLD, number, "all_reduce", size, at=at)


def past(number: int = 2) -> Operation:
    return issued(WORLD, number, "all_reduce", 2, done=True)


def watched(*numbers: int) -> Rank:
    """Return what a log says of a rank on which these operations timed out."""
    count = Count(max(numbers), completed=max(numbers) - 1, device=True)
    waiting = [waits(number=number, at=()) for number in numbers]
    return rank(*waiting, recorded=False)._replace(counts={WORLD.name: count})


def line(text: str) -> Message:
    return Message(text, "log:9")


MOVING = rank(at=(READ,), recorded=False)
MOVING = MOVING._replace(stacks=tuple(one._replace(moved=True) for one in MOVING.stacks))


def of_gloo(*operations: Operation) -> Rank:
    return rank(*operations)._replace(counts={"0": Count(4, device=False)})


GATHER = issued(WORLD, 4, "gather", 2)
AGREED = "all that is known of these agrees"
# By name: the job, then of each answer its kind and a part of what it says.
ANSWERS: dict[str, tuple[Job, list[tuple[str, str]]]] = {
    "other sizes": (
        job([rank(waits(9)), *[rank(waits())] * 3]),
        [("desync", "the size of collective 3 of default_pg")],
    ),
    "another kind": (
        job([rank(issued(WORLD, 3, "broadcast", 2)), *[rank(waits())] * 3]),
        [("desync", "the kind of collective 3")],
    ),
    "histories": (
        job(
            [
                rank(past(9))._replace(trails={"0": Trail(1, (5, 6, 7))}),
                rank()._replace(trails={"0": Trail(1, (5, 8, 7))}),
            ],
            size=2,
        ),
        [("desync", "different collectives as collective 2 of default_pg")],
    ),
    "one has a stack alone, and others wait in another group for it": (
        job(
            [
                *[rank(past(), issued(Group("9", "PAIRS", (2, 3)), 5, "all_to_all", 2))] * 3,
                rank(at=("job/data.py::read",), recorded=False),
                *[rank(waits())] * 2,
            ]
        ),
        [("slow", "have not come")],
    ),
    "a circle": (
        job([rank(waits()), *[rank(past(), issued(PIPELINE, 1, "all_reduce", 2))] * 3]),
        [("desync", "wait for each other")],
    ),
    "one is late": (
        job([rank(past(), at=(READ,)), *[rank(waits())] * 3]),
        [("slow", "have not come to the collective")],
    ),
    "one is late, in a call that no dump has": (
        job([rank(past(), at=(CALL, READ)), *[rank(waits())] * 3]),
        [("desync", "wait in different collectives")],
    ),
    "one failed": (
        job([rank(past(), lines=[line("ValueError: NaN")]), *[rank(waits(), lines=[line("watchdog: timeout")])] * 3]),
        [("desync", "A rank has failed")],
    ),
    "what a rank says follows": (
        job([rank(past(), lines=[line("Fatal Python error: Aborted")]), *[rank(waits())] * 3]),
        [("slow", "have not come")],
    ),
    "a line says that they disagree": (
        job([rank(lines=[line("[enforce fail] op.preamble.length <= op.nbytes. 36 vs 32")], recorded=False)]),
        [("desync", "A log says that ranks disagree")],
    ),
    "one has no file": (job([None, *[rank(waits())] * 3]), [("not-enough", "no dump")]),
    "all agree": (job([rank(waits())] * 4), [("not-enough", AGREED)]),
    "gloo: two are past a collective with a root": (
        job([*[of_gloo(GATHER)] * 2, *[of_gloo(GATHER._replace(done=True), issued(WORLD, 5, "barrier", 1))] * 2]),
        [("not-enough", "different roots in gather 4")],
    ),
    "gloo: two are past a collective that all have issued": (
        job([*[of_gloo(waits())] * 2, *[of_gloo(waits()._replace(done=True), issued(WORLD, 4, "barrier", 1))] * 2]),
        [("not-enough", "no file says which of these is wrong")],
    ),
    "nobody waits": (job([rank(past())] * 4), [("slow", "No rank waits")]),
    "stacks, one is elsewhere": (
        job([rank(at=(READ,), recorded=False), *[rank(at=(CALL, STEP), recorded=False)] * 3]),
        [("slow", "Some ranks are in no collective")],
    ),
    "stacks, none in a collective": (
        job([rank(at=(READ,), recorded=False)] * 4),
        [("slow", "No rank is in a collective")],
    ),
    "stacks of three of four, none in a collective": (
        job([rank(at=(READ,), recorded=False)] * 3, size=4),
        [("slow", "None of the 3 ranks that have stacks is in a collective")],
    ),
    "stacks of three of four, which move": (
        job([MOVING] * 3, size=4),
        [("slow", "None of the 3 ranks that have stacks is in a collective")],
    ),
    "stacks of three, which move": (job([MOVING] * 3), [("slow", "Every rank has moved")]),
    "stacks, two calls": (
        job([rank(at=(CALL, STEP), recorded=False), rank(at=(CALL, READ), recorded=False)]),
        [("desync", "different collectives")],
    ),
    "stacks of two of three, two calls": (
        job([rank(at=(CALL, STEP), recorded=False), rank(at=(CALL, READ), recorded=False)], size=3),
        [("not-enough", "one is late")],
    ),
    "two of three have come to one collective by two calls": (
        job([rank(waits(), at=(CALL, STEP)), rank(waits(at=(READ,)), at=(CALL, READ)), None]),
        [("not-enough", "no dump")],
    ),
    "all have come to one collective by two calls": (
        job([rank(waits(), at=(CALL, STEP)), *[rank(waits(at=(READ,)), at=(CALL, READ))] * 3]),
        [("not-enough", AGREED)],
    ),
    "watchdogs, one ahead of three": (
        job([watched(3, 4), *[watched(3)] * 3]),
        [("desync", "another call than its peers")],
    ),
    "stacks, one call": (job([rank(at=(CALL, STEP), recorded=False)] * 4), [("not-enough", "the same call")]),
    "stacks, one call that no dump has": (job([rank(at=(CALL, STEP))] * 4), [("not-enough", "no communicator yet")]),
    "a log of one rank": (
        job([rank(waits()._replace(group=Group("", "")), recorded=False)]),
        [("not-enough", "where ranks wait, and not what")],
    ),
    "no rank": (Job({}, {}, None, 1), [("not-enough", "No file says")]),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_the_answer_to_a_hang_that_is_no_fix(name: str) -> None:
    whole, wanted = ANSWERS[name]
    found = diagnosed(whole)
    assert [one.answer for one in found] == [kind for kind, _ in wanted]
    for one, (_, text) in zip(found, wanted):
        assert text in one.summary
        assert one.summary.endswith(".")
        assert (one.fix, one.missing != ()) == ("", one.answer == "not-enough" or (one.missing != ()))


RECEIVES = rank(past(), at=("torch/distributed/distributed_c10d.py::recv", STEP))
AT_ALL = rank(waits(), at=(CALL, STEP))


@pytest.mark.parametrize(
    ("whole", "missing"),
    [
        (job([rank(waits())] * 4), "stacks of all ranks, taken at one time"),
        (job([AT_ALL] * 3, size=4), "dumps and stacks of rank 3"),
        (job([AT_ALL] * 4), "dumps and stacks of all ranks once more, taken at one time"),
        (job([RECEIVES._replace(recorded=False)] * 4), "dumps of all ranks, taken at one time"),
        (
            job([RECEIVES._replace(counts={"0": Count(2, device=False)})] * 4),
            "with whom each rank sends or receives: no dump of gloo's has it",
        ),
    ],
)
def test_what_is_at_hand_is_not_asked_for(whole: Job, missing: str) -> None:
    assert diagnosed(whole)[0].missing == (missing,)


def test_where_stacks_lack_those_of_some_ranks_these_are_what_is_missing() -> None:
    (found,) = diagnosed(job([rank(at=(CALL, STEP), recorded=False)] * 2, size=4))
    assert found.summary == "All 2 ranks that have stacks wait in the same call, and nothing came from the others."
    assert found.missing == ("dumps and stacks of rank 2, 3",)


def test_a_known_fix_is_alone_with_its_places() -> None:
    sizes = [61, 62, 62, 62]
    (known,) = diagnosed(job([rank(issued(PIPELINE, 1, "all_reduce", size, at=TRACKER)) for size in sizes]))
    assert (known.answer, known.fix, known.missing) == ("known", "moe-aux-tracker-hang", ())
    assert known.places[0] == Place(
        (0,),
        "waiting in all_reduce 1 of PIPELINE_MODEL_PARALLEL_GROUP, [61] Float",
        (
            "dump: entry 1: reduce_aux_losses_tracker_across_ranks (megatron/core/transformer/moe/moe_utils.py:7)"
            " < track_moe_metrics (megatron/core/transformer/moe/moe_utils.py:7)",
        ),
    )
    assert (known.places[1].ranks, known.places[1].doing[-10:]) == ((1, 2, 3), "[62] Float")


def test_a_possible_fix_says_what_is_missing_and_where_the_ranks_have_come_apart() -> None:
    load = ("verl/utils/fsdp_utils.py::fsdp2_load_full_state_dict",)
    whole = job([rank(issued(WORLD, 9, "broadcast", size, at=load)) for size in (64, 32, 32, 32)])
    possible, desync = diagnosed(without_frames(whole))
    assert (possible.answer, possible.fix) == ("possible", "fsdp2-buffer-order")
    assert possible.missing == ("where in the source the ranks wait: py-spy, or dumps with frames",)
    assert (desync.answer, desync.fix) == ("desync", "")
    assert [one.ranks for one in desync.places] == [(0,), (1, 2, 3)]


def test_what_evidence_leaves_open_is_told_where_nothing_makes_it_certain() -> None:
    expert = Group("13", "EXPERT_DATA_PARALLEL_GROUP", (0, 1))
    possible, slow = diagnosed(job([rank(issued(expert, 1, "reduce_scatter", 64)), rank()]))
    assert (possible.fix, slow.answer) == ("expert-dp-warmup", "slow")
    assert possible.missing == ("whether GPU memory was nearly full: NCCL's stall leaves no trace",)


def test_a_large_job_tells_of_few_groups_and_few_lines() -> None:
    groups = [
        Group(str(100 + number), "TENSOR_MODEL_PARALLEL_GROUP", (2 * number, 2 * number + 1)) for number in range(32)
    ]
    ranks = [rank(issued(group, 4, "all_reduce", 2 + side, at=(STEP,))) for group in groups for side in (0, 1)]
    found = diagnosed(job(ranks))
    assert [one.answer for one in found] == ["desync"] * 3
    (late,) = diagnosed(job([rank(past(), at=(READ,)), *[rank(waits())] * 63])._replace(size=64))
    assert late.answer == "slow"
    assert [(len(one.ranks), len(one.evidence)) for one in late.places] == [(1, 1), (63, 1)]
