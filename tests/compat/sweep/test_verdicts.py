"""The verdicts on the commits of a made-up upstream, whose fixes are made up too."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import gates
from support.gates import ONE, OTHER_RUN, RUN, STOP, TWO
from support.histories import EDITED, LACKS, History
from unhang.compat.sweep import clones, commits, frozen, matrix_files, sources, verdicts
from unhang.compat.sweep.verdicts import Judgement
from unhang.judge.decide import SETTLED, Verdict
from unhang.judge.observe import Observation

pytest.importorskip("git")
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def run(history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> Callable[..., Any]:
    """Judge the frozen history, with these reasons on record; return the exit code, and the lines."""

    def judged(*reasons: tuple[str, str], freeze: bool = True) -> tuple[int, list[str]]:
        if freeze:
            (tmp_path / frozen.NAME).write_text(matrix_files.swept(frozen.moved({}, {"verl": history.clone()})))
        rows = [{"fix": fix, "shape": shape, "state": "drifted", "why": "why it stays"} for fix, shape in reasons]
        monkeypatch.setattr(sources, "decisions", lambda: rows)
        code = verdicts.main(["--compat", str(tmp_path), "--clone", f"verl={history.folder}"])
        return code, capsys.readouterr().out.splitlines()

    monkeypatch.setattr(clones, "variables", lambda: {"verl": "UNHANG_VERL_CLONE"})
    return judged


def test_each_verdict_without_an_answer_is_named_with_a_commit(history: History, run: Callable[..., Any]) -> None:
    history("1.0")
    history("1.0", two=gates.gated(TWO))
    assert run() == (
        0,
        [
            "verl: 1 branches and 0 tags, 2 commits (0 below the floor left out), 2 distinct trees, 5 judgements: "
            "5 needed, 1 applied"
        ],
    )
    bad = history("1.0", one=EDITED)
    history("1.0", one=EDITED, other="more")
    code, (summary, line) = run()
    assert (code, "4 commits" in summary, "2 drifted" in summary) == (1, True, True)
    shape = gates.shape_of(EDITED)
    what = f"  drifted/unknown-shape gate {shape} in verl/one.py"
    assert line.startswith(f"{what} at {bad} (commits: 2), version 1.0: ")
    assert "no reason is on record: a shape nobody has verified" in line
    code, lines = run(("gate", shape))
    assert (code, lines[1].endswith(": why it stays")) == (0, True)
    code, lines = run(("gate", shape), ("gate", "0" * 16))
    assert (code, lines[2:]) == (
        1,
        [f"patches/gate/manifest.json: {'0' * 16}: no commit is drifted for this reason; delete it"],
    )


def test_a_verdict_that_rests_on_no_shape_on_record_is_no_answer(history: History, run: Callable[..., Any]) -> None:
    broken = history("1.0", one="def broken(:\n    def run()\n    def stop()")
    absent = history("9.0", one=LACKS, two=LACKS)
    code, (_, *lines) = run()
    shown = [(kind, fix, digest, at) for kind, fix, digest, _, _, _, at, *_ in map(str.split, lines)]
    kinds = {("drifted/does-not-parse", broken), ("unlisted/newer-than-matrix", absent)}
    assert {(fix, kind, at) for kind, fix, _, at in shown} == {
        (fix, *kind) for fix in ("gate", "pause") for kind in kinds
    }
    assert code == 1
    assert run(*((fix, digest) for _, fix, digest, _ in shown))[0] == 0, "a reason by the file's digest"
    by_check = Judgement(RUN, "1.0", Observation("", b""), Verdict("fixed-upstream", "by-shape-check"), [])
    assert not by_check.answered


def test_what_is_newer_than_the_frozen_commits_is_not_read(history: History, run: Callable[..., Any]) -> None:
    history("1.0")
    code, before = run()
    history("1.0", one=EDITED)
    assert (code, run(freeze=False)) == (0, (0, before))
    assert run()[0] == 1


def test_a_function_that_moved_is_judged_once_where_it_is(history: History, run: Callable[..., Any]) -> None:
    history("1.0", one=ONE.replace("def run", "def walk"))  # release 1.0 has it
    found = commits.of_upstream("verl", history.clone())
    there = {item.target: item.verdict.verdict for item in verdicts.judged(found.trees, ["verl"])}
    assert there == {RUN: "not-affected", OTHER_RUN: "needed", STOP: "needed"}
    assert run()[0] == 0
    history("1.0", one=LACKS, two=gates.gated(TWO))
    (after,) = (tree for tree in commits.of_upstream("verl", history.clone()).trees if tree not in found.trees)
    settled = {item.target for item in verdicts.judged([after], ["verl"]) if item.verdict.verdict in SETTLED}
    assert settled >= {RUN, OTHER_RUN}, "--require is satisfied once the rewrite is in"


def test_a_function_that_came_later_is_not_gone(history: History, run: Callable[..., Any]) -> None:
    before = history("1.0", one=LACKS)  # release 1.0 has what this file lacks
    history("1.0", one=ONE)
    code, (_, line) = run()
    assert (code, before in line, line.endswith(": it came later")) == (0, True, True)
    history("1.0", one=LACKS, other="more")
    assert run()[0] == 1


def test_a_clone_that_is_not_given_is_named(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in clones.variables().values():
        monkeypatch.delenv(variable, raising=False)
    assert verdicts.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(clones.variables())
    assert "verl: history not judged, for no clone is given (UNHANG_VERL_CLONE)" in lines
    assert verdicts.main(["--clone", "verl"]) == 2
