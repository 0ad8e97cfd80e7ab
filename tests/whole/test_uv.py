"""docs/uv.md: which patches survive in a project of uv, with its real commands."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from support import cli, environments, pages, wheels

PAGE = Path(__file__).parents[2] / "docs" / "uv.md"
ENGINE = "verl/workers/engine/megatron/transformer_impl.py"
PROJECT = """\
[project]
name = "job"
version = "1"
requires-python = "=={minor}.*"
dependencies = {needs}

[[tool.uv.index]]
name = "published"
url = "{index}"
format = "flat"
default = true
"""


class Project(NamedTuple):
    """A project of uv, offline. Its index is a folder with verl 0.7.1, without verl's requirements."""

    folder: Path
    env: dict[str, str]

    def write(self, *needs: str) -> None:
        minor = f"{sys.version_info.major}.{sys.version_info.minor}"
        text = PROJECT.format(minor=minor, needs=list(needs), index=self.env["PIP_FIND_LINKS"])
        (self.folder / "pyproject.toml").write_text(text)

    def sh(self, script: str) -> cli.Ran:
        """Run a script; the first command that fails ends it."""
        command = ["sh", "-e", "-c", script]
        done = subprocess.run(command, cwd=self.folder, env=self.env, capture_output=True, text=True, check=False)
        return cli.Ran(done.returncode, done.stdout, done.stderr)

    def must(self, script: str) -> str:
        """Run a script that must succeed, and return its stdout."""
        ran = self.sh(script)
        assert ran.code == 0, ran
        return ran.out

    def is_patched(self) -> bool:
        """Return whether `.venv` has the fix, as `check` says and as the file shows."""
        ran = self.sh("unhang check --fix mtp-cp-deadlock")
        assert ran.out.startswith(f"environment: {self.folder}/.venv/bin/python (found by .venv)\n"), ran
        (file,) = self.folder.glob(f".venv/lib/*/site-packages/{ENGINE}")
        assert (ran.code == 0) is (b"# unhang mtp-cp-deadlock" in file.read_bytes())
        return ran.code == 0


@pytest.fixture
def project(tmp_path: Path) -> Project:
    index, tools, folder = tmp_path / "index", tmp_path / "tools", tmp_path / "job"
    for made in tools, folder:
        made.mkdir()
    wheels.alone("verl", "0.7.1", index)
    (tools / "uv").symlink_to(environments.uv())
    (tools / "unhang").write_text(f'#!/bin/sh\nexec {sys.executable} -m unhang "$@"\n')
    (tools / "unhang").chmod(0o755)
    neutral = {name: value for name, value in cli.environ().items() if not name.startswith(("UV_", "PIP_"))}
    path = os.pathsep.join([str(tools), str(Path(environments.pip_python()).parent), os.environ["PATH"]])
    env = {**neutral, "PATH": path, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)}
    env |= {"UV_OFFLINE": "1", "UV_CACHE_DIR": str(tmp_path / "cache"), "UV_PYTHON": sys.executable}
    made_project = Project(folder, env)
    made_project.write("verl==0.7.1")
    return made_project


@pytest.mark.slow
def test_a_locked_patched_wheel_survives_every_sync(project: Project, tmp_path: Path) -> None:
    project.must("uv sync")
    assert not project.is_patched()
    project.must(pages.example(PAGE, "lock"))
    assert pages.example(PAGE, "source") in (project.folder / "pyproject.toml").read_text()
    assert project.is_patched()
    for command in ("uv sync --reinstall", "uv lock --upgrade && uv sync", "rm -r .venv && uv sync --locked"):
        project.must(command)
        assert project.is_patched(), command
    copied = "mkdir ../image && cp -R pyproject.toml uv.lock wheels ../image && cd ../image && uv sync --locked"
    project.must(f"{copied} && unhang check --require mtp-cp-deadlock")
    layered = project.must("uv run --with ./wheels/*.whl --isolated unhang check --require mtp-cp-deadlock")
    assert "(found by $VIRTUAL_ENV)" in layered

    other = "rm wheels/* && unhang wheel verl==0.7.1 --fix fsdp2-buffer-order -o wheels/"
    project.must(other)
    ran = project.sh("uv sync --reinstall")
    assert (ran.code != 0, "Hash mismatch" in ran.err) == (True, True), ran
    project.must("uv remove verl && uv add wheels/verl-0.7.1+unhang.*.whl")
    assert not project.is_patched(), "that wheel has another fix"
    project.must("uv remove verl && uv add verl==0.7.1")
    assert "wheels/" not in (project.folder / "uv.lock").read_text()


@pytest.mark.slow
def test_a_package_that_comes_with_another_one_is_replaced_too(project: Project) -> None:
    trainer = environments.write(project.folder / "trainer", {"verl_trainer.py": ""})
    needs = '[project]\nname = "trainer"\nversion = "1"\ndependencies = ["verl==0.7.1"]\n'
    (trainer / "pyproject.toml").write_text(needs + "[tool.setuptools]\npy-modules = ['verl_trainer']\n")
    environments.build(trainer, Path(project.env["PIP_FIND_LINKS"]))
    trainers = ".venv/lib/*/site-packages/verl_trainer.py"
    project.must("uv sync && env -u UV_PYTHON uv pip install trainer")  # with it, into the interpreter of these tests
    assert list(project.folder.glob(trainers))
    project.must("uv sync")
    assert not list(project.folder.glob(trainers)), "why unhang is not put there"
    project.write("trainer")
    project.must("uv sync")
    assert not project.is_patched()
    project.must(pages.example(PAGE, "lock"))
    assert project.is_patched()


@pytest.mark.slow
def test_a_patched_environment_keeps_its_fixes_until_uv_installs_again(project: Project) -> None:
    project.must(pages.example(PAGE, "patch"))
    run = pages.example(PAGE, "run")
    (project.folder / "train.py").touch()
    for command in ("uv sync", "uv run python -c pass", "uv lock --upgrade && uv sync", run):
        project.must(command)
        assert project.is_patched(), f"{command} has nothing to install"
    for command in ("uv sync --reinstall", "uv sync --reinstall-package verl", "rm -r .venv && uv sync"):
        project.must(command)
        assert not project.is_patched(), command
        ran = project.sh(run)
        assert (ran.code, "required fix not in place: fused-head-no-gradient" in ran.err.splitlines()[-1]) == (
            1,
            True,
        ), ran
        assert "patched before, and reverted, reinstalled or restored since" in ran.out or "rm -r" in command
        project.must("unhang apply")

    # someone else's commit asks for another release: what was checked is what runs, unless uv syncs in between
    wheels.alone("verl", "0.7.0", Path(project.env["PIP_FIND_LINKS"]))
    project.write("verl==0.7.0")
    project.must(f"uv lock\n{run}\nUV_NO_SYNC=1 uv run python train.py")
    assert project.is_patched()
    project.must("uv run python train.py")
    assert [path.name for path in project.folder.glob(".venv/lib/*/site-packages/verl-*")] == ["verl-0.7.0.dist-info"]
