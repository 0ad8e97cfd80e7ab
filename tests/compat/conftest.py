"""A package index on this machine, for the tests of compat/."""

from collections.abc import Iterator

import pytest

from support import fake_index, fake_scenes
from support.fake_clone import UPSTREAMS
from support.fake_index import AFFECTED, CLEAN, ENGINE, MPU, PARALLEL, FakeIndex
from unhang.compat import index, upstreams
from unhang.compat.sweep import as_written, clones, sources, trees


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeIndex]:
    """An empty index, which unhang asks instead of the real one. What its wheels have is judged by its text."""
    pytest.importorskip("pypi_simple")
    with fake_index.serving(FakeIndex()) as served:
        monkeypatch.setenv("UNHANG_INDEX", served.url)
        monkeypatch.setattr(index, "_RETRIES", 0)
        monkeypatch.setattr(trees, "run", fake_scenes.run)
        yield served


@pytest.fixture
def fake(served: FakeIndex, monkeypatch: pytest.MonkeyPatch) -> FakeIndex:
    """An index with one release of each upstream; the sweep sees no real list and no clone."""
    monkeypatch.setattr(upstreams, "projects", lambda: UPSTREAMS)
    monkeypatch.setattr(as_written, "pulls", list)
    rows: list[dict[str, str]] = []
    monkeypatch.setattr(sources, "decisions", lambda: rows)
    for variable in (*clones.variables().values(), "UNHANG_WHEELS"):
        monkeypatch.delenv(variable, raising=False)
    served.add("megatron-core", "0.17.0", {PARALLEL: AFFECTED})
    served.add("verl", "0.7.0", {ENGINE: CLEAN})
    served.add("ms-swift", "4.0.0", {MPU: "pass\n"})
    return served
