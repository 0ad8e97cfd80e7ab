"""The whole session, on real verl with made-up tests: it applies, runs both sides, compares, reports and exits."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from git import Repo

from support import cli
from unhang.shapes import catalog
from upstream import run, selection, traced, venvs

ENGINE = "verl/workers/engine/megatron/transformer_impl.py"
HEAD = f"from pathlib import Path\nSOURCE = Path('{ENGINE}').read_text()\nPATCHED = '# unhang' in SOURCE\n"
ABOUT = {
    "clone": "A_VARIABLE",
    "url": "file:///nowhere/at/all",
    "tag": "v",
    "tests": ["tests/test_*_on_cpu.py"],
    "torch": "0",
    "shims": [],
    "environments": [],
    "main": {"python": "3", "requirements": "none.txt", "variables": {"OF_THE_DATA": "1"}},
}
Session = Callable[..., int]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone with the sources of verl 0.7.1; the session tags it."""
    return unpacked(tmp_path / "clone", "0.7.1")


def unpacked(folder: Path, version: str) -> Path:
    """Unpack a release of verl, without the tests of its wheel."""
    cli.unpack(folder, ("verl", version))
    shutil.rmtree(folder / "tests", ignore_errors=True)
    (folder / "tests").mkdir()
    return folder


@pytest.fixture
def session(clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    """Run the session on a clone with these tests; gives the exit code. Reports are in `tmp_path / "out"`."""
    monkeypatch.setattr(venvs, "ready", lambda *_: venvs.Environment(Path(sys.executable), "this Python", 0))
    monkeypatch.setattr(selection, "upstream", lambda name: ABOUT)
    monkeypatch.delenv("A_VARIABLE", raising=False)
    # the made-up tests are about mtp-cp-deadlock; verl needs others too
    monkeypatch.setenv("UNHANG_SKIP", ",".join(catalog.fixes().keys() - set(cli.FOUR)))

    def start(*options: str, **tests: str) -> int:
        for name, source in tests.items():
            (clone / "tests" / f"test_{name}_on_cpu.py").write_text(HEAD + source)
        with Repo.init(clone) as repo:
            repo.git.add("--force", ".")
            repo.git(c=["user.name=us", "user.email=us@here"]).commit("-qm", "made up")
            repo.git.tag("v0.7.1")
        return run.main(["verl", "v0.7.1", "--all", "--clone", str(clone), *places(tmp_path), *options])

    return start


def places(tmp_path: Path) -> list[str]:
    return ["--tmp", str(tmp_path / "out"), "--cache", str(tmp_path / "cache")]


def files(tmp_path: Path) -> list[dict[str, Any]]:
    return list(json.loads((tmp_path / "out" / "verl-v0.7.1-1.json").read_text())["files"])


class UntilItHangs(subprocess.Popen[bytes]):
    """Its deadline comes as soon as a test says that it hangs, so a slow machine changes nothing."""

    DEADLINE_S = 4321.0

    def __init__(self, words: list[str], *, cwd: Path | None = None, **more: Any) -> None:
        self.says = Path(cwd or ".") / "hangs"
        self.says.unlink(missing_ok=True)
        super().__init__(words, cwd=cwd, **more)

    def wait(self, timeout: float | None = None) -> int:
        while timeout == self.DEADLINE_S and self.poll() is None:
            if self.says.exists():
                raise subprocess.TimeoutExpired(self.args, timeout)
            time.sleep(0.05)
        return super().wait(timeout)


def categories(tmp_path: Path) -> dict[str, str]:
    return {line["id"].partition("::")[2]: line["category"] for file in files(tmp_path) for line in file["lines"]}


@pytest.mark.slow
def test_a_run_without_a_regression(session: Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        session(
            one="""
import os, pytest
def test_passes(): assert os.environ["OF_THE_DATA"] == "1"
def test_fails(): assert not "of course"
@pytest.mark.skip(reason="not here")
def test_skips(): pass
def test_wants_the_fix(): assert PATCHED
""",
            two="def test_flaky():\n    first = not os.path.exists('was-here')\n    open('was-here', 'w').close()\n"
            "    assert not (PATCHED and first)\nimport os\n",
        )
        == 0
    )
    assert categories(tmp_path) == {
        "test_passes": "passed both",
        "test_fails": "failed both",
        "test_skips": "skipped both",
        "test_wants_the_fix": "fixed",
        "test_flaky": "flaky",
    }
    shown = capsys.readouterr().out
    assert "mtp-cp-deadlock: applied" in shown
    assert "no regression in the tests; none executes the rewrite of mtp-cp-deadlock\n" in shown
    assert "flaky: tests/test_two_on_cpu.py::test_flaky (passed, passed -> failed, passed)" in shown


FUNCTION = "MegatronEngine.forward_backward_batch"
CALLS = """
import ast, builtins
from unittest.mock import MagicMock

class Names(dict):
    def __missing__(self, name):
        return getattr(builtins, name, None) or MagicMock()

(function,) = (node for node in ast.walk(ast.parse(SOURCE)) if getattr(node, "name", "") == "forward_backward_batch")

def test_calls_it():
    names = Names(
        prepare_micro_batches=lambda **_: ([1], None),
        get_forward_backward_func=lambda: lambda **_: LOSSES,
        get_megatron_mtp_loss=lambda batches: {"mtp": 0.5},
        mpu=MagicMock(**{"get_virtual_pipeline_model_parallel_world_size.return_value": None}),
        RouterReplayHelper=MagicMock(**{"is_r2_record_action.return_value": False}),
    )
    exec(compile(ast.Module([function], []), FILE, "exec"), names)
    names["forward_backward_batch"](MagicMock(), MagicMock(), MagicMock())
    assert LOSSES[0]["metrics"] == {"mtp": 0.5}
"""
ALL_OF_IT, ALL_BUT_THE_INNERMOST = "LOSSES = [{}]\n", "LOSSES = [{'metrics': {}}]\n"


def raising(block: int) -> Callable[[Path], tuple[str, dict[str, str]]]:
    """Return `run.applied` with a `raise` put first into a block of the rewrite, of which there are three."""
    applied = run.applied

    def and_raises(tree: Path) -> tuple[str, dict[str, str]]:
        done = applied(tree)
        lines = traced.lines(tree.parent / "before", tree, [("fix", ENGINE, FUNCTION)])["fix"]
        source = (tree / ENGINE).read_text()
        heads = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.If)]
        blocks = [node.body[0] for node in heads if f"{ENGINE}:{node.lineno}" in lines]
        assert len(blocks) == 3
        rows, first = source.splitlines(keepends=True), blocks[block]
        rows.insert(first.lineno - 1, " " * first.col_offset + "raise RuntimeError('injected')\n")
        (tree / ENGINE).write_text("".join(rows))
        return done

    return and_raises


@pytest.mark.slow
@pytest.mark.parametrize(
    ("losses", "block", "last"),
    [
        (ALL_OF_IT, None, "no regression"),
        *((ALL_OF_IT, block, "FAILED: 1 regression") for block in range(2)),
        (
            ALL_BUT_THE_INNERMOST,
            2,
            "no regression in the tests; they execute a part of the rewrite of mtp-cp-deadlock "
            "(4 of 6 rewritten lines executed)",
        ),
    ],
    ids=["none", "the gate", "the report", "one that is not executed"],
)
def test_a_raise_in_a_block_of_the_rewrite_is_a_regression_or_not_covered(
    losses: str,
    block: int | None,
    last: str,
    session: Session,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run, "RERUNS", 0)
    if block is not None:
        monkeypatch.setattr(run, "applied", raising(block))
    code = session(one=f"FILE = {ENGINE!r}\n{losses}{CALLS}")
    *shown, verdict, _ = capsys.readouterr().out.splitlines()
    assert (verdict, code) == (last, int(last.startswith("FAILED")))
    # of a block with a raise, not even what stands after it is said to be covered
    assert any(row.startswith("NOT COVERED: mtp-cp-deadlock: ") for row in shown) == (block is not None)


@pytest.mark.slow
def test_what_fails_hangs_or_is_no_longer_collected_after_the_fixes_is_a_regression(
    session: Session, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", UntilItHangs)
    hates = "def test_hates_the_fix():\n    assert not PATCHED, 'patched, alas'\n"
    gone = "def test_stays(): pass\nif not PATCHED:\n    def test_goes(): pass\n"
    hangs = "import time\ndef test_passes(): pass\ndef test_hangs():\n    "
    hangs += "if PATCHED: Path('hangs').touch()\n    while PATCHED: time.sleep(0.1)\n"
    assert session("--deadline", str(UntilItHangs.DEADLINE_S), one=hates, two=gone, three=hangs) == 1
    assert categories(tmp_path) == {
        "test_hates_the_fix": "regression",
        "test_stays": "passed both",
        "test_goes": "regression",
        "test_passes": "passed both",
        "test_hangs": "regression",
    }
    shown = capsys.readouterr().out
    assert ("FAILED: 3 regressions" in shown, "patched, alas" in shown) == (True, True)
    assert files(tmp_path)[0]["runs"] == 3, "it was run again, twice, before it was believed"


@pytest.mark.slow
def test_nothing_to_compare_is_no_claim(session: Session, clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(clone)
    unpacked(clone, "0.7.0")
    assert session(one="def test_passes(): pass\n") == 0
    shown = capsys.readouterr().out
    assert "nothing to compare" in shown
    assert "no regression" not in shown


@pytest.mark.slow
def test_a_fix_that_is_blocked_fails_where_no_other_was_applied(
    session: Session, clone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = (clone / ENGINE).read_text()
    assert "n_micro_batch" in source
    (clone / ENGINE).write_text(source.replace("n_micro_batch", "n_micro_batches"))
    assert session(one="def test_passes(): pass\n") == 2
    shown = capsys.readouterr()
    assert "mtp-cp-deadlock: drifted" in shown.out
    assert "error[not-applied]" in shown.err


@pytest.mark.slow
def test_only_some_of_the_files(session: Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tests = {"one": "def test_1(): pass\n", "two": "def test_2(): pass\n"}
    assert session("--only", "_two_", **tests) == 0
    assert categories(tmp_path) == {"test_2": "passed both"}
    assert "NARROWED: only files with _two_ in their path, 1 of 2" in capsys.readouterr().out
    again = ["verl", "v0.7.1", "--all", "--clone", str(tmp_path / "clone"), "--only", "_three_", *places(tmp_path)]
    assert run.main(again) == 2
    assert "_three_" in capsys.readouterr().err


def test_a_tree_that_cannot_be_had_is_an_error_with_a_hint(
    session: Session, clone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Repo.init(clone).close()
    assert run.main(["verl", "v9", "--clone", str(clone), *places(tmp_path)]) == 2
    shown = capsys.readouterr().err
    assert "error[no-ref]" in shown
    assert "A_VARIABLE" in shown
    assert run.main(["verl", "v0.7.1", *places(tmp_path)]) == 2
    assert "/nowhere/at/all" in capsys.readouterr().err
    assert run.main(["verl", "v0.7.1", "--sdist", *places(tmp_path)]) == 2
    assert "error[no-sdist]" in capsys.readouterr().err
