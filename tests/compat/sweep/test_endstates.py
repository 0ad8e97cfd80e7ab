"""The session's table, its exit code, and what it records."""

from pathlib import Path

import pytest

from support.endstates import ROWS
from support.fake_index import ENGINE, UNCLEAR, FakeIndex
from unhang.compat.endstates import sandbox
from unhang.compat.endstates.compare import Row
from unhang.compat.sweep import endstates, pins, sources
from unhang.compat.sweep.endstates import Shape
from unhang.shapes import catalog

GOOD, BAD = Row(["a"], 4, 1, 2, 1, 0, []), Row(["a"], 4, 1, 1, 1, 1, ["worse with a=1: raises"])


def test_every_shape_of_a_fix_with_an_end_state_is_on_record_and_none_is_worse() -> None:
    states = {key: it.state for key, it in catalog.shape_table().shapes.items()}
    upstream = {key for key, state in states.items() if state != "ours"}
    decided = {(row["fix"], row["shape"]) for row in sources.decisions()}
    assert set(ROWS) == {key for key in upstream if sandbox.judge_of(key[0], key[1])}
    for key, row in ROWS.items():
        assert row["worse"] == 0
        assert row["configurations"] == row["passed"] + row["cured"] + row["failed"]
        if (key[0], key[2]) not in decided:
            assert bool(row["cured"]) == (states[key] == "affected")


def test_every_condition_that_is_declared_is_read_by_some_shape() -> None:
    declared: dict[str, set[str]] = {}  # the functions of a fix may share what they declare
    for fix, function in {key[:2] for key in ROWS}:
        if endstate := sandbox.end_state(fix, function):  # a scene declares none
            declared.setdefault(fix, set()).update(endstate.varied, endstate.held)
    for fix, names in declared.items():
        assert names == {name for key, row in ROWS.items() if key[0] == fix for name in row["branches"]}


@pytest.mark.parametrize(
    ("row", "decided", "below", "problems"),
    [
        (GOOD, "", [], 0),
        (BAD, "", BAD.problems, 1),
        (BAD, "seen on real ranks", ["by a person: seen on real ranks"], 0),
    ],
)
def test_a_problem_fails_the_session_unless_a_person_decided(
    row: Row,
    decided: str,
    below: list[str],
    problems: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shapes = enumerate([(GOOD, ""), (row, decided)])
    found = [Shape(("made-up", "f", f"{number:016}"), "affected", *it) for number, it in shapes]
    monkeypatch.setattr(endstates, "_shapes", lambda fix, shape, step: iter(found))
    assert endstates.main([]) == bool(problems)
    out = capsys.readouterr().out.splitlines()
    assert out[0].split() == ["made-up", "state", *endstates.FIGURES]
    assert out[1].split() == [found[0].key[2], "affected", "4", "1", "2", "1", "0"]
    assert out[3:-1] == [f"    {line}" for line in below]
    assert out[-1] == f"2 shapes, 8 configurations, {problems} problems"


def test_the_session_shows_what_the_sweep_decides(
    fake: FakeIndex, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """One shape of each state; `--fix` and `--shape` leave the others out."""
    fake.add("verl", "0.7.1", {ENGINE: UNCLEAR})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(pins, "read", lambda _: [])
    assert endstates.main([]) == 1
    out = capsys.readouterr().out.splitlines()
    rows = {line.split()[1]: line.split()[0] for line in out if not line.startswith(" ")}
    assert {*rows} == {"state", "affected", "not-affected", "undecided", "shapes,"}
    (problem,) = (line for line in out if line.startswith("    "))
    assert "raised TypeError" in problem
    assert endstates.main(["--fix", "mtp-cp-deadlock", "--shape", rows["not-affected"]]) == 0
    assert "not-affected" in capsys.readouterr().out.splitlines()[1]
