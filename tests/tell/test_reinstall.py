"""How to have the plain release back without a receipt: from what pip or uv left on record, or from git."""

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from support import cli, environments
from unhang.find.metadata import read
from unhang.records import Environment, Installation
from unhang.tell import reinstall

COMMIT, SHA256 = "c0ffee" * 6 + "1234", "ab" * 32
URL = "https://h/v.whl"
ENGINE = "verl/workers/engine/megatron/transformer_impl.py"
PIP = "pip --python {prefix}/bin/python install --force-reinstall --no-deps "
UV = "uv pip install --python {prefix}/bin/python --no-deps --reinstall-package megatron-core "
PLAIN = "install the plain release: "
UNKNOWN = "nothing says where this megatron-lm 0.17.1 came from: reinstall it the way it was installed"


def advise(
    prefix: Path, installer: str | None, direct: Any = None, name: str = "megatron_core-0.17.1", root: str = "site"
) -> str:
    """The advice for an installation with this INSTALLER and this direct_url.json."""
    folder = prefix / root / f"{name}.dist-info"
    folder.mkdir(parents=True)
    if installer is not None:
        (folder / "INSTALLER").write_text(installer)
    if direct is not None:
        (folder / "direct_url.json").write_text(direct if isinstance(direct, str) else json.dumps(direct))
    where = str(prefix / root)
    place = Installation("megatron-lm", "0.17.1", where, where, where, "wheel", str(folder / "RECORD"), ())
    return reinstall.advice(place, Environment(f"{prefix}/bin/python", str(prefix), ".venv"), f"{where}/file.py")


@pytest.mark.parametrize(
    ("installer", "direct", "advice"),
    [
        ("pip\n", None, PLAIN + PIP + "megatron-core==0.17.1"),
        ("uv", None, PLAIN + UV + "megatron-core==0.17.1"),
        ("pip\n", {"url": URL, "archive_info": {}}, PLAIN + PIP + URL),
        ("uv", {"url": URL, "archive_info": {"hashes": {"sha256": SHA256}}}, PLAIN + UV + f"'{URL}#sha256={SHA256}'"),
        (
            "pip\n",
            {"url": "https://h/v.git", "vcs_info": {"vcs": "git", "commit_id": COMMIT}, "subdirectory": "py"},
            PLAIN + PIP + f"'git+https://h/v.git@{COMMIT}#subdirectory=py'",
        ),
        (
            "pip\n",
            {"url": "file:///gone/it%20is/v.whl", "archive_info": {}},
            "it was installed from /gone/it is/v.whl, which is gone: "
            "reinstall megatron-core 0.17.1 from where that came from",
        ),
        (
            "pip\n",
            {"url": "file:///usr", "dir_info": {}},
            "it was installed from /usr; if that is not patched itself: " + PIP + "file:///usr",
        ),
        (None, None, "nothing says what installed it: reinstall megatron-core 0.17.1 the same way"),
        ("$(id)", None, "nothing says what installed it: reinstall megatron-core 0.17.1 the same way"),
        ("conda\n", None, "conda installed it: reinstall megatron-core 0.17.1 the same way"),
        ("pip\n", "{", UNKNOWN),
        ("pip\n", {"url": "--index-url=http://h"}, UNKNOWN),
        ("pip\n", {"url": "https://h/\n"}, UNKNOWN),
        ("pip\n", {"url": "https://h/v", "vcs_info": {"vcs": "git", "commit_id": "main"}}, UNKNOWN),
    ],
)
def test_the_installers_record_gives_the_command(
    installer: str | None, direct: Any, advice: str, tmp_path: Path
) -> None:
    assert advise(tmp_path, installer, direct) == advice.format(prefix=tmp_path)


def test_outside_of_the_environment_the_folder_is_named(tmp_path: Path) -> None:
    advise(tmp_path, "pip", root="a site")
    where = environments.core(tmp_path / "a site")
    record = where / "megatron_core-0.17.1.dist-info/RECORD"
    record.write_text("megatron/core/__init__.py,sha256=x,0\n")
    package = f"{where}/megatron/core"
    place = Installation("megatron-core", "0.17.1", str(where), str(where), package, "wheel", str(record), ())
    folder, elsewhere = Environment(None, "/elsewhere", "--target"), Environment("/v/bin/python", "/v", "--python")
    for environment in folder, elsewhere:
        found = reinstall.advice(place, environment, "")
        assert found == f"{PLAIN}pip install --target '{where}' --upgrade --no-deps megatron-core==0.17.1"
    environments.write(where, {"megatron/energon/__init__.py": ""})  # which that command would delete
    assert reinstall.advice(place, folder, "") == "pip installed it: reinstall megatron-core 0.17.1 the same way"
    (record.parent / "INSTALLER").write_text("uv\n")
    read.cache_clear()
    command = f"uv pip install --target '{where}' --no-deps --reinstall-package megatron-core megatron-core==0.17.1"
    assert reinstall.advice(place, folder, "") == PLAIN + command


def test_a_name_that_no_installer_writes_is_not_put_into_a_command(tmp_path: Path) -> None:
    assert advise(tmp_path, "pip", name="--index-url=x-0.17.1") == UNKNOWN


@pytest.mark.slow
def test_a_real_wheel_that_pip_installed_is_plain_again_after_the_command(tmp_path: Path) -> None:
    """A wheel installed from its file: without an index, the command can be run here."""
    project = environments.project(cli.unpack_targets(tmp_path / "a project", ("verl", "0.7.1")), "verl", "0.7.1")
    for folder in (project / ENGINE).parents:
        if folder == project:
            break
        (folder / "__init__.py").touch()
    env = environments.make_env(tmp_path / "env")
    env.install(environments.build(project, tmp_path / "built wheels"))
    before = cli.tree(env.site)
    cli.applied("--python", env.python)
    shutil.rmtree(env.site / ".unhang")
    ran = cli.called("revert", "--python", env.python)
    assert ran.code == 1
    assert f"patched, and no receipt has its original bytes: {env.site / ENGINE}\n" in ran.err
    (hint,) = (line for line in ran.err.splitlines() if line.startswith("  hint: "))
    program, *words = shlex.split(hint.partition("not patched itself: ")[2])
    assert program == "pip"
    environments.run(environments.pip_python(), "-m", "pip", *words, "--no-index", "-q", cwd=tmp_path)
    assert cli.tree(env.site) == before


def test_a_checkout_is_compared_with_git_before_anything_is_taken_back(tmp_path: Path) -> None:
    top = cli.unpack_targets(tmp_path / "a checkout", ("verl", "0.7.1"))
    shutil.rmtree(top / "verl-0.7.1.dist-info")
    identity = ["-c", "user.name=x", "-c", "user.email=x@x"]
    for words in ["init", "-q"], ["add", "-A"], [*identity, "commit", "-q", "-m", "plain"]:
        environments.run("git", *words, cwd=top)
    before = (top / ENGINE).read_bytes()
    cli.applied("--source", top, "--fix", "mtp-cp-deadlock")
    shutil.rmtree(top / ".unhang")
    ran = cli.called("revert", "--source", top)
    assert ran.code == 1
    see, only, commits = (
        shlex.split(part.partition(": ")[2]) for part in ran.err.splitlines()[-1].partition("hint: ")[2].split("; ")
    )
    assert "# unhang mtp-cp-deadlock" in environments.run(*see, cwd=tmp_path)
    assert environments.run(*commits, cwd=tmp_path) == ""
    environments.run("git", *identity, "commit", "-q", "-a", "-m", "patched", cwd=top)
    assert environments.run(*see, cwd=tmp_path) == ""
    assert environments.run(*commits, cwd=tmp_path).endswith(" patched\n")
    environments.run("git", "reset", "-q", "--soft", "HEAD^", cwd=top)
    environments.run(*only, cwd=tmp_path)
    assert (top / ENGINE).read_bytes() == before
    assert environments.run("git", "status", "--short", cwd=top) == ""
