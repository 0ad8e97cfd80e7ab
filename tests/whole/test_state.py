"""The state lies with the files: whatever name an environment goes by, `revert` finds what `apply` did."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import libcst
import pytest

import unhang
from support import cli, environments
from support.environments import Env
from unhang.store import disk
from unhang.store.lock import exclusive

ENGINE = "verl/workers/engine/megatron/transformer_impl.py"
VERL, SWIFT = ("verl", "0.7.1"), ("ms-swift", "4.6.0")
Words = list[str]


@pytest.fixture
def env(tmp_path: Path) -> Env:
    made = environments.make_env(tmp_path / "env")
    cli.unpack_targets(made.site, VERL)
    return made


def borrowing(env: Env) -> Env:
    """An environment that has the other one's packages, as `uv run --with` and `--system-site-packages` make it."""
    other = environments.make_env(env.prefix.parent / "other")
    (other.site / "borrowed.pth").write_text(f"{env.site}\n")
    return other


def moved(env: Env) -> Words:
    return ["--target", str(shutil.move(env.site, env.prefix.parent / "elsewhere"))]


def through_a_link(env: Env) -> Words:
    (env.prefix.parent / "alias").symlink_to(env.site)
    return ["--target", str(env.prefix.parent / "alias")]


def borrowed(env: Env) -> Words:
    return ["--python", str(borrowing(env).python)]


@pytest.mark.slow
@pytest.mark.parametrize("then", [lambda env: ["--target", str(env.site)], moved, through_a_link, borrowed])
def test_revert_finds_it_by_another_name(env: Env, then: Callable[[Env], Words]) -> None:
    before = cli.tree(env.site)
    cli.applied("--python", env.python)
    assert not (env.prefix / "share").exists()
    words = then(env)
    ran = cli.unhang("revert", *words)
    assert (ran.code, "reverted 1 file in " in ran.err) == (0, True), ran.err
    left = words[1] if words[0] == "--target" else env.site
    assert cli.tree(Path(left)) == before


def test_revert_works_after_the_borrowing_environment_is_gone(env: Env) -> None:
    """`uv run --with` makes one for the length of a command."""
    before, other = cli.tree(env.site), borrowing(env)
    cli.applied("--python", other.python)
    shutil.rmtree(other.prefix)
    assert cli.unhang("revert", "--python", env.python).code == 0
    assert cli.tree(env.site) == before


def test_a_copy_of_an_environment_has_its_own_receipt(env: Env, tmp_path: Path) -> None:
    before = cli.tree(env.site)
    cli.applied("--target", env.site)
    patched, copy = cli.tree(env.site), Path(shutil.copytree(env.site, tmp_path / "copy"))
    assert str(tmp_path) not in (copy / ".unhang/receipt.json").read_text()
    assert cli.unhang("revert", "--target", copy).code == 0
    assert (cli.tree(copy), cli.tree(env.site)) == (before, patched)


@pytest.mark.slow
def test_uv_run_with_keeps_the_receipt(tmp_path: Path) -> None:
    """The audit's case: the command patches .venv, and its own environment is deleted when it ends."""
    env = environments.make_env(tmp_path / "project/.venv")
    cli.unpack_targets(env.site, VERL)
    before = cli.tree(env.site)
    stub = environments.build(environments.project(tmp_path / "extra", "extra", "1.0"), tmp_path / "wheels")
    run = [
        "env",
        "-u",
        "VIRTUAL_ENV",
        environments.uv(),
        "--offline",
        "--no-config",
        "--cache-dir",
        str(tmp_path / "cache"),
    ]
    run += ["run", "--no-sync", "--no-project"]
    code = "import sys; sys.path += sys.argv.pop(1).split(':'); from unhang.cli.main import run; run()"
    unhang_and_libcst = os.pathsep.join({str(Path(module.__file__ or "").parents[1]) for module in (unhang, libcst)})
    done = environments.run(
        *run, "--with", str(stub), "python", "-c", code, unhang_and_libcst, "apply", cwd=tmp_path / "project"
    )
    assert "applied" in done
    assert cli.installed("revert", "--python", env.python).code == 0
    assert cli.tree(env.site) == before


# Several roots


@pytest.fixture
def two(env: Env, tmp_path: Path) -> tuple[Env, Path]:
    """An environment with verl, and a checkout of ms-swift on its path."""
    checkout = cli.unpack_targets(tmp_path / "checkout", SWIFT)
    (env.site / "checkout.pth").write_text(f"{checkout}\n")
    return env, checkout


def test_each_root_has_its_state_and_revert_takes_both_back(two: tuple[Env, Path]) -> None:
    env, checkout = two
    before = cli.tree(env.site), cli.tree(checkout)
    ran = cli.unhang("apply", "--python", env.python, "--output-format", "json")
    assert ran.code == 0
    wanted = [{"root": str(root), "changed": True, "error": None} for root in sorted((env.site, checkout))]
    assert ran.json["roots"] == wanted
    assert all((root / ".unhang/receipt.json").exists() for root in (env.site, checkout))
    assert cli.unhang("revert", "--python", env.python).code == 0
    assert (cli.tree(env.site), cli.tree(checkout)) == before


@pytest.mark.parametrize("command", ["apply", "revert"])
def test_a_root_that_fails_leaves_the_other_whole(two: tuple[Env, Path], command: str) -> None:
    env, checkout = two
    if command == "revert":
        cli.applied("--python", env.python)
    shutil.rmtree(checkout / ".unhang", ignore_errors=True)
    (checkout / ".unhang").mkdir()
    (checkout / ".unhang/.gitignore").write_text("*")
    (checkout / ".unhang/journal.json").write_text("{}")  # it cannot be recovered from
    before = cli.tree(checkout)
    ran = cli.unhang(command, "--python", env.python, "--output-format", "json")
    assert (ran.code, cli.tree(checkout)) == (1, before)
    roots = {row["root"]: (row["changed"], row["error"] and row["error"]["code"]) for row in ran.json["roots"]}
    assert roots == {str(env.site): (True, None), str(checkout): (False, "bad-journal")}
    assert f"interrupted in {checkout}:\nerror[bad-journal]" in ran.err
    assert (b"# unhang mtp" in (env.site / ENGINE).read_bytes()) is (command == "apply")
    again = cli.unhang(command, "--python", env.python)
    assert again.code == 2, "now nothing can be changed at all"


# The folder


def test_the_folder_takes_the_roots_mode_and_owner_and_its_parent_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    if os.geteuid() == 0:
        os.chown(site, 1234, 1234)
    site.chmod(0o2775)
    synced: list[str] = []
    monkeypatch.setattr(disk, "sync_dir", synced.append)
    with exclusive(str(site / ".unhang")):
        found, above = (site / ".unhang").stat(), site.stat()
        assert (found.st_mode, found.st_uid, found.st_gid) == (above.st_mode, above.st_uid, above.st_gid)
    assert synced == [str(site)]
