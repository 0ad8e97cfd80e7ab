"""The verdicts on a fix from a diff alone: exactly the shapes on record, and anything else is loud."""

from pathlib import Path

import pytest

from support import exact, gates
from support.exact import FILE, FIX, PATCHED, PLAIN
from unhang.judge.findings import Finding, judge
from unhang.rewrite.plan import plan


@pytest.fixture(autouse=True)
def _made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    exact.install(monkeypatch)


def found(root: Path, code: str | None) -> dict[str, Finding]:
    files = {"verl/__init__.py": "", **({} if code is None else {FILE: code})}
    return {it.target.function: it for it in judge([gates.lay_out(root, files)], [FIX], {})}


def verdicts(root: Path, code: str | None) -> dict[str, tuple[str, str | None]]:
    return {name: (it.verdict.verdict, it.verdict.code) for name, it in found(root, code).items()}


def test_needed_and_applied(tmp_path: Path) -> None:
    assert set(verdicts(tmp_path / "a", PLAIN).values()) == {("needed", None)}
    assert set(verdicts(tmp_path / "b", PATCHED).values()) == {("applied", None)}
    done = plan(list(found(tmp_path / "a", PLAIN).values()), {})
    assert not done.blocked
    (file,) = done.files
    assert file.after.decode() == PATCHED


@pytest.mark.parametrize(
    ("old", "new", "name", "why"),
    [
        ("LIMIT = 3", "LIMIT = 5", "LIMIT", "unknown-shape"),
        ("    return x\n\n\ndef", "    return y\n\n\ndef", "Loop.first", "unknown-shape"),
        ("size: int = 1", "other: int = 1", "Loop.shape", "function-gone"),
        ("class Loop", "class Other", "Loop.first", "function-gone"),
        ("def run(x):\n    # why\n    return x\n", "", "start", "function-gone"),
        ("LIMIT = 3", "LIMIT = 3\ndef start(): return 1", "start", "unknown-shape"),
    ],
)
def test_another_shape_is_drifted_and_blocks_all_of_it(old: str, new: str, name: str, why: str, tmp_path: Path) -> None:
    assert old in PLAIN
    code = PLAIN.replace(old, new, 1)
    assert verdicts(tmp_path, code)[name] == ("drifted", why)
    done = plan(list(found(tmp_path, code).values()), {})
    assert not done.files
    assert [it.fix for it in done.blocked] == ["exact"]


def test_no_file_and_no_python(tmp_path: Path) -> None:
    assert set(verdicts(tmp_path, None).values()) == {("drifted", "function-gone")}
    assert set(verdicts(tmp_path, "def (\n").values()) == {("drifted", "does-not-parse")}


@pytest.mark.parametrize("mark", ["", "# unhang exact: unproved\n"])
def test_half_in_place_is_no_state_to_go_on_from(mark: str, tmp_path: Path) -> None:
    code = PLAIN.replace("LIMIT = 3", f"{mark}LIMIT = 4")
    now = verdicts(tmp_path, code)
    assert now.pop("LIMIT") == ("applied", None)
    assert set(now.values()) == {("drifted", "half-applied")}
    one = found(tmp_path, code)["run"]
    assert "LIMIT in verl/one.py is as the fix leaves it" in one.verdict.detail
    assert [it.fix for it in plan(list(found(tmp_path, code).values()), {}).blocked] == ["exact"]


def test_what_somebody_else_has_imported_is_a_part_of_what_is_needed(tmp_path: Path) -> None:
    code = PLAIN.replace("import os", "import sys\nimport os")
    assert set(verdicts(tmp_path, code).values()) == {("needed", None)}
    done = plan(list(found(tmp_path, code).values()), {})
    (file,) = done.files
    assert file.after.decode().count("import sys") == 1
    assert [step.before == step.after for step in file.steps].count(True) == 1


def test_an_edit_elsewhere_is_no_drift(tmp_path: Path) -> None:
    code = f"# mine\n{PLAIN}\n\ndef more():\n    pass\n"
    assert set(verdicts(tmp_path, code).values()) == {("needed", None)}


def test_a_shape_nobody_has_seen_can_be_looked_at(tmp_path: Path) -> None:
    """As for every fix: `diff --unknown` shows it, and a token accepts it."""
    far = found(tmp_path, PLAIN.replace("    # why\n", "    log(x)\n"))["run"].verdict
    assert (far.verdict, far.code, far.triable) == ("drifted", "unknown-shape", True)
    gone = found(tmp_path, PLAIN.replace("    # why\n    return x\n", "    return y\n"))["run"].verdict
    assert not gone.triable
    assert "the diff's lines are missing or not unique" in gone.detail
