"""Ranks that meet before they wait: what is found of a hang."""

from __future__ import annotations

from typing import Any

import pytest

from support.jobs import dist, needs_torch, tensor
from unhang.prove.ranks import gloo, meet

A, B, TWO = ("a", 0), ("b", 0), (0, 1)


def told(meeting: meet.Meeting, rank: int, *issued: Any, waits: Any = None) -> dict[int, str]:
    return {to: word for to, word, _ in meeting.told(rank, list(issued), waits)}


def test_an_operation_begins_once_its_whole_group_has_issued_it() -> None:
    meeting = meet.Meeting(3)
    assert told(meeting, 0, (A, TWO, "all"), waits=A) == {}
    assert told(meeting, 2) == {}
    assert told(meeting, 1, (A, TWO, "all"), waits=A) == {0: "go", 1: "go"}
    assert told(meeting, 0) == {}
    assert told(meeting, 1) == {0: "end", 1: "end", 2: "end"}


def test_ranks_are_stuck_only_once_all_wait_or_are_done() -> None:
    meeting = meet.Meeting(3)
    assert told(meeting, 0, (A, TWO, "all"), waits=A) == {}
    assert told(meeting, 1) == {}
    assert told(meeting, 2, (B, (1, 2), "all"), waits=B) == {0: "stuck", 2: "stuck"}
    assert told(meeting, 0, (B, TWO, "all"), waits=B) == {0: "stuck"}, "nothing begins any more"
    assert told(meeting, 0) == {}
    assert told(meeting, 2) == {0: "end", 1: "end", 2: "end"}


def test_ranks_that_issue_other_sizes_are_told_so() -> None:
    meeting = meet.Meeting(2)
    told(meeting, 0, (A, TWO, "all 8"), waits=A)
    why = ", as all 8 and all 9"
    assert told(meeting, 1, (A, TWO, "all 9"), waits=A) == {0: f"stuck{why}", 1: f"stuck{why}"}


def test_a_rank_begins_what_a_peer_waits_for_while_it_waits_for_something_else() -> None:
    meeting = meet.Meeting(2)
    told(meeting, 0, (A, TWO, "all"), (B, TWO, "all"), waits=B)
    assert meeting.told(1, [(A, TWO, "all")], A) == [(0, "begin", [A]), (1, "go", [A])]


def hung_then_right(rank: int, pipes: Any) -> tuple[list[str], float]:
    gate, ends = meet.Gate(pipes[rank]), []
    pair = dist().new_group([0, 1])

    def alone() -> None:
        if rank == 0:
            dist().all_reduce(tensor(), group=pair)

    def sizes() -> None:
        dist().all_reduce(tensor() if rank else tensor().repeat(2))

    def scattered() -> None:
        if rank == 0:
            dist().reduce_scatter_tensor(tensor().repeat(1), tensor().repeat(2))

    def gathered() -> None:
        if rank == 0:
            dist().all_gather_into_tensor(tensor().repeat(2), tensor().repeat(1))

    def exchanged() -> None:
        if rank == 0:
            dist().all_to_all_single(tensor().repeat(2), tensor().repeat(2))

    def later() -> None:
        work = dist().all_reduce(tensor(), async_op=True)
        dist().barrier(group=pair)
        work.wait()

    def freed() -> None:  # as FSDP does: a second wait writes to memory that is gone
        part = tensor().repeat(1)
        with dist()._coalescing_manager():
            dist().reduce_scatter_tensor(part, tensor().repeat(2))
        part.untyped_storage().resize_(0)

    for body in (alone, sizes, scattered, gathered, exchanged, later, freed):
        ends.append(gloo.ended(body).state)
        gate.end()
    total = tensor()
    dist().all_reduce(total)
    return ends, float(total)


@needs_torch
@pytest.mark.filterwarnings("ignore")  # torch has new names for some
def test_a_group_is_as_good_as_new_after_a_hang() -> None:
    with meet.Meetings(2) as pipes:
        world = gloo.run(2, lambda rank: hung_then_right(rank, pipes))
    assert world.text() == ""
    assert [rank.value[0] for rank in world.ranks] == [
        ["alive", "alive", "alive", "alive", "alive", "done", "done"],
        ["done", "alive", "done", "done", "done", "done", "done"],
    ]
    assert len({rank.value[1] for rank in world.ranks}) == 1
