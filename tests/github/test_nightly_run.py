"""Nightly jobs, run on local repositories and a local package index, with a stand-in for nox."""

import json
import re
from pathlib import Path
from typing import Any

import nightly_judge as judge
import nightly_plan as plan
import nightly_run
import pytest

from support import cli, environments, fake_index

REPOSITORY = Path(__file__).parents[2]
SCRIPTS = REPOSITORY / ".github" / "scripts"
ENGINE = "verl/workers/engine/megatron/transformer_impl.py"


def run(tmp_path: Path, job: str, *options: str | Path) -> tuple[int, dict[str, Any]]:
    out = tmp_path / "out" / "result.json"
    ran = cli.python(SCRIPTS / "nightly_run.py", job, "--out", out, *options)
    assert out.exists(), ran.err
    return ran.code, json.loads(out.read_text())


def nox(tmp_path: Path, *sessions: str, code: int = 0) -> Path:
    """Write a stand-in for nox that has these sessions, and prints its arguments."""
    text = f"""\
        import sys
        name = sys.argv[sys.argv.index("-s") + 1]
        if name not in {sessions!r}: sys.exit(print("nox > Sessions not found: " + name, file=sys.stderr) or 3)
        print(sys.argv[1:])
        sys.exit({code})
        """
    environments.write(tmp_path, {"nox.py": text})
    return tmp_path / "nox.py"


def test_a_missing_session_is_not_green(tmp_path: Path) -> None:
    code, result = run(tmp_path, "proofs", "--nox", nox(tmp_path, "sweep"))
    assert (code, result["detail"], result["log"]) == (1, "exit code 3", "nox > Sessions not found: proofs")
    sessions = set(re.findall(r"^def (\w+)\(session", (REPOSITORY / "noxfile.py").read_text(), flags=re.MULTILINE))
    assert {job.what for job in plan.jobs()} - {plan.CHECK, plan.RADAR} <= sessions, "the real one has all"


def test_a_session_gets_its_arguments_and_is_judged_by_its_code(tmp_path: Path) -> None:
    code, result = run(tmp_path, "verl-upstream-main", "--nox", nox(tmp_path, "upstream", code=1))
    assert (code, result["green"], result["detail"]) == (1, False, "exit code 1")
    assert "['-s', 'upstream', '--', 'verl', 'main']" in result["log"]
    assert run(tmp_path, "verl-upstream-main", "--nox", nox(tmp_path, "upstream"))[0] == 0
    _, result = run(tmp_path, "sweep", "--nox", nox(tmp_path, "sweep", code=1), "--narrow=--out 'a b'")
    assert "['-s', 'sweep', '--', '--newest', '--out', 'a b']" in result["log"], "not the frozen history"


def test_the_newest_release_is_no_pre_release_and_not_yanked(monkeypatch: pytest.MonkeyPatch) -> None:
    table = [("0.9.0", False, "a"), ("0.10.0", False, "b"), ("0.11.0", True, "c"), ("0.12.0rc1", False, "d")]
    releases = [{"upstream": "u", "version": v, "yanked": y, "fix": "f", "verdict": w} for v, y, w in reversed(table)]
    ran = judge.Ran(0, json.dumps({"rows": releases}), "")
    monkeypatch.setattr(nightly_run, "_unhang", lambda *words: ran)
    assert nightly_run._newest() == {("u", "f"): "b"}


def test_the_radar_judges_what_the_index_has_and_the_matrix_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with fake_index.serving(fake_index.FakeIndex()) as index:
        monkeypatch.setenv("UNHANG_INDEX", index.url)
        index.add("verl", "99.0.0", {ENGINE: fake_index.UNCLEAR})
        code, result = run(tmp_path, "verl-radar")
    assert (code, result["green"]) == (1, False)
    assert "verl 99.0.0: mtp-cp-deadlock is unlisted: MegatronEngine.forward_backward_batch" in result["log"]


def publish(work: Path, repository: Path) -> Path:
    """Make a folder's files the branch main of a new bare repository; return the repository."""
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q", "-b", "main"], ["add", "."], [*identity, "commit", "-q", "-m", "a"]):
        environments.run("git", *command, cwd=work)
    environments.run("git", "clone", "-q", "--bare", str(work), str(repository), cwd=work)
    return repository


@pytest.fixture
def verl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose branch main is a stand-in for verl."""
    work = environments.verl(tmp_path / "work", "99.0.0")
    environments.write(work, {ENGINE: ""})
    monkeypatch.setenv("UNHANG_VERL_CLONE", str(tmp_path / "verl.git"))
    return publish(work, tmp_path / "verl.git")


@pytest.fixture
def megatron(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose branch main is a stand-in for Megatron-LM."""
    monkeypatch.setenv("UNHANG_MEGATRON_CLONE", str(tmp_path / "megatron.git"))
    return publish(environments.core(tmp_path / "core", "99.0.0"), tmp_path / "megatron.git")


@pytest.mark.slow
@pytest.mark.parametrize(("job", "word"), [("check-main", "clone"), ("prove-pre-release", "ls-remote")])
def test_a_source_that_cannot_be_fetched_is_trouble(
    job: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNHANG_VERL_CLONE", f"file://{tmp_path}/nowhere")
    code, result = run(tmp_path, f"verl-{job}")
    assert (code, result["detail"]) == (1, "the source could not be fetched")
    assert result["log"].startswith(f"git {word} ")
    assert "fatal: " in result["log"]


def test_the_tip_of_a_branch_is_checked(tmp_path: Path, verl: Path) -> None:
    code, result = run(tmp_path, "verl-check-main")
    assert (code, result["green"]) == (1, False)
    assert "verl branch main: mtp-cp-deadlock is unlisted: MegatronEngine.forward_backward_batch" in result["log"]


def prover(tmp_path: Path) -> Path:
    """Write a stand-in for nox: the answer of its `prove` is the option and the content of the folder."""
    text = """\
        import json, os, sys
        option, folder = sys.argv[sys.argv.index("--") + 1 :][:2]
        detail = " ".join([option, *sorted(name for name in os.listdir(folder) if name[0] != ".")])
        row = {"upstream": "verl", "fix": "f", "case": "c", "detail": detail, "untouched": None, "patched": None}
        print("nox > python -m pip install")
        print(json.dumps({"results": [{**row, "answer": "unknown"}]}, indent=1))
        sys.exit(1)
        """
    environments.write(tmp_path, {"prover.py": text})
    return tmp_path / "prover.py"


@pytest.mark.usefixtures("verl", "megatron")
def test_a_branch_is_proved_with_megatron_beside_it(tmp_path: Path) -> None:
    code, result = run(tmp_path, "verl-prove-main", "--nox", prover(tmp_path))
    assert (code, result["log"]) == (1, "verl f c: unknown: --source megatron verl")


def test_the_newest_pre_release_is_tested_and_proved_by_its_tag_until_the_release(
    tmp_path: Path, verl: Path, megatron: Path
) -> None:
    for tag in "v0.8.0", "v0.10.0rc1", "v0.10.0.rc2", "v-nonsense", "other":
        environments.run("git", "tag", tag, "main", cwd=verl)
    failing = nox(tmp_path, "upstream", "prove", code=1)
    result = run(tmp_path, "verl-upstream-pre-release", "--nox", failing)[1]
    assert "['-s', 'upstream', '--', 'verl', 'v0.10.0.rc2']" in result["log"]
    result = run(tmp_path, "verl-prove-pre-release", "--nox", prover(tmp_path))[1]
    assert result["log"] == "verl f c: unknown: --source megatron verl"
    environments.run("git", "tag", "v0.10.0", "main", cwd=verl)
    for kind in "upstream", "prove":
        code, result = run(tmp_path, f"verl-{kind}-pre-release", "--nox", failing)
        assert (code, result["detail"]) == (0, "not run: no tag of a pre-release is newer than the newest release's")
