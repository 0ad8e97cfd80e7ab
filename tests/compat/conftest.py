"""A package index on this machine, for the tests of compat/."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support import fake_index
from support.fake_index import FakeIndex
from unhang.compat import index


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeIndex]:
    """An empty index, which unhang asks instead of the real one."""
    pytest.importorskip("pypi_simple")
    with fake_index.serving(FakeIndex()) as served:
        monkeypatch.setenv("UNHANG_INDEX", served.url)
        monkeypatch.setattr(index, "_RETRIES", 0)
        yield served
