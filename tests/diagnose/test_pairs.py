"""Sends and receives: which meet, whom a rank waits for first, and who did otherwise than its like."""

from __future__ import annotations

from collections.abc import Callable
from cProfile import Profile

import pytest

from support.hung_jobs import issued, job, rank
from unhang.diagnose import facts, pairs, who
from unhang.diagnose.evidence import Group, Job, Move, Operation, Rank

RING = Group("8", "CONTEXT_PARALLEL_GROUP", (0, 1, 2, 3))
BEGIN = Move("", "", 0, done=True)


def end(kind: str, peer: int, size: int = 4, batch: int = 3, *, begun: bool = False) -> Operation:
    return issued(RING, batch, kind, size)._replace(peer=peer, begun=begun)


def ring(number: int, *batches: int, sizes: int = 4, waits: bool = True) -> Rank:
    """Return a rank of a ring that sends to the next and receives from the one before, the last batch not done."""
    after, before = (number + 1) % 4, (number - 1) % 4
    moves = [BEGIN]
    for batch in batches:
        done = batch < batches[-1] or not waits
        moves.append(Move("8", "send", after, done, 2 * batch - 1))
        moves.append(Move("8", "recv", before, done, 2 * batch))
    last = [end("send", after, sizes, batches[-1]), end("recv", before, sizes, batches[-1])] if waits else []
    return rank(*last)._replace(moves=tuple(moves))


def test_the_kth_send_meets_the_kth_receive() -> None:
    whole = job([rank(end("send", 1), end("send", 1, 5)), rank(end("recv", 0), end("recv", 2)), rank(), None])
    met = (whole.ranks[1].waiting[0], False)
    assert [one and (one.operation, one.lacks) for one in pairs.ends(whole)[0]] == [met, (None, True)]
    assert [one and one.lacks for one in pairs.ends(whole)[1]] == [False, True]


def test_what_the_other_rank_has_done_lacks_nowhere() -> None:
    """In a ring without the third rank, whose batch is older, the fourth has done what the first waits in."""
    whole = job([ring(0, 1, 2), ring(1, 1, 2), ring(2, 1, 2), ring(3, 1, 2, 3)])
    met = (whole.ranks[1].waiting[1], False)
    assert [one and (one.operation, one.done) for one in pairs.ends(whole)[0]] == [met, (None, True)]
    assert pairs.heads(whole, pairs.ends(whole))[0].begun


def test_without_a_common_past_nothing_is_known_of_what_is_done() -> None:
    whole = job([ring(0, 7)._replace(moves=()), ring(1, 7)])
    assert [one and one.is_known for one in pairs.ends(whole)[0]] == [False, True]


@pytest.mark.parametrize(
    ("edges", "found"),
    [
        ({0: {1}, 1: set()}, [{1}]),
        ({0: {1}, 1: {2}, 2: {1}}, [{1, 2}]),
        ({0: {1}, 1: {0, 2}, 2: {3}}, [{3}]),
        ({0: {1}, 2: {3}, 3: {2}}, [{1}, {2, 3}]),
    ],
)
def test_whom_all_others_wait_for(edges: dict[int, set[int]], found: list[set[int]]) -> None:
    assert sorted(map(sorted, pairs.sinks(edges))) == sorted(map(sorted, found))


def test_a_collective_waits_for_nobody_who_is_past_it() -> None:
    whole = job([rank(issued(RING, 4, "broadcast", 2)), *[rank(issued(RING, 3, "broadcast", 2))] * 3])
    own = pairs.heads(whole, pairs.ends(whole))
    assert {number: (set(missing), set(met)) for number, (missing, met) in pairs.meet(whole, own).items()} == {
        0: ({1, 2, 3}, {0}),
        **{number: (set(), {1, 2, 3}) for number in (1, 2, 3)},
    }


def test_the_end_with_another_size_than_most_is_named() -> None:
    found = who.of(facts.of(job([ring(0, 1, 2), ring(1, 1, 2, sizes=9), ring(2, 1, 2), ring(3, 1, 2)])))
    assert (found.rule, [*found.why]) == ("disagrees", [1])
    assert found.why[1] == "in CONTEXT_PARALLEL_GROUP, rank 0 sends 4 Float, and rank 1 receives 9 Float"


AT_ALL = rank(issued(Group("0", "default_pg", (0, 1, 2, 3)), 3, "all_reduce", 2))


@pytest.mark.parametrize(
    ("ranks", "rule", "named"),
    [
        # two ends differ, and nothing tells them apart
        ([rank(end("send", 1, 4)), rank(end("recv", 0, 5)), rank(), rank()], "disagrees", [0, 1]),
        # of two that have come, one has not begun
        (
            [rank(end("send", 1, begun=True)), rank(end("recv", 0)), *[rank(issued(RING, 9, "all_reduce", 2))] * 2],
            "together", [1],
        ),
        # as of dumps of active operations alone: one has left out an exchange, and is in a collective
        ([AT_ALL, rank(end("send", 2)), AT_ALL, rank(end("recv", 2))], "disagrees", [2]),
    ],
)  # fmt: skip
def test_whom_sends_and_receives_make_suspect(ranks: list[Rank], rule: str, named: list[int]) -> None:
    found = who.of(facts.of(job(ranks)))
    assert (found.rule, [*found.why]) == (rule, named)


def test_a_rank_that_left_out_a_batch_is_not_like_the_others() -> None:
    """It has come to the collective after fewer of them."""
    gone_on = issued(RING, 1, "all_reduce", 2)
    here = ring(2, 1, 2, 3, waits=False)
    rest = [ring(number, 1, 2, 3, 4) for number in (0, 1, 3)]
    left_out = here._replace(waiting=(gone_on,), moves=(*here.moves, Move("8", "", 1, done=False)))
    others = [
        one._replace(waiting=(gone_on,), moves=(*one.moves, Move("8", "", 1, done=False))) if number == 0 else one
        for number, one in enumerate(rest)
    ]
    whole = job([others[0], others[1], left_out, others[2]])
    own = pairs.heads(whole, pairs.ends(whole))
    assert pairs.unlike(whole, own, dict.fromkeys(range(4), RING.description)) == {2: 3}
    assert [*who.of(facts.of(whole)).why] == [2]


def pipelines(many: int) -> Job:
    """Return a job of pipelines of four stages, of which one rank left no file: the others wait for it, one by one."""
    hop = many // 4
    world = Group("0", "default_pg", tuple(range(many)))
    groups = [Group(str(9 + at), "PIPELINE_MODEL_PARALLEL_GROUP", tuple(range(at, many, hop))) for at in range(hop)]
    ranks: list[Rank | None] = []
    for number in range(many):
        own, before = groups[number % hop], number - hop
        past = [Move(own.name, "recv", abs(before), True, at) for at in range(1, 9)]
        first = issued(world, 3, "all_reduce", 2)
        if before >= 0:
            first = issued(own, 9, "recv", 2)._replace(peer=before)
        ranks.append(rank(first)._replace(moves=(Move("0", "", 2, True), *past)))
    return job([None, *ranks[1:]])


def wide(many: int) -> Job:
    """Return a job in which each rank waits in a batch of sends to and receives from all others; one has none."""
    ends = [end(kind, peer) for peer in range(many) for kind in ("send", "recv")]
    return job([rank(*(one for one in ends if number and one.peer != number)) for number in range(many)])


@pytest.mark.parametrize(("made", "ranks", "most"), [(pipelines, 64, 6), (wide, 8, 24)])
def test_what_it_costs_does_not_grow_faster_than_what_there_is_to_read(
    made: Callable[[int], Job], ranks: int, most: float
) -> None:
    """In calls of functions, for four times as many ranks; each of them may have four times as many operations."""
    calls = []
    for many in (ranks, 4 * ranks):
        whole, profile = made(many), Profile()
        profile.runcall(lambda whole: who.of(facts.of(whole)), whole)
        calls.append(sum(one.callcount for one in profile.getstats()))
    assert calls[1] < most * calls[0]
