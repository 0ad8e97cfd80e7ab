"""Nightly jobs, run on a local git server and package index, with a stand-in for nox."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nightly_plan as plan
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
        if "--list" in sys.argv: sys.exit(print("[]"))
        print(sys.argv[1:])
        sys.exit({code})
        """
    environments.write(tmp_path, {"nox.py": text})
    return tmp_path / "nox.py"


def test_a_missing_session_is_not_green(tmp_path: Path) -> None:
    code, result = run(tmp_path, "proofs", "--nox", nox(tmp_path, "sweep"))
    assert (code, result["outcome"]) == (1, "missing")
    assert result["detail"] == "noxfile.py has no session 'proofs': it was not run"
    sessions = set(re.findall(r"^def (\w+)\(session", (REPOSITORY / "noxfile.py").read_text(), flags=re.MULTILINE))
    assert {job.what for job in plan.jobs()} - {plan.CHECK, plan.RADAR} <= sessions, "the real one has all"


def test_a_session_gets_its_arguments_and_is_judged_by_its_code(tmp_path: Path) -> None:
    code, result = run(tmp_path, "verl-tests-main", "--nox", nox(tmp_path, "upstream", code=1))
    assert (code, result["outcome"], result["detail"]) == (1, "trouble", "exit code 1")
    assert "['-s', 'upstream', '--', 'verl', 'main']" in result["log"]
    assert run(tmp_path, "verl-tests-main", "--nox", nox(tmp_path, "upstream"))[0] == 0
    _, result = run(tmp_path, "sweep", "--nox", nox(tmp_path, "sweep", code=1))
    assert "['-s', 'sweep', '--', '--newest']" in result["log"], "not the frozen history"


def test_the_radar_judges_what_the_index_has_and_the_matrix_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with fake_index.serving(fake_index.FakeIndex()) as index:
        monkeypatch.setenv("UNHANG_INDEX", index.url)
        index.add("verl", "99.0.0", {ENGINE: fake_index.UNCLEAR})
        code, result = run(tmp_path, "verl-radar")
    assert (code, result["outcome"]) == (1, "trouble")
    assert "verl release 99.0.0 mtp-cp-deadlock unlisted MegatronEngine.forward_backward_batch" in result["log"]


def publish(work: Path, repository: Path) -> Path:
    """Make a folder's files the branch main of a new bare repository; return the repository."""
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q", "-b", "main"], ["add", "."], [*identity, "commit", "-q", "-m", "a"]):
        environments.run("git", *command, cwd=work)
    environments.run("git", "clone", "-q", "--bare", str(work), str(repository), cwd=work)
    return repository


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    """A repository on the server: its branch main is a stand-in for verl."""
    work = environments.verl(tmp_path / "work", "99.0.0")
    environments.write(work, {ENGINE: ""})
    return publish(work, tmp_path / "server" / "verl-project" / "verl")


@pytest.mark.slow
def test_a_branch_or_an_index_that_cannot_be_reached_is_trouble(
    tmp_path: Path, remote: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNHANG_INDEX", "http://127.0.0.1:9/simple/")
    code, result = run(tmp_path, "verl-main", "--remote", f"file://{tmp_path}/nowhere")
    assert (code, result["detail"]) == (1, "the source could not be fetched")
    assert result["log"].startswith("git clone failed with 128: ")
    session = nox(tmp_path, "prove")
    code, result = run(tmp_path, "verl-prove-pre-release", "--remote", f"file://{tmp_path}/server", "--nox", session)
    assert (code, result["detail"]) == (1, "the source could not be fetched")
    assert "the index has no answer about verl" in result["log"]


def test_the_tip_of_a_branch_is_checked(tmp_path: Path, remote: Path) -> None:
    code, result = run(tmp_path, "verl-main", "--remote", f"file://{tmp_path}/server")
    assert (code, result["outcome"]) == (1, "trouble")
    assert "verl branch main mtp-cp-deadlock unlisted MegatronEngine.forward_backward_batch" in result["log"]


@pytest.fixture
def server(tmp_path: Path, remote: Path) -> str:
    """The server's URL, with stand-ins for verl and Megatron-LM."""
    publish(environments.core(tmp_path / "core", "99.0.0"), tmp_path / "server" / "NVIDIA" / "Megatron-LM")
    return f"file://{tmp_path}/server"


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[fake_index.FakeIndex]:
    with fake_index.serving(fake_index.FakeIndex()) as index:
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        monkeypatch.delenv("UNHANG_INDEX", raising=False)
        index.add("verl", "0.9.0", {"verl/a.py": ""})
        yield index


def prover(tmp_path: Path) -> Path:
    """Write a stand-in for nox: the answer of its `prove` is the option and the content of the folder."""
    text = """\
        import json, os, sys
        if "--list" in sys.argv: sys.exit(print("[]"))
        option, folder = sys.argv[sys.argv.index("--") + 1 :][:2]
        detail = " ".join([option, *sorted(name for name in os.listdir(folder) if name[0] != ".")])
        row = {"upstream": "verl", "fix": "f", "case": "", "detail": detail, "untouched": None, "patched": None}
        print("nox > python -m pip install")
        print(json.dumps({"results": [{**row, "answer": "unknown"}]}, indent=1))
        sys.exit(1)
        """
    environments.write(tmp_path, {"prover.py": text})
    return tmp_path / "prover.py"


def test_a_branch_is_proved_with_megatron_beside_it(tmp_path: Path, server: str) -> None:
    code, result = run(tmp_path, "verl-prove-main", "--remote", server, "--nox", prover(tmp_path))
    assert (code, result["log"]) == (1, "verl f unknown: --source megatron verl")


def test_a_tagged_pre_release_is_tested_and_proved_by_its_tag(
    tmp_path: Path, server: str, remote: Path, served: fake_index.FakeIndex
) -> None:
    for tag in "v0.8.0", "v0.10.0rc1", "v0.10.0.rc2", "v-nonsense", "other":
        environments.run("git", "tag", tag, "main", cwd=remote)
    options = ["--remote", server, "--nox"]
    result = run(tmp_path, "verl-tests-pre-release", *options, nox(tmp_path, "upstream", code=1))[1]
    assert "['-s', 'upstream', '--', 'verl', 'v0.10.0.rc2']" in result["log"]
    result = run(tmp_path, "verl-prove-pre-release", *options, prover(tmp_path))[1]
    assert result["log"] == "verl f unknown: --source megatron verl"


def test_a_pre_release_without_a_tag_is_proved_from_its_wheel_and_not_tested(
    tmp_path: Path, server: str, remote: Path, served: fake_index.FakeIndex
) -> None:
    metadata = "Metadata-Version: 2.1\nWheel-Version: 1.0\nName: verl\nVersion: 0.10.0.dev0\n"
    about = {f"verl-0.10.0.dev0.dist-info/{name}": metadata for name in ("METADATA", "WHEEL")}
    served.add("verl", "0.10.0.dev0", {"verl/a.py": "", "of_the_wheel.py": "", **about})
    options = ["--remote", server, "--nox"]
    result = run(tmp_path, "verl-prove-pre-release", *options, prover(tmp_path))[1]
    assert result["log"].startswith("verl f unknown: --target megatron of_the_wheel.py")
    code, result = run(tmp_path, "verl-tests-pre-release", *options, nox(tmp_path, "upstream", code=1))
    assert (code, result["detail"]) == (0, "not run: 0.10.0.dev0 has no tag, and its wheel has no tests")


@pytest.mark.parametrize("kind", ["tests", "prove"])
def test_a_pre_release_older_than_the_newest_release_is_not_run(
    kind: str, tmp_path: Path, server: str, remote: Path, served: fake_index.FakeIndex
) -> None:
    environments.run("git", "tag", "v0.9.0rc1", "main", cwd=remote)
    served.add("verl", "0.8.0.dev0", {"verl/a.py": ""})
    session = nox(tmp_path, "upstream", "prove", code=1)
    code, result = run(tmp_path, f"verl-{kind}-pre-release", "--remote", server, "--nox", session)
    assert (code, result["detail"]) == (0, "not run: no pre-release is newer than the newest release")
