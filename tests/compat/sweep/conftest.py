"""Made-up releases and lists for the tests of the sweep."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import gates, histories
from support.fake_clone import UPSTREAMS
from support.fake_index import AFFECTED, CLEAN, ENGINE, MPU, PARALLEL, FakeIndex
from support.gates import GATE, PAUSE
from support.histories import History
from unhang.compat import upstreams
from unhang.compat.sweep import clones, sources
from unhang.shapes import catalog


@pytest.fixture
def fake(served: FakeIndex, monkeypatch: pytest.MonkeyPatch) -> FakeIndex:
    """An index with one release of each upstream; the sweep sees no real list and no clone."""
    monkeypatch.setattr(upstreams, "load", lambda: {"upstreams": UPSTREAMS, "as-written": []})
    monkeypatch.setattr(sources, "load", {"decisions": [], "superseded": []}.__getitem__)
    for variable in (*clones.VARIABLES.values(), "UNHANG_WHEELS"):
        monkeypatch.delenv(variable, raising=False)
    served.add("megatron-core", "0.17.0", {PARALLEL: AFFECTED})
    served.add("verl", "0.7.0", {ENGINE: CLEAN})
    served.add("ms-swift", "4.0.0", {MPU: "pass\n"})
    return served


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> History:
    """An empty history; the made-up fixes are the ones that unhang knows."""
    gates.install(monkeypatch)
    monkeypatch.setattr(catalog, "fixes", lambda: {fix.id: fix for fix in (GATE, PAUSE)})
    monkeypatch.setattr(upstreams, "load", lambda: {"upstreams": {"verl": histories.ENTRY}, "as-written": []})
    for variable in clones.VARIABLES.values():
        monkeypatch.delenv(variable, raising=False)
    return History(tmp_path / "verl")
