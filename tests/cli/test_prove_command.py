"""`unhang prove` as a command: its options, its exit codes, and with torch the whole of it."""

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from support import cli, interpreters
from unhang.cli.main import main
from unhang.prove import installed
from unhang.prove.cases import DIFFERS, HUNG, PASSED, Outcome
from unhang.prove.line import Line

VERL, CORE = ("verl", "0.7.1"), ("megatron-core", "0.16.1")
FIX = ("--fix", "mtp-cp-deadlock")
REDUCE = "reduce_loss_in_tracker"
TORCH_S = 3600  # for a command that runs torch, even on a busy machine


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return cli.unpack(tmp_path / "site", VERL, CORE)


def prove(*arguments: str | Path, **more: Any) -> cli.Ran:
    return cli.unhang("prove", "--output-format", "json", *arguments, timeout_s=TORCH_S, **more)


def test_sizes_that_do_not_fit_are_a_usage_error(tmp_path: Path) -> None:
    ran = cli.unhang("prove", "--target", tmp_path, "--tp", "3", "--pp", "2", "--world-size", "16")
    assert (ran.code, ran.out) == (2, "")
    assert "error[bad-topology]: a world size of 16 is not divisible" in ran.err


def test_a_folder_needs_an_interpreter_to_run_it(site: Path) -> None:
    for option in "--target", "--source":
        ran = cli.unhang("prove", option, site, "--output-format", "json")
        assert ran.code == 2
        assert ran.json["error"]["code"] == "no-interpreter"
        assert "--python" in ran.json["error"]["hint"]


def test_without_torch_it_says_so(site: Path, tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    bare.chmod(0o755)
    before = cli.tree(site)
    ran = prove("--target", site, "--python", bare, *FIX)
    assert ran.code == 2
    assert ran.json["error"]["code"] == "no-torch"
    assert "No module named 'torch'" in ran.json["error"]["message"]
    assert cli.tree(site) == before


def test_the_text_ends_with_the_next_command(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = []

    def proved(job: installed.Job) -> installed.Proved:
        jobs.append(job)
        outcomes = Outcome(HUNG, "waits"), Outcome(PASSED, "")
        line = Line("verl", "0.7.1", str(site), FIX[1], "needed", "proven", "", "yours", "CP 2", *outcomes)
        return installed.Proved([line], {"python": "3.12.0", "torch": "2.0"})

    monkeypatch.setattr(installed, "prove", proved)
    assert main(["prove", "--target", str(site), "--python", sys.executable, *FIX, "--cp", "2", "--dp", "3"]) == 1
    run = f"unhang apply --target {site} --fix mtp-cp-deadlock"
    last = f"the installed source has the defect; next, on every node:\n  {run}\n"
    assert capsys.readouterr().out.endswith(last)
    ((job),) = jobs
    assert (job.python, job.topology and job.topology.text()) == (sys.executable, "CP 2 x DP 3 (6 ranks)")
    assert {finding.target.fix for finding in job.findings} == {FIX[1]}
    given = ["context_parallel_size=4", "tensor_model_parallel_size=2", "ranks=16"]
    where = ["--target", str(site), "--python", sys.executable, *(f"--setting={one}" for one in given)]
    for more, sizes in (
        ([], "TP 2 x CP 4 x DP 2 (16 ranks)"),
        (["--cp", "2"], "TP 2 x CP 2 x DP 4 (16 ranks)"),  # an option wins over the job
        (["--case", "two"], None),
    ):
        main(["prove", *where, *more])
        assert (jobs[-1].topology and jobs[-1].topology.text()) == sizes


@pytest.fixture(scope="module")
def torch_python() -> str:
    return interpreters.with_torch()


def test_a_hang_is_shown_on_the_users_topology_and_gone_when_patched(site: Path, torch_python: str) -> None:
    where = ("--target", site, "--python", torch_python, *FIX)
    before = cli.tree(site)
    ran = prove(*where, "--tp", "2", "--pp", "2", "--cp", "2", "--world-size", "32")
    assert cli.tree(site) == before
    (line,) = ran.json["results"]
    assert (ran.code, line["answer"]) == (1, "proven"), ran.out
    assert "(16 ranks) in place of your 32" in line["detail"]
    assert REDUCE in line["untouched"]["detail"]

    ran = prove(*where, "--tp", "2", "--pp", "2", "--world-size", "32")
    assert (ran.code, ran.json["results"][0]["answer"]) == (0, "unaffected"), ran.out

    cli.applied("--target", site, *FIX)
    ran = prove(*where, "--cp", "2")
    (line,) = ran.json["results"]
    assert (ran.code, line["answer"], line["verdict"]) == (0, "proven", "applied"), ran.out
    assert "rank 0 waits in all_reduce" in line["untouched"]["detail"]
    assert line["patched"]["detail"].startswith("only the source ranks report the metric")


def test_real_groups_are_warmed_up_on_the_users_topology(site: Path, torch_python: str) -> None:
    where = ("--target", site, "--python", torch_python, "--fix", "expert-dp-warmup")
    for sizes in ("--ep", "4"), ("--ep", "2", "--etp", "2"):
        ran = prove(*where, "--tp", "2", *sizes, "--world-size", "16")
        (line,) = ran.json["results"]
        assert (ran.code, line["answer"]) == (1, "proven"), ran.out
        assert line["untouched"]["status"] == DIFFERS


@pytest.mark.parametrize(("release", "answer"), [("0.16.1", "proven"), ("0.11.0", "unaffected")])
def test_without_replicas_of_an_expert_the_release_decides(
    release: str, answer: str, tmp_path: Path, torch_python: str
) -> None:
    """Newer releases warm up the group of the optimizer's instances too."""
    site = cli.unpack(tmp_path / "site", ("megatron-core", release))
    where = ("--target", site, "--python", torch_python, "--fix", "expert-dp-warmup")
    (line,) = prove(*where, "--ep", "8", "--world-size", "8").json["results"]
    assert line["answer"] == answer, line


def test_nothing_is_written_outside_a_temporary_folder(tmp_path: Path, torch_python: str) -> None:
    """Not below HOME either, where torch, triton and Transformers have caches."""
    site = cli.unpack(tmp_path / "site", VERL, ("megatron-core", "0.17.1"))
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    home.mkdir()
    temporary.mkdir()
    before = cli.tree(site)
    chosen = {"HOME": str(home), "TMPDIR": str(temporary)}
    where = ("--target", site, "--python", torch_python)
    ran = prove(*where, "--tp", "2", "--pp", "2", "--ep", "2", "--dp", "2", env=chosen)
    answers_ = {line["fix"]: line["answer"] for line in ran.json["results"] if line["case"]}
    assert answers_.keys() == {line["fix"] for line in ran.json["results"]}, ran.out
    assert "unknown" not in answers_.values(), ran.out
    assert cli.tree(site) == before
    assert [*home.rglob("*")] == []
    assert [*temporary.rglob("*")] == []


def test_what_a_proof_cannot_import_is_a_2(site: Path, torch_python: str) -> None:
    shutil.rmtree(site / "megatron" / "core" / "transformer")
    ran = prove("--target", site, "--python", torch_python, *FIX, "--cp", "2")
    (line,) = ran.json["results"]
    assert (ran.code, line["answer"]) == (2, "unknown")
    assert "the proof does not run here: ModuleNotFoundError" in line["detail"]
