"""An environment that is only found is a stranger's: each command reads it, and runs a program of it in no case."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import cli, recorder_dumps
from support.environments import make_venv

ANN = 1001
VERL = ("verl", "0.7.1")
ENGINE = "verl/workers/engine/megatron/transformer_impl.py"
COMMANDS = (
    ["check"], ["apply"], ["apply", "--dry-run"], ["diff"], ["diff", "--unknown", "--run"], ["revert"], ["prove"],
    ["overlay", "out"],
)  # fmt: skip


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, of root, below a folder in which a stranger makes a `.venv`."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    with tempfile.TemporaryDirectory() as top:
        os.chmod(top, 0o1777)
        Path(top, "work").mkdir()
        monkeypatch.chdir(Path(top, "work"))
        yield Path(top, "work")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The programs that this process starts."""
    programs: list[str] = []
    real = subprocess.Popen.__init__

    def recorded(self: Any, words: list[str], *more: Any, **options: Any) -> None:
        programs.append(str(words[0]))
        real(self, words, *more, **options)

    monkeypatch.setattr(subprocess.Popen, "__init__", recorded)
    return programs


def give_away(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        os.lchown(path, ANN, ANN)


def planted(folder: Path) -> Path:
    """Make an environment whose interpreter is a script that says that it ran; return that file."""
    ran = folder / "ran"
    python = folder / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\ntouch {ran}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (folder / ".venv/pyvenv.cfg").touch()
    give_away(folder / ".venv")
    return ran


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("how", ["above", "here", "VIRTUAL_ENV"])
def test_a_planted_interpreter_is_not_run_and_not_passed_over(
    how: str, words: list[str], work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = work if how == "here" else work.parent
    ran = planted(folder)
    env = {}
    if how == "VIRTUAL_ENV":
        (work.parent / ".venv").rename(work.parent / "other")
        env["VIRTUAL_ENV"] = str(work.parent / "other")
    result = cli.called(*words, env=env)
    python = f"{env.get('VIRTUAL_ENV', folder / '.venv')}/bin/python"
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error[untrusted-environment]: ")
    assert (f"everybody may write {folder}" if how == "above" else f"belongs to user {ANN}") in result.err
    assert f"name it with --python {python}" in result.err
    assert not ran.exists()
    cli.called("check", "--python", python, "--allow-none")
    assert ran.exists(), "who names it decides that"


def test_root_patches_the_environment_of_an_image_s_user_by_reading_it(work: Path, started: list[str]) -> None:
    make_venv(work / ".venv")
    (site,) = (work / ".venv").glob("lib/python3.*/site-packages")
    cli.unpack_targets(site, VERL)
    subprocess.run([sys.executable, "-m", "compileall", "-q", site / ENGINE], check=True)
    (cached,) = (site / ENGINE).parent.glob("__pycache__/transformer_impl.*.pyc")
    give_away(work / ".venv")
    before = (site / ENGINE).read_bytes(), cached.read_bytes()
    started.clear()
    for words in (["check"], ["diff"], ["apply"], ["check"], ["overlay", "out"], ["revert"]):
        result = cli.called(*words)
        assert "untrusted" not in result.err
        assert result.code in (0, 1)
    assert (site / ENGINE).read_bytes() == before[0]
    assert cached.exists(), "our own Python has compiled it again"
    assert started != []
    assert not [program for program in started if str(work) in program]
    assert cli.called("prove", "--fix", "mtp-cp-deadlock").err.startswith("error[untrusted-environment]: ")


@pytest.fixture
def evidence(work: Path) -> Path:
    """An unpacked archive of the user's own: the dumps of a known hang, and an environment that runs code."""
    dumps = work / "dumps"
    dumps.mkdir()
    frames = (
        ("reduce_loss_in_tracker", "/env/megatron/core/transformer/multi_token_prediction.py", 359),
        ("get_megatron_mtp_loss", "/env/verl/utils/megatron_utils.py", 1307),
        ("forward_backward_batch", f"/env/{ENGINE}", 605),
    )
    group = "7", "DATA_PARALLEL_GROUP_WITH_CP"
    groups = {"0": ("default_pg", (0, 1)), group[0]: (group[1], (0, 1))}
    done, passed = recorder_dumps.entry(0), recorder_dumps.entry(1, state="started", seq=2)
    waits = recorder_dumps.entry(1, state="started", seq=1, sizes=[[1]], group=group, frames=frames)
    for rank, entries in enumerate(([done, waits], [done, passed])):
        (dumps / f"nccl_trace_rank_{rank}").write_bytes(recorder_dumps.as_pickle(recorder_dumps.dump(entries, groups)))
    return dumps


@pytest.mark.parametrize(
    ("venv_in", "cwd", "path"),
    [("", "", "."), ("dumps", "dumps", "."), ("", "dumps", "."), ("", "", "dumps"), ("", "dumps", "../dumps")],
)
def test_diagnose_runs_no_environment_that_came_with_its_evidence(
    venv_in: str, cwd: str, path: str, evidence: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = planted(work / venv_in)
    for file in (work / venv_in / ".venv").rglob("*"):
        os.lchown(file, 0, 0)
    os.chown(work / venv_in / ".venv", 0, 0)
    monkeypatch.chdir(work / cwd)
    result = cli.called("diagnose", path)
    assert "mtp-cp-deadlock" in result.out
    assert not ran.exists()
    said = "is in a folder of the evidence, and was not looked at" in result.err
    assert said != ("error[untrusted-environment]: " in result.err), "it is not silent"
