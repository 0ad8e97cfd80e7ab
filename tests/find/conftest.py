"""An empty environment for each test, and wheels of the stand-ins to install in it."""

from pathlib import Path

import pytest

from support import environments as make
from support.environments import Env, make_env


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Env:
    """Make an empty environment for the test alone."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return make_env(tmp_path / "env")


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build wheels of the stand-ins; return them by short names."""
    root = tmp_path_factory.mktemp("wheels")
    sources = {
        "core-0.16.1": make.project(make.core(root / "core"), "megatron-core", "0.16.1"),
        "mcore-0.17.0": make.project(make.tree(root / "mcore"), "megatron-core", "0.17.0"),
        "verl": make.project(make.verl(root / "verl"), "verl", "0.7.1"),
        "swift": make.project(make.swift(root / "swift"), "ms-swift", "4.6.0"),
    }
    return {name: make.build(source, root / "out" / name) for name, source in sources.items()}
