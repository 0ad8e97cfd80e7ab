"""The whole session, on real verl with made-up tests: it applies, runs both sides, compares, reports and exits."""

import json
import shutil
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from git import Repo

from support import cli
from unhang.shapes import catalog
from upstream import run, selection, trees, venvs

ENGINE = "verl/workers/engine/megatron/transformer_impl.py"
HEAD = f"import os, pathlib\nSOURCE = pathlib.Path('{ENGINE}').read_text()\nPATCHED = '# unhang' in SOURCE\n"
ABOUT = {
    "clone": "A_VARIABLE", "url": "file:///nowhere/at/all", "tag": "v", "tests": ["tests/test_*_on_cpu.py"],
    "torch": "0", "shims": [], "environments": [],
    "main": {"python": "3", "requirements": "none.txt", "variables": {"OF_THE_DATA": "1"}},
}  # fmt: skip
Session = Callable[..., int]


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    """Run the session on a commit of a clone of verl's sources with these tests; gives the exit code."""
    clone = cli.unpack(tmp_path / "clone", ("verl", "0.7.1"))
    shutil.rmtree(clone / "tests", ignore_errors=True)
    (clone / "tests").mkdir()
    monkeypatch.setattr(venvs, "ready", lambda *_: venvs.Environment(Path(sys.executable), "this Python", 0))
    monkeypatch.setattr(selection, "upstream", lambda name: ABOUT)
    # the made-up tests are about mtp-cp-deadlock; verl needs others too
    monkeypatch.setenv("UNHANG_SKIP", ",".join(catalog.fixes().keys() - set(cli.FOUR)))

    def start(*options: str, **tests: str) -> int:
        for name, source in tests.items():
            (clone / "tests" / f"test_{name}_on_cpu.py").write_text(HEAD + source)
        with Repo.init(clone) as repo:
            repo.git.add("--force", ".")
            repo.git(c=["user.name=us", "user.email=us@here"]).commit("-qm", "made up", "--allow-empty")
            repo.git.tag("--force", "v0.7.1")
        places = ("--tmp", str(tmp_path / "out"), "--cache", str(tmp_path / "cache"), "--clone", str(clone))
        return run.main(["verl", "v0.7.1", "--all", *places, *options])

    return start


def files(tmp_path: Path) -> tuple[int, dict[str, str]]:
    """Return how often a file was run at the most, and the category of each test."""
    report = json.loads((tmp_path / "out" / "verl-v0.7.1-1.json").read_text())["files"]
    return max(file["runs"] for file in report), {
        line["id"].partition("::test_")[2]: line["category"] for file in report for line in file["lines"]
    }


@pytest.mark.slow
def test_a_run_with_regressions_and_one_of_only_some_files(
    session: Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A made-up test executes the first of the rewritten lines, as far as the measure can tell."""
    one = f"""
import pytest
def test_passes(): assert os.environ["OF_THE_DATA"] == "1"
def test_fails(): assert not "of course"
@pytest.mark.skip(reason="not here")
def test_skips(): pass
def test_hates_the_fix(): assert not PATCHED, "patched, alas"
def test_wants_the_fix():
    (mark,) = (number for number, row in enumerate(SOURCE.splitlines()) if "# unhang mtp" in row)
    exec(compile("\\n" * mark + "def f():\\n pass\\nf()", str(pathlib.Path("{ENGINE}").resolve()), "exec"))
"""
    two = "def test_flaky():\n    first = not os.path.exists('was-here')\n    open('was-here', 'w').close()\n"
    two += "    assert not (PATCHED and first)\n"
    three = "def test_stays(): pass\nif not PATCHED:\n    def test_goes(): pass\n"
    assert session(one=one, two=two, three=three, four="def test_passes(): pass\n") == 1
    assert files(tmp_path) == (3, {
        "passes": "passed both", "fails": "failed both", "skips": "skipped both", "wants_the_fix": "fixed",
        "hates_the_fix": "regression", "goes": "regression", "stays": "passed both", "flaky": "flaky",
    }), "what differs was run again, twice"  # fmt: skip
    shown = capsys.readouterr().out
    flaky = "flaky: tests/test_two_on_cpu.py::test_flaky (passed, passed -> failed, passed)"
    covered = "mtp-cp-deadlock: 1 of 5 rewritten lines executed, by tests that passed: 1 in tests/test_one_on_cpu.py"
    for text in "mtp-cp-deadlock: applied", flaky, covered, "FAILED: 2 regressions", "patched, alas":
        assert text in shown
    assert session("--only", "_four_") == 0
    assert files(tmp_path)[1] == {"passes": "passed both"}
    shown = capsys.readouterr().out
    assert "NARROWED: only files with _four_ in their path, 1 of 4" in shown
    assert "no regression in the tests; none executes the rewrite of mtp-cp-deadlock" in shown
    assert session("--only", "_five_") == 2
    assert "_five_" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("verdicts", "code", "said"),
    [
        ("fixed-upstream not-affected", 0, "  fix: fixed-upstream\nnothing to compare: no fix is needed here"),
        ("not-affected drifted applied", 2, "  fix: drifted: why\nerror[not-applied]: "),
        ("applied drifted not-affected", 2, "  fix: drifted: why\nerror[not-applied]: "),
        ("", 2, "error[no-verdict]: "),
    ],
)
def test_of_several_targets_an_unpatched_one_counts_and_nothing_to_compare_is_no_claim(
    verdicts: str, code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    rows = [{"fix": "fix", "verdict": it, "detail": "why", "version": "1.0"} for it in verdicts.split()]
    monkeypatch.setattr(run, "_unhang", lambda *_: {"results": rows})
    both = trees.Trees(tmp_path, tmp_path, "a clone")
    monkeypatch.setattr(run, "_trees", lambda *_: nullcontext(both))
    assert run.main(["verl", "v1", "--tmp", str(tmp_path)]) == code
    shown = "".join(capsys.readouterr())
    assert (said in shown, "no regression" in shown, "hint: " in shown) == (True, False, "not-applied" in said)


def test_an_sdist_that_is_not_pinned_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["verl", "v99", "--sdist", "--tmp", str(tmp_path)]) == 2
    assert "error[no-sdist]: no sdist of verl 99 is pinned: " in capsys.readouterr().err
