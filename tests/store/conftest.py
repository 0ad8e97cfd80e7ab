"""Fixtures for the store's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support import memory
from unhang.store import disk


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """A temporary folder that is fast to sync."""
    with memory.folder(tmp_path) as folder:
        yield folder


@pytest.fixture(autouse=True)
def _restore_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "run", disk.run)  # tests replace it
