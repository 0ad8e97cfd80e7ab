"""Works; coalesced operations are in test_recorder. One test needs torch."""

from __future__ import annotations

from typing import Any

import pytest

from support.jobs import dist, needs_torch, tensor
from unhang.prove.ranks import schedule
from unhang.prove.ranks.async_work import Work
from unhang.prove.ranks.operations import Unjudged


def test_only_the_first_wait_is_recorded_and_nothing_else_is_judged() -> None:
    waits: list[int] = []
    work = Work(lambda: waits.append(1))
    assert work.wait()
    assert work.is_completed()
    assert waits == [1]
    with pytest.raises(Unjudged, match="get_future"):
        work.get_future()
    assert not hasattr(work, "__len__")


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
