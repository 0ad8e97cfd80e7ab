"""What the tests of overlays share."""

from pathlib import Path

import pytest

from support import overlays


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with megatron.core, to import and to make an overlay of."""
    return overlays.install(tmp_path / "site")


@pytest.fixture
def overlay(site: Path, tmp_path: Path) -> Path:
    overlays.make(tmp_path / "overlay", site)
    return tmp_path / "overlay"
