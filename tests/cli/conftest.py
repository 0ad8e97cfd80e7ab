"""Real releases for the tests of the commands."""

import shutil
from pathlib import Path

import pytest

from support import cli
from unhang.shapes import catalog


@pytest.fixture(autouse=True)
def _four_fixes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test the commands that run in this process with the same fixes as the others."""
    every = catalog.fixes()
    catalog.releases()  # it is kept for the process, and so for tests that need all fixes
    monkeypatch.setattr(catalog, "fixes", lambda: {name: every[name] for name in cli.FOUR})


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lay out the three releases of the README in one folder, which no test changes."""
    releases = (("megatron-core", "0.17.1"), ("verl", "0.7.1"), ("ms-swift", "4.6.0"))
    return cli.unpack_targets(tmp_path_factory.mktemp("pristine") / "site", *releases)


@pytest.fixture
def site(pristine: Path, tmp_path: Path) -> Path:
    """Copy them, so that the test can change them."""
    return Path(shutil.copytree(pristine, tmp_path / "site"))
