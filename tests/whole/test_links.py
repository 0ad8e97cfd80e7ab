"""Environments whose files are links: judged by what these lead to, which `apply` and `revert` leave as it is."""

import os
import py_compile
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from support import cli, environments, wheels
from unhang.store import dist_info

VERL = ("verl", "0.7.1")
ENGINE = "verl/workers/engine/megatron/transformer_impl.py"
MARK = b"# unhang mtp-cp-deadlock"
RECORD = "verl-0.7.1.dist-info/RECORD"
Words = list[str]


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return mode, and bytes or link text, of everything below a folder; no link is followed."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if "__pycache__" not in path.parts:
            data = os.fsencode(os.readlink(path)) if path.is_symlink() else b"" if path.is_dir() else path.read_bytes()
            found[str(path.relative_to(folder))] = (path.lstat().st_mode, data)
    return found


def assert_record_holds(site: Path) -> None:
    data = (site / RECORD).read_bytes()
    assert dist_info.update(data, {ENGINE: (site / ENGINE).read_bytes()}) == data


# A real uv


@pytest.fixture
def uv(tmp_path: Path) -> Words:
    """Return the command `uv`, offline, with an empty cache."""
    return [environments.uv(), "--offline", "--no-config", "--quiet", "--cache-dir", str(tmp_path / "cache")]


def installed(uv: Words, prefix: Path, mode: str) -> environments.Env:
    env = environments.make_env(prefix)
    install(uv, env, mode)
    return env


def install(uv: Words, env: environments.Env, mode: str, *more: str) -> None:
    words = ["--python", str(env.python), "--no-deps", f"--link-mode={mode}", *more, str(wheels.fetch(*VERL))]
    environments.run(*uv, "pip", "install", *words, cwd=env.prefix)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["hardlink", "clone", "copy", "symlink"])
def test_uvs_cache_and_other_environments_keep_every_byte(uv: Words, tmp_path: Path, mode: str) -> None:
    """`clone` shares blocks where the file system can (Btrfs, XFS); elsewhere uv hardlinks, or copies."""
    env, other = (installed(uv, tmp_path / name, mode) for name in ("env", "other"))
    source = env.site / ENGINE
    assert source.is_symlink() is (mode == "symlink")
    assert mode != "hardlink" or source.stat().st_nlink > 1
    shared, before = (tree(tmp_path / "cache"), tree(other.prefix)), tree(env.site)
    check = ["--python", str(env.python), "--output-format", "json"]
    (result,) = cli.called("check", *check).json["results"]
    assert (result["verdict"], result["code"]) == ("needed", None)

    ran = cli.called("apply", *check)
    (result,) = ran.json["results"]
    link = str(cached(tmp_path)) if mode == "symlink" else None
    assert (ran.code, result["verdict"], result.get("link")) == (0, "applied", link)
    assert (source.is_symlink(), MARK in source.read_bytes()) == (False, True)
    assert_record_holds(env.site)
    assert (tree(tmp_path / "cache"), tree(other.prefix)) == shared
    (result,) = cli.called("check", "--python", other.python, "--output-format", "json").json["results"]
    assert result["verdict"] == "needed"
    assert cli.called("revert", "--python", env.python).code == 0
    assert (tree(tmp_path / "cache"), tree(other.prefix)) == shared
    assert tree(env.site) == before


def cached(home: Path) -> Path:
    """Return the file of uv's cache that the links lead to."""
    (found,) = home.glob(f"cache/archive-v*/*/{ENGINE}")
    return found


@pytest.mark.slow
def test_in_uvs_symlink_mode_all_of_the_commands_work(uv: Words, tmp_path: Path) -> None:
    env = installed(uv, tmp_path / "env", "symlink")
    cache, link = tree(tmp_path / "cache"), os.readlink(env.site / ENGINE)
    place = ["--python", str(env.python)]
    said = cli.called("check", *place).out
    assert f"a link to {link}" in " ".join(said.split())
    assert f"+++ b/{ENGINE}" in cli.called("diff", *place).out
    ran = cli.called("overlay", tmp_path / "overlay", *place)
    assert ran.code == 0, ran.err
    assert cli.called("check", *place, env={"PYTHONPATH": str(tmp_path / "overlay")}).code == 0
    assert tree(tmp_path / "cache") == cache

    ran = cli.called("apply", *place)
    assert f"in place of a link to {link}" in " ".join(ran.out.split())
    # somebody installs again: the links are back, and the receipt is about nothing any more
    install(uv, env, "symlink", "--reinstall")
    (result,) = cli.called("check", *place, "--output-format", "json").json["results"]
    assert (result["verdict"], "reinstalled or restored since" in result["detail"]) == ("needed", True)
    before = tree(env.site / "verl")
    ran = cli.called("revert", *place)
    assert (ran.code, "none of our changes are left" in ran.err) == (0, True), ran.err
    assert (tree(env.site / "verl"), (env.site / ".unhang").exists()) == (before, False)

    # a patched wheel is linked too, and nothing is left to do
    assert cli.called("wheel", wheels.fetch(*VERL), "-o", tmp_path / "wheels").code == 0
    (patched,) = (tmp_path / "wheels").glob("*.whl")
    environments.run(
        *uv, "pip", "install", *place, "--no-deps", "--reinstall", "--link-mode=symlink", str(patched), cwd=tmp_path
    )
    assert (env.site / ENGINE).is_symlink()
    assert cli.called("check", *place, "--require", "mtp-cp-deadlock").code == 0
    assert "nothing was changed" in cli.called("apply", *place).err

    # the cache is cleaned: no file is left, and `check` says why
    shutil.rmtree(tmp_path / "cache")
    ran = cli.called("check", *place)
    assert (ran.code, "links that lead nowhere" in ran.err) == (2, True), ran.err


# Links of all kinds, laid out by hand


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return cli.unpack_targets(tmp_path / "site", VERL)


def absolute(site: Path, shared: Path) -> None:
    (site / ENGINE).symlink_to(shared)


def relative(site: Path, shared: Path) -> None:
    (site / ENGINE).symlink_to(os.path.relpath(shared, (site / ENGINE).parent))


def chained(site: Path, shared: Path) -> None:
    """Through a link outside, and one in the package."""
    (shared.parent / "first.py").symlink_to("shared.py")
    (site / "verl/second.py").symlink_to(shared.parent / "first.py")
    (site / ENGINE).symlink_to(site / "verl/second.py")


def beside(site: Path, shared: Path) -> None:
    """Out of the package, and in the root."""
    shared.rename(site / "shared.py")
    (site / ENGINE).symlink_to("../../../../shared.py")


def with_its_record(site: Path, shared: Path) -> None:
    """As in a farm of links, which has no file of its own."""
    (site / RECORD).rename(shared.with_name("RECORD"))
    (site / RECORD).symlink_to(shared.with_name("RECORD"))
    absolute(site, shared)


def with_bytecode(site: Path, shared: Path) -> None:
    absolute(site, shared)
    py_compile.compile(
        str(site / ENGINE), doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
    )


def in_a_linked_package(site: Path, shared: Path) -> None:
    """A package that is a link has its root where it leads, as one that a .pth file leads to."""
    absolute(site, shared)
    (site / "verl").rename(site.parent / "verl")
    (site / "verl").symlink_to("../verl")


LINKED = [absolute, relative, chained, beside, with_its_record, with_bytecode, in_a_linked_package]


@pytest.mark.parametrize("lay_out", LINKED)
def test_a_link_becomes_a_file_and_again_a_link(
    site: Path, tmp_path: Path, lay_out: Callable[[Path, Path], None]
) -> None:
    shared = (site / ENGINE).rename(tmp_path / "shared.py")
    shared.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(site, 1234, 1234)
    lay_out(site, shared)
    before, mode = tree(tmp_path), (site / ENGINE).stat().st_mode
    if os.geteuid() == 0:
        os.chown(site / ENGINE, 1234, 1234, follow_symlinks=False)
    dry = cli.called("apply", "--target", site, "--dry-run", "--output-format", "json")
    assert (dry.code, tree(tmp_path)) == (0, before)
    ran = cli.called("apply", "--target", site, "--output-format", "json")
    (result,) = ran.json["results"]
    assert (ran.code, result["verdict"], bool(result["link"])) == (0, "applied", True)
    found = (site / ENGINE).lstat()
    assert (found.st_mode, MARK in (site / ENGINE).read_bytes()) == (mode, True)
    assert os.geteuid() != 0 or found.st_uid == 1234, "the link was theirs, so the file is"
    own = {f"site/{ENGINE}", f"verl/{ENGINE.removeprefix('verl/')}", f"site/{RECORD}"}
    after = tree(tmp_path)
    assert {name for name in before if after[name] != before[name]} <= own
    if lay_out is not in_a_linked_package:
        assert_record_holds(site)
    assert cli.python("-c", RUNS, site / ENGINE).out.split() == ["True", "True"]
    assert cli.called("check", "--target", site, "--require", "mtp-cp-deadlock").code == 0
    assert cli.called("revert", "--target", site).code == 0
    assert tree(tmp_path) == before
    assert os.geteuid() != 0 or (site / ENGINE).lstat().st_uid == 1234


RUNS = """\
import importlib.machinery, sys
code = importlib.machinery.SourceFileLoader("m", sys.argv[1]).get_code("m")
with open(sys.argv[1]) as file:
    text = file.read()
print(code == compile(text, sys.argv[1], "exec", dont_inherit=True), "# unhang mtp" in text)
"""


def test_a_link_within_a_package_is_another_name_of_one_of_its_files(site: Path, tmp_path: Path) -> None:
    (site / ENGINE).rename(site / "verl/real.py")
    (site / ENGINE).symlink_to(site / "verl/real.py")
    before = tree(tmp_path)
    cli.applied("--target", site)
    assert ((site / ENGINE).is_symlink(), MARK in (site / "verl/real.py").read_bytes()) == (True, True)
    assert cli.called("revert", "--target", site).code == 0
    assert tree(tmp_path) == before


def test_below_a_linked_folder_nothing_is_written_and_an_overlay_is_named(site: Path, tmp_path: Path) -> None:
    """Whose files those are, nobody can tell: they have no root of their own."""
    (site / "verl/workers").rename(tmp_path / "workers")
    (site / "verl/workers").symlink_to(tmp_path / "workers")
    before = tree(tmp_path)
    assert cli.called("check", "--target", site, "--output-format", "json").json["results"][0]["verdict"] == "needed"
    for more in [], ["--dry-run"]:
        ran = cli.called("apply", "--target", site, *more)
        assert (ran.code, tree(tmp_path)) == (1, before)
        assert f"is a link out of the package, and {tmp_path}/workers/" in ran.err
        assert "unhang overlay --target" in ran.err
    command = next(part for part in ran.err.split("`") if part.startswith("unhang overlay"))
    words = command.split()[1:]
    assert cli.unhang(*words, cwd=tmp_path).code == 0, "as the hint says"
    shutil.rmtree(tmp_path / "unhang-overlay")
    assert tree(tmp_path) == before


def test_an_unknown_shape_behind_a_link_is_accepted_and_taken_back(site: Path, tmp_path: Path) -> None:
    shared = (site / ENGINE).rename(tmp_path / "shared.py")
    (site / ENGINE).symlink_to(shared)
    shared.write_bytes(shared.read_bytes().replace(b"            # add mtp_losses\n", b"            print(1)\n"))
    before = tree(tmp_path)
    ran = cli.called("diff", "--unknown", "--target", site)
    assert ran.code == 1, ran.err
    (command,) = (line.partition("unhang ")[2] for line in ran.out.splitlines() if "to write it, run: " in line)
    assert (cli.called(*command.split()).code, (site / ENGINE).is_symlink()) == (0, False)
    assert cli.called("revert", "--target", site).code == 0
    assert tree(tmp_path) == before


def piped(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def test_what_a_link_leads_to_now_is_not_what_it_led_to(site: Path, tmp_path: Path) -> None:
    shared = (site / ENGINE).rename(tmp_path / "shared.py")
    (site / ENGINE).symlink_to(shared)
    original = shared.read_bytes()
    for spoil in (lambda: shared.write_bytes(b"other\n"), shared.unlink, lambda: piped(shared)):
        cli.applied("--target", site)
        spoil()
        ran = cli.called("revert", "--target", site)
        assert (ran.code, f"was a link to {shared}" in ran.err) == (0, True), ran.err
        assert ((site / ENGINE).is_symlink(), (site / ENGINE).read_bytes()) == (False, original)
        assert not (site / ".unhang").exists()
        shared.unlink(missing_ok=True)
        shared.write_bytes(original)
        (site / ENGINE).unlink()
        (site / ENGINE).symlink_to(shared)


def test_what_is_kept_of_a_link_is_the_link_and_no_copy_of_what_it_leads_to(site: Path, tmp_path: Path) -> None:
    """Else root would give the owner of an environment a copy of any file that a link there names."""
    original = (site / ENGINE).read_bytes()
    cli.applied("--target", site)
    secret = tmp_path / "secret"
    secret.write_text("# unhang mtp-cp-deadlock: only for me\n")
    secret.chmod(0o600)
    (site / ENGINE).unlink()
    (site / ENGINE).symlink_to(secret)
    assert cli.called("revert", "--target", site, "--force").code == 0
    assert ((site / ENGINE).is_symlink(), (site / ENGINE).read_bytes()) == (False, original)
    assert os.readlink(site / f"{ENGINE}.unhang-kept") == str(secret)
    assert not [
        path
        for path in site.rglob("*")
        if not path.is_symlink() and path.is_file() and b"only for me" in path.read_bytes()
    ]


def test_one_fix_of_a_linked_file_is_taken_back(tmp_path: Path) -> None:
    """The file stays ours until its last fix goes."""
    site = cli.unpack_targets(tmp_path / "site", ("ms-swift", "4.6.0"))
    farm = tmp_path / "farm"
    subprocess.run(["cp", "-rs", site, farm], check=True)
    before = tree(farm)
    assert cli.called_with_all("apply", "--target", farm).code == 0
    ran = cli.called_with_all("check", "--target", farm, "--output-format", "json")
    done = [row["fix"] for row in ran.json["results"] if row["verdict"] == "applied"]
    for fix in dict.fromkeys(done):
        assert cli.called_with_all("revert", "--target", farm, "--fix", fix).code == 0
    assert tree(farm) == before
