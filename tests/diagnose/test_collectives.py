"""Where ranks have come apart."""

from __future__ import annotations

import pytest

from support.hung_jobs import issued, job, rank
from unhang.diagnose import collectives, pairs
from unhang.diagnose.evidence import Group, Job, Operation, Rank

WORLD = Group("0", "default_pg", (0, 1, 2, 3))
PAIR = Group("4", "TENSOR_MODEL_PARALLEL_GROUP", (0, 1))
UNLISTED, OTHER = Group("5", "DATA_PARALLEL_GROUP"), Group("6", "DATA_PARALLEL_GROUP")


def waits(group: Group = WORLD, number: int = 3, kind: str = "all_reduce", size: int = 2) -> Operation:
    return issued(group, number, kind, size)


def past(group: Group = WORLD, number: int = 2, size: int = 2) -> Operation:
    return issued(group, number, "all_reduce", size, done=True)


# By name: the ranks, and of each meeting its number, who waits, who is absent, and whether it is open.
MEETINGS: dict[str, tuple[Job, list[object]]] = {
    "all wait": (job([rank(waits())] * 4), [(3, (0, 1, 2, 3), (), False)]),
    "one is behind": (job([rank(waits()), *[rank(past())] * 3]), [(3, (0,), (1, 2, 3), False)]),
    "one has no dump": (job([rank(waits()), rank(waits()), rank(waits()), None]), [(3, (0, 1, 2), (), True)]),
    "one is past it": (job([rank(past(number=3), waits(number=4)), *[rank(waits())] * 3]), [(3, (1, 2, 3), (), False)]),
    "one is past it, and it is gone": (job([rank(past(number=5)), *[rank(waits())] * 3]), [(3, (1, 2, 3), (), True)]),
    "two groups": (
        job([rank(waits(PAIR)), rank(past(PAIR), waits()), rank(waits()), rank(waits())]),
        [(3, (1, 2, 3), (0,), False), (3, (0,), (1,), False)],
    ),
    "they differ before they wait": (
        job([rank(past(number=2, size=1), waits()), rank(past(number=2, size=9)), rank(waits()), rank(waits())]),
        [(2, (), (), True), (3, (0, 2, 3), (1,), False)],
    ),
    "one is done, so all have come": (
        job([rank(waits(UNLISTED)), *[rank(past(UNLISTED, 3))] * 2])._replace(size=None),
        [(3, (0,), (), False)],
    ),
    "nobody waits": (job([rank(past())] * 4), []),
    "members that no dump lists": (
        job([rank(waits(UNLISTED)), rank(past(OTHER)), rank(waits(UNLISTED)), rank()]),
        [(3, (0, 2), (3,), False)],
    ),
    "members that no dump lists, all waiting": (
        job([rank(waits(UNLISTED)), rank(waits(OTHER)), rank(waits(WORLD)), rank(waits(WORLD))]),
        [(3, (2, 3), (0, 1), False), (3, (0,), (2, 3), False), (3, (1,), (2, 3), False)],
    ),
    "members that no dump lists, of a group in a log": (
        job([rank(waits(OTHER), recorded=False), rank(past(WORLD))]),
        [(3, (0,), (), True)],
    ),
    "no group in a log": (job([rank(waits(Group("", ""), number=9), recorded=False)]), [(9, (0,), (), True)]),
}


@pytest.mark.parametrize("name", MEETINGS)
def test_who_meets_in_a_collective(name: str) -> None:
    whole, wanted = MEETINGS[name]
    found = [(one.sequence, one.waiting, one.absent, one.is_open) for one in collectives.meetings(whole)]
    assert sorted(found, key=repr) == sorted(wanted, key=repr)


@pytest.mark.parametrize(
    ("one", "other", "wanted"),
    [
        (waits(), waits(), set()),
        (waits(), waits(kind="broadcast"), {"operation"}),
        (waits(), waits(size=3), {"size"}),
        (waits(), waits()._replace(dtypes=("Double",)), {"dtype"}),
        (waits(), waits(size=3)._replace(dtypes=("Double",)), {"size", "dtype"}),
        (waits(kind="all_to_all"), waits(kind="all_to_all", size=3), set()),
        (waits()._replace(inputs=None, elements=2), waits(size=3), {"size"}),
        (waits()._replace(inputs=None, elements=None), waits(size=3), set()),
        (waits()._replace(kind=""), waits(), set()),
    ],
)
def test_what_must_be_equal_in_one_collective(one: Operation, other: Operation, wanted: set[str]) -> None:
    assert collectives.differences([one, other]) == wanted


def graph(ranks: list[Rank]) -> dict[int, set[int]]:
    whole = job(ranks)
    return collectives.waits_for(whole, collectives.meetings(whole), pairs.ends(whole))


def test_who_waits_for_whom() -> None:
    # 0 waits for 1, which waits for 2 and 3 elsewhere: these are at work
    found = graph([rank(waits(PAIR)), rank(past(PAIR), waits()), rank(past()), rank(past())])
    assert found == {0: {1}, 1: {0, 2, 3}}
    found = graph([rank(past(PAIR), waits()), rank(past(PAIR), waits()), rank(past()), rank(waits())])
    assert found == {0: {2}, 1: {2}, 3: {2}}


def test_a_stage_waits_for_the_one_before_it() -> None:
    receive = [waits(kind="recv")._replace(peer=number - 1) for number in range(4)]
    assert graph([rank(waits(kind="barrier")), *(rank(one) for one in receive[1:])])[1] == {0}
    assert graph([rank(waits(kind="send")._replace(peer=1)), rank(receive[1]), rank(), rank()]) == {}
    found = graph([rank(waits(kind="recv")._replace(peer=1)), rank(receive[1]), rank(), rank()])
    assert found == {0: {1}, 1: {0}}
    assert graph([rank(waits(kind="send")), rank(waits(kind="send")), rank(), rank()]) == {}  # to whom, a log hides


def test_a_rank_far_off_does_not_fill_the_memory() -> None:
    whole = job([rank(waits())])
    assert len(collectives.everybody(whole._replace(ranks={9_999_999: whole.ranks[0]}, size=None))) == (1 << 17) + 1


def test_what_gloo_tells_late_is_done() -> None:
    whole = job([rank(waits(number=2), waits(number=4), past(number=3), waits(PAIR, number=1))] * 2)
    settled = collectives.settled(whole)
    assert [(one.group, one.sequence) for one in settled.ranks[0].waiting] == [(WORLD, 4), (PAIR, 1)]


def test_what_a_source_does_not_say_of_an_operation_may_be_anything() -> None:
    told = [issued(WORLD, 3, "all_reduce", 2, dtype=dtype)._replace(rank=at) for at, dtype in enumerate(("Float",) * 2)]
    logged = issued(WORLD, 3, "all_reduce")._replace(rank=2, inputs=None, dtypes=None, elements=2)
    assert collectives.sides([*told, logged]) == [(0, 1, 2)]
    double = told[0]._replace(rank=3, dtypes=("Double",))
    assert collectives.sides([*told, logged, double]) == [(0, 1), (3,)]  # it may be on both
    assert collectives.sides([*told, logged._replace(elements=9)]) == [(0, 1), (2,)]
