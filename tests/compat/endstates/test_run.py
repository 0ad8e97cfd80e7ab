"""The session's table, its exit code, and what it records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.endstates import ROWS
from unhang.compat.endstates import run, sandbox
from unhang.compat.endstates.compare import Row
from unhang.compat.endstates.endstate import Source
from unhang.compat.endstates.run import Job
from unhang.compat.sweep import sources
from unhang.shapes import catalog

JOBS = [Job(("made-up", "f", f"{number:016}"), "affected", Source("", "f"), Source("", "f")) for number in (1, 2)]
GOOD, BAD = Row(["a"], 4, 1, 2, 1, 0, []), Row(["a"], 4, 1, 1, 1, 1, ["worse with a=1: raises"])


def test_every_shape_of_a_fix_with_an_end_state_is_on_record_and_none_is_worse() -> None:
    states = {key: it.state for key, it in catalog.shape_table().shapes.items()}
    upstream = {key for key, state in states.items() if state in ("affected", "fixed", "not-affected")}
    assert set(ROWS) == {key for key in upstream if sandbox.end_state(key[0], key[1])}
    for key, row in ROWS.items():
        assert row["worse"] == 0
        assert row["configurations"] == row["passed"] + row["cured"] + row["failed"]
        assert bool(row["cured"]) == (states[key] == "affected")


def test_every_condition_that_is_declared_is_read_by_some_shape() -> None:
    for fix, function in {key[:2] for key in ROWS}:
        endstate = sandbox.end_state(fix, function)
        assert endstate is not None
        read = {name for key, row in ROWS.items() if key[:2] == (fix, function) for name in row["branches"]}
        assert read == {*endstate.varied, *endstate.held}


@pytest.mark.parametrize(("second", "code"), [(GOOD, 0), (BAD, 1)])
def test_a_problem_fails_the_session_and_is_below_its_shape(
    second: Row, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = iter([GOOD, second])
    monkeypatch.setattr(run, "_jobs", lambda step: iter(JOBS))
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    monkeypatch.setattr(sandbox, "run", lambda fix, before, after, as_written: next(rows))
    monkeypatch.setattr(sources, "HERE", tmp_path)
    assert run.main(["--write"]) == code
    out = capsys.readouterr().out.splitlines()
    assert out[0].split() == ["made-up", "state", *run.FIGURES]
    assert out[1].split() == [JOBS[0].key[2], "affected", "4", "1", "2", "1", "0"]
    assert out[3:-1] == [f"    {problem}" for problem in second.problems]
    assert out[-1] == f"2 shapes, 8 configurations, {code} problems"
    written = json.loads((tmp_path / "endstates.json").read_text())["endstates"]
    assert [row["worse"] for row in written] == [0, second.worse]
