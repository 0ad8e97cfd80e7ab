"""Where modules have the functions of torch. It needs torch."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from support.jobs import checked, dist, needs_torch, tensor


def by_another_name(rank: int) -> None:
    if rank == 0:
        sys.modules["made_up_upstream"].reduce_it(tensor())


@needs_torch
def test_a_function_is_recorded_under_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    upstream = ModuleType("made_up_upstream")
    vars(upstream)["reduce_it"] = dist().all_reduce
    monkeypatch.setitem(sys.modules, upstream.__name__, upstream)
    first = checked(by_another_name).findings[0]
    assert first.kind == "missing"
    assert "in by_another_name" in first.text()
