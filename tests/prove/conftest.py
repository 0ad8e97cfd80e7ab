"""Installed upstreams, and an interpreter that is never started."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from support import cli
from support.asked import Asked, Results
from unhang.cli.main import main
from unhang.prove import host


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """What the interpreter is asked; every proof ends as it should."""
    stand_in = Asked()
    monkeypatch.setattr(host, "ask", stand_in)
    return stand_in


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with verl 0.7.1 and megatron-core 0.16.1."""
    return cli.unpack(tmp_path / "site", ("verl", "0.7.1"), ("megatron-core", "0.16.1"))


@pytest.fixture
def prove(capsys: pytest.CaptureFixture[str]) -> Results:
    """Run ``unhang prove`` on a folder with our own interpreter; gives the exit code and the JSON results."""

    def run(site: Path, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
        capsys.readouterr()
        where = ("--target", str(site), "--python", sys.executable, "--output-format", "json")
        code = main(["prove", *where, *arguments])
        return code, json.loads(capsys.readouterr().out)["results"]

    return run
