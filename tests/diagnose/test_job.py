"""What all files say of one rank comes together."""

from __future__ import annotations

import pytest

from unhang.diagnose.evidence import Count, Frame, Group, Message, Operation, Rank, Stack
from unhang.diagnose.job import Told, merged
from unhang.diagnose.recorder import Dump

WORLD = Group("0", "default_pg", (0, 1))


def waits(rank: int, group: Group = WORLD, number: int = 3, source: str = "") -> tuple[Operation, ...]:
    return (Operation(rank, group, number, "all_reduce", source=source),)


def dumped(rank: int, groups: tuple[Group, ...] = (WORLD,), newest: int = 1, **more: object) -> Dump:
    return Dump(Rank(rank, recorded=True, **more), groups, newest, "")  # type: ignore[arg-type]


def test_a_dump_stacks_and_lines_of_one_rank_are_one() -> None:
    stack, line = Stack("MainThread", (), True, "s"), Message("m", "l")
    job = merged(
        [
            Told("dump", (dumped(1, waiting=waits(1)),)),
            Told("log", parts=(Rank(0, waiting=waits(0, Group("", ""))), Rank(1, waiting=waits(1, number=9)))),
            Told("stacks_1", parts=(Rank(-1, stacks=(stack,)),), named=1),
            Told("log_1", parts=(Rank(1, messages=(line,)),)),
        ]
    )
    assert list(job.ranks) == [0, 1]
    assert job.ranks[1] == Rank(1, waits(1), (), (stack,), (line,), recorded=True, timed_out=True)
    assert job.ranks[0].waiting == waits(0, Group("", ""))
    assert not job.ranks[0].recorded
    assert (job.size, job.files, job.groups) == (2, 4, {"0": WORLD})


def test_lines_say_what_waits_where_a_dump_does_not() -> None:
    job = merged([Told("a", (dumped(1),)), Told("b", parts=(Rank(1, waiting=waits(1), last=waits(1, number=2)),))])
    assert job.ranks[1].waiting == waits(1)
    assert job.ranks[1].last == waits(1, number=2)
    assert job.ranks[1].recorded


FRAMED = (waits(1)[0]._replace(frames=(Frame("f", "x.py", 1),)),)


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (dumped(1, newest=5, waiting=waits(1)), dumped(1, newest=4)),
        (dumped(1, newest=5), dumped(1, newest=4, waiting=waits(1))),
        (dumped(1, waiting=FRAMED), dumped(1, waiting=waits(1))),
        (dumped(1), dumped(1, waiting=waits(1))._replace(broken="it breaks off")),
    ],
    ids=["newer", "newer and done", "frames", "whole"],
)
def test_the_best_dump_of_a_rank_counts(better: Dump, worse: Dump) -> None:
    for names in (["a", "b"], ["b", "a"]):
        job = merged([Told(names[0], (better,)), Told(names[1], (worse,))])
        assert job.ranks[1].waiting == better.rank.waiting
        left = [(one.file, one.why.partition(" ")[0], one.partly) for one in job.unread]
        assert left == [(names[1], names[0], False)]


def test_a_part_without_a_rank_is_asked_for() -> None:
    operation = waits(-1)
    nameless = Told("b", parts=(Rank(-1, messages=(Message("m", "l"),)), Rank(-1)))
    named = Told("c_2", parts=(Rank(-1, waiting=operation),), named=2)
    job = merged([Told("a", (dumped(-1),)), nameless, named])
    assert (job.unranked, job.strangers) == (("a", "b"), (Message("m", "l"),))
    assert [(number, one.waiting[0].rank) for number, one in job.ranks.items()] == [(2, 2)]


def test_groups_of_one_name_are_told_apart_by_their_members() -> None:
    """As split_group names them."""
    halves = (Group("7", "half", (0, 1)), Group("7", "half", (2, 3)))
    job = merged(
        Told(str(rank), (dumped(rank, (half,), waiting=waits(rank, half), counts={"7": Count(rank)}),))
        for rank, half in enumerate(half for half in halves for _ in range(2))
    )
    assert {name: group.members for name, group in job.groups.items()} == {"7/0": (0, 1), "7/2": (2, 3)}
    assert [one.waiting[0].group.name for one in job.ranks.values()] == ["7/0", "7/0", "7/2", "7/2"]
    assert [list(one.counts) for one in job.ranks.values()] == [["7/0"], ["7/0"], ["7/2"], ["7/2"]]


def test_a_group_that_no_dump_lists_has_no_members() -> None:
    gloo = Group("3", "TENSOR_MODEL_PARALLEL_GROUP")
    job = merged([Told("a", (dumped(0, (), last=waits(0, gloo)),)), Told("b", why="it is empty")])
    assert job.groups == {"3": gloo}
    assert job.size is None
    assert job.files == 1
    assert [(one.file, one.partly) for one in job.unread] == [("b", False)]


def apart(job: object) -> list[str]:
    return [f"{one.file}: {one.why}" for one in job.unread]  # type: ignore[attr-defined]


HOUR = 3600 * 10**9


def test_dumps_of_another_job_or_time_are_told_apart_and_said() -> None:
    other = Group("0", "default_pg", (0, 1, 2, 3))
    world = Group("0", "default_pg", (0, 1, 2))
    dumps = [dumped(0, (world,), 90 * HOUR), dumped(1, (world,), 90 * HOUR), dumped(2, (world,), 50 * HOUR)]
    job = merged([Told(f"d{n}", (dump,)) for n, dump in enumerate([*dumps, dumped(3, (other,), 90 * HOUR)])])
    assert list(job.ranks) == [0, 1]
    assert [line.partition(":")[0] for line in apart(job)] == ["d3", "the dump of rank 2"]


@pytest.mark.parametrize("odd", [Count(12, 11), Count(5000, 4999)])
def test_a_dump_that_lacks_what_its_peers_have_done_or_the_other_way_is_of_another_time(odd: Count) -> None:
    usual = 12 if odd.enqueued > 12 else 5000
    counts, world = [Count(usual, usual - 1), Count(usual, usual - 2), odd], Group("0", "default_pg", (0, 1, 2))
    dumps = [dumped(n, (world,), newest=5 + n, counts={"0": count}) for n, count in enumerate(counts)]
    job = merged([Told(f"d{n}", (dump,)) for n, dump in enumerate(dumps)])
    assert (list(job.ranks), len(apart(job))) == ([0, 1], 1)


@pytest.mark.parametrize("other", [Group("7", "TENSOR", (2, 3)), Group("7", "PIPELINE", (1, 2))])
def test_dumps_of_jobs_of_one_size_are_told_apart_by_their_groups(other: Group) -> None:
    world, pair = Group("0", "default_pg", (0, 1, 2, 3)), Group("7", "TENSOR", (1, 2))
    groups = [(world,), (world, pair), (world, pair), (world, other)]
    job = merged(Told(f"d{rank}", (dumped(rank, each),)) for rank, each in enumerate(groups))
    assert list(job.ranks) == [0, 1, 2]
    assert "of another job: its groups have other members" in apart(job)[0]


def test_of_two_jobs_side_by_side_the_later_one_is_read_for_all_ranks() -> None:
    newest = {"a/0": 5, "a/1": 9, "b/0": 7, "b/1": 8}
    dumps = [Told(file, (dumped(int(file[2:]), newest=at),)) for file, at in newest.items()]
    assert [line.partition(":")[0] for line in apart(merged(dumps))] == ["b/0", "b/1"]


def test_of_the_stacks_of_two_jobs_those_with_most_ranks_are_read() -> None:
    def spied(file: str, rank: int) -> Told:
        return Told(file, parts=(Rank(-1, stacks=(Stack("MainThread", (), True, file),)),), named=rank)

    job = merged([spied("a/rank_0", 0), spied("b/rank_0", 0), spied("b/rank_1", 1), spied("c/rank_2", 2)])
    read = [stack.source for rank in job.ranks.values() for stack in rank.stacks]
    assert read == ["b/rank_0", "b/rank_1", "c/rank_2"]
    assert [one.file for one in job.unread] == ["a/rank_0"]


def test_what_nodes_have_seen_of_processes_counts_beside_their_stacks() -> None:
    """A rank that one has seen to run is not gone on another."""
    stacks = (Stack("MainThread", (), True, "s"),)
    gone = (Rank(0, process="running"), Rank(1, process="gone"), Rank(2, process="gone"))
    here = (Rank(1, process="running", cpu=0.5),)
    told = [Told("a/ranks.json", parts=gone), Told("b/ranks.json", parts=here)]
    job = merged([*told, Told("s", parts=(Rank(1, stacks=stacks),))])
    assert job.ranks == {1: Rank(1, stacks=stacks, cpu=0.5), 2: Rank(2, process="gone")}
    assert job.running == frozenset({0, 1})
