"""Recording by one process or several, and its cost. They need torch."""

from __future__ import annotations

import os
from collections.abc import Callable

from support.jobs import checked, completing, missing, needs_torch


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
