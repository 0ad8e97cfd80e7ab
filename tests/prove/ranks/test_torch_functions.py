"""A function of torch, replaced wherever it is held. They need torch."""

from __future__ import annotations

import functools

import pytest

from support.jobs import Job, checked, dist, needs_torch, tensor


def _jobs() -> list[Job]:
    """Return jobs that hold functions which decorators of torch wrap, and functions that none wraps."""
    kept, send = functools.partial(dist().all_reduce), {"send": dist().isend}
    holder = type("Holder", (), {"reduce": staticmethod(dist().reduce)})

    def default(rank: int, barrier: Job = dist().barrier) -> None:  # noqa: B008
        rank or barrier()

    return [
        lambda rank: rank or kept(tensor()),
        lambda rank: rank or holder.reduce(tensor(), 0),
        lambda rank: rank or send["send"](tensor(), 1).wait(),
        default,
    ]


@needs_torch
@pytest.mark.parametrize("number", range(4))
def test_a_function_is_recorded_wherever_it_is_held(number: int) -> None:
    (finding,) = checked(_jobs()[number]).findings
    assert finding.kind == "missing"
    assert "test_torch_functions.py:" in finding.text()
