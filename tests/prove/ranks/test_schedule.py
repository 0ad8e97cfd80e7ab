"""What the checker says of made-up jobs, against real ranks; recording by several processes. They need torch."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from support.jobs import checked, completing, missing, needs_torch
from support.programs import PROGRAMS
from unhang.prove.ranks import gloo, schedule


@needs_torch
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_answer_for_a_program(name: str) -> None:
    one = PROGRAMS[name]
    for backend in "gloo", "nccl":
        found = schedule.check(one.world, lambda _: None, one.job, backend=backend, declared=one.declared, deadline_s=1)
        expected = (backend == "nccl" and one.on_nccl) or one.checked
        assert (backend, found.status) == (backend, expected), found.text()


@needs_torch
@pytest.mark.parametrize("name", PROGRAMS)
def test_real_ranks_agree_with_the_table(name: str) -> None:
    one = PROGRAMS[name]
    world = gloo.run(one.world, one.job, deadline_s=1)
    assert world.status == one.real, world.text()


def test_nothing_that_hangs_is_passed_and_nothing_that_passes_is_hung() -> None:
    assert len(PROGRAMS) >= 49
    assert not [name for name, one in PROGRAMS.items() if {one.real, one.checked} == {"hung", "passed"}]


@needs_torch
def test_32_ranks_take_less_than_half_a_second_of_processor_time() -> None:
    assert min(_computing_s(lambda: checked(completing, 32)) for _ in range(3)) < 0.5


def _computing_s(run: Callable[[], object]) -> float:
    """Return the processor time of this process and its children, which does not depend on other load."""
    begun = os.times()
    run()
    return sum(now - then for now, then in zip(os.times()[:4], begun[:4]))


@needs_torch
def test_several_processes_record_all_ranks() -> None:
    found = checked(missing, 70)
    assert sorted(found.programs) == list(range(70))
    assert found.findings[0].absent == tuple((rank, "ended without it") for rank in range(1, 70))
