"""Works, and coalesced operations. Some tests need torch."""

from __future__ import annotations

from typing import Any

import pytest

from support.jobs import checked, dist, needs_torch, tensor
from unhang.prove.ranks import schedule
from unhang.prove.ranks.async_work import Work
from unhang.prove.ranks.operations import Unjudged


def test_only_the_first_wait_is_recorded() -> None:
    waits: list[int] = []
    work = Work(lambda: waits.append(1))
    assert work.wait()
    assert work.is_completed()
    assert waits == [1]


def test_what_follows_from_a_work_otherwise_is_not_judged() -> None:
    with pytest.raises(Unjudged, match="get_future"):
        Work(lambda: None).get_future()
    assert not hasattr(Work(lambda: None), "__len__")


@needs_torch
def test_a_wait_for_what_the_preparation_issued_is_not_recorded() -> None:
    works: list[Any] = []

    def prepare(rank: int) -> None:
        works[:] = [dist().all_reduce(tensor(), async_op=True)]

    def job(rank: int) -> None:
        works[0].wait()
        dist().barrier()

    found = schedule.check(2, prepare, job)
    assert [[type(step).__name__ for step in steps] for steps in found.programs.values()] == [["Operation"]] * 2
    assert found.findings == []


def coalesced(rank: int, crossed_group: int = 0) -> None:
    groups = [dist().new_group([0, 1]) for _ in range(3)]
    with dist()._coalescing_manager(groups[crossed_group]):
        for group in groups[:2] if rank == 0 else groups[1::-1]:
            dist().all_reduce(tensor(), group=group)


def coalesced_elsewhere(rank: int) -> None:
    coalesced(rank, 2)


def coalesced_and_waited_for(rank: int) -> None:
    with dist()._coalescing_manager(async_ops=True) as together:
        if rank == 0:
            dist().all_reduce(tensor())
    together.wait()


@needs_torch
def test_coalesced_operations_are_issued_as_one() -> None:
    assert checked(coalesced).findings == []


@needs_torch
def test_operations_on_another_group_are_not_coalesced() -> None:
    first = checked(coalesced_elsewhere).findings[0]
    assert first.kind == "deadlock"
    assert "waits in all_reduce on group 0, 1" in first.text()


@needs_torch
def test_coalesced_operations_are_waited_for() -> None:
    first = checked(coalesced_and_waited_for).findings[0]
    assert first.kind == "missing"
    assert "rank 1 ended without it" in first.text()
