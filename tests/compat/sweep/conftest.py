"""Made-up histories for the tests of the sweep."""

from pathlib import Path

import pytest

from support import gates, histories
from support.gates import GATE, PAUSE
from support.histories import History
from unhang.compat import upstreams
from unhang.compat.sweep import clones
from unhang.shapes import catalog


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> History:
    """An empty history; the made-up fixes are the ones that unhang knows."""
    gates.install(monkeypatch)
    monkeypatch.setattr(catalog, "fixes", lambda: {fix.id: fix for fix in (GATE, PAUSE)})
    monkeypatch.setattr(upstreams, "projects", lambda: {"verl": histories.ENTRY})
    for variable in clones.variables().values():
        monkeypatch.delenv(variable, raising=False)
    return History(tmp_path / "verl")
