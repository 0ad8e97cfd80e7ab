"""docs/osv.md: what pip-audit and uv report of real lock files, and that they are quiet once the code is rewritten."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import cli, environments
from support.checkout import REPOSITORY

PAGE = REPOSITORY / "docs" / "osv.md"
PROJECT = """\
[project]
name = "job"
version = "1"
requires-python = ">=3.10"
dependencies = ["verl==0.7.1"]
"""
LOCK = """\
version = 1
revision = 3
requires-python = ">=3.10"

[[package]]
name = "job"
version = "1"
source = { virtual = "." }
dependencies = [{ name = "verl" }]

[package.metadata]
requires-dist = [{ name = "verl", specifier = "==0.7.1" }]

[[package]]
name = "verl"
version = "0.7.1"
source = { registry = "SERVICE/simple" }
sdist = { url = "SERVICE/verl-0.7.1.tar.gz", hash = "sha256:HASH", size = 1 }
""".replace("HASH", "0" * 64)


def commands() -> list[str]:
    """Return the commands of the page, each with the lines that it goes on in."""
    found: list[str] = []
    for line in re.findall(r"^    (.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE):
        if line.startswith("  "):
            found[-1] = f"{found[-1]}\n{line}"
        else:
            found.append(line)
    return found


def command(start: str) -> str:
    """Return the one command of the page that begins so."""
    (found,) = (it for it in commands() if it.startswith(start))
    return found


def scans(service: str, *, quiet: bool) -> list[str]:
    """Return the page's commands that scan with pip-audit and uv, without the ids of quiet.txt or with them."""
    mine = [it for it in commands() if it.startswith(("pip-audit", "uv audit")) and ("quiet.txt" in it) is quiet]
    assert len(mine) == 2
    return [it.replace("http://127.0.0.1:8765", service) for it in mine]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A folder with a project and its pins, and the tools of the page."""
    for name, text in {"pyproject.toml": PROJECT, "requirements.txt": "verl==0.7.1\n"}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "docs").symlink_to(REPOSITORY / "docs")
    tools = tmp_path / "tools"
    tools.mkdir()
    python = f'#!/bin/sh\nexec {sys.executable} {{}} "$@"\n'
    for name, words in {"unhang": "-m unhang", "pip-audit": "-m pip_audit", "python": ""}.items():
        (tools / name).write_text(python.format(words))
        (tools / name).chmod(0o755)
    (tools / "uv").symlink_to(environments.uv())
    return tmp_path


def run(job: Path, script: str, **more: str) -> cli.Ran:
    """Run a command of the page; its caches are of this test."""
    path = os.pathsep.join([str(job / "tools"), os.environ["PATH"]])
    env = cli.environ({"PATH": path, "XDG_CACHE_HOME": str(job / "cache"), **more})
    done = subprocess.run(["sh", "-c", script], cwd=job, env=env, capture_output=True, text=True, check=False)
    return cli.Ran(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def service(job: Path) -> Iterator[str]:
    """The service of the page, with all advisories; gives its address."""
    ran = run(job, command("unhang matrix"))
    assert ran.code == 0, ran
    assert command("osv-scanner") in ran.err
    words = command("python docs/osv/serve.py").replace("8765 &", "").split()[1:]
    process = subprocess.Popen([sys.executable, *words], cwd=job, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().split(" at ")[1].strip()
        (job / "uv.lock").write_text(LOCK.replace("SERVICE", address))  # uv asks the index whether the project is alive
        yield address
    finally:
        process.terminate()
        process.communicate()


def needed() -> set[str]:
    """Return the ids of the advisories that verl 0.7.1 has, as the matrix has them."""
    rows = cli.called_with_all("matrix", "--upstream", "verl", "--version", "0.7.1", "--output-format", "json").json
    return {f"x_unhang-{row['fix']}" for row in rows["rows"] if row["verdict"] == "needed"}


@pytest.mark.slow
def test_both_scanners_report_a_lock_file_until_the_code_is_rewritten(job: Path, service: str) -> None:
    if not shutil.which("jq"):
        pytest.skip("the page uses jq")
    for script in scans(service, quiet=False):
        ran = run(job, script)
        assert ran.code == 1, ran
        assert {*re.findall(r"x_unhang-[a-z0-9-]+", ran.out)} == needed()
        assert "osv.dev" not in ran.out  # it has no page of these
    site = cli.unpack_targets(job / "site", ("verl", "0.7.1"))
    check = command("unhang check").replace("check", f"check --target {site}")
    for expected in (1, 0):
        if not expected:
            assert cli.called_with_all("apply", "--target", site).code == 0
        for script in (check, command("jq")):
            ran = run(job, script)
            assert ran.code == 0, ran
        for script in scans(service, quiet=True):
            ran = run(job, script)
            assert ran.code == expected, ran
    assert run(job, command("sed")).code == 0
    assert {*re.findall(r'id = "(.*)"', (job / "quiet.toml").read_text())} >= needed()
