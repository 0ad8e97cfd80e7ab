"""The made-up fixes of ``gates`` with conditions: ``pause`` harms a job without ``gate``, which harms some itself."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from support import gates
from unhang.job.strikes import Harm, Struck
from unhang.judge.findings import Finding, judge
from unhang.shapes import catalog
from unhang.shapes.catalog import Fix

WITH: Mapping[str, Any] = {"fix": "gate", "upstream": "verl", "releases": "<2.0", "why": "ranks wait for each other"}
LEAVE_OUT: Mapping[str, Any] = {"if": 'loss == "mean" and size > 1', "effect": "aborts", "why": "it divides by 0"}


def install(
    monkeypatch: pytest.MonkeyPatch, beside: Mapping[str, Any] = WITH, leave_out: Mapping[str, Any] = LEAVE_OUT
) -> None:
    """Make these the fixes that unhang knows."""
    gates.install(monkeypatch)
    gate = gates.GATE._replace(manifest={"leave-out": [leave_out], "strikes": "size > 1"}, kinds=("hang",))
    pause = gates.PAUSE._replace(manifest={"with": [beside], "when": "only with a pause"}, kinds=("wrong-values",))
    known: Mapping[str, Fix] = {"gate": gate, "pause": pause}
    monkeypatch.setattr(catalog, "fixes", lambda: known)


def findings(root: Path, files: Mapping[str, str] = gates.FILES) -> list[Finding]:
    """Return the verdicts of both on an installation."""
    return judge([gates.lay_out(root, files)], catalog.fixes().values(), {})


def to_a_job(finding: Finding, word: str = "strikes", *, holds: bool | None = True) -> Finding:
    """Return a finding as of a job that the fix strikes or not, and harms or not."""
    harms = tuple(Harm(each, holds, ("loss", "size")) for each in catalog.fix(finding.target.fix).leave_out)
    struck = Struck(word, ("size",), harms)
    return finding._replace(struck=struck, decides=("size=2 (train.sh:3)",), harms=harms)
