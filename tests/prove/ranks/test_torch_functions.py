"""Where modules have the functions of torch. It needs torch."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from support.jobs import checked, dist, needs_torch, tensor


@needs_torch
def test_a_function_is_recorded_under_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    upstream = ModuleType("made_up_upstream")
    vars(upstream)["reduce_it"] = dist().all_reduce
    monkeypatch.setitem(sys.modules, upstream.__name__, upstream)
    (finding,) = checked(lambda rank: rank or upstream.reduce_it(tensor())).findings
    assert finding.kind == "missing"
    assert "test_torch_functions.py:" in finding.text()
