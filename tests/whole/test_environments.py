"""pip, uv and conda find their environments intact: RECORD, hardlinked caches, editable installs, bytecode."""

import base64
import hashlib
import importlib.metadata
import marshal
import os
import py_compile
import sys
import venv
from pathlib import Path

import pytest

from support import cli, environments, wheels
from unhang.store import bytecode

VERL = ("verl", "0.7.1")
ENGINE = "verl/workers/engine/megatron/transformer_impl.py"
MARK = b"# unhang mtp-cp-deadlock"


def sh(*command: object, cwd: Path) -> str:
    """Run a command and return its stdout; raises AssertionError with its output if it fails."""
    return environments.run(*map(str, command), cwd=cwd)


class Venv:
    """A virtual environment for wheels."""

    def __init__(self, prefix: Path) -> None:
        venv.create(prefix, symlinks=True)
        self.prefix, self.python = prefix, prefix / "bin" / "python"
        self.site = prefix / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"

    def pip(self, *arguments: object) -> None:
        sh(environments.pip_python(), "-m", "pip", "--python", self.python, *arguments, "-q", cwd=self.prefix)

    def install(self, *options: str) -> None:
        self.pip("install", "--no-deps", "--no-index", *options, wheels.fetch(*VERL))

    def unhang(self, *arguments: str) -> cli.Ran:
        return cli.unhang(*arguments, "--python", self.python)

    def names(self) -> set[str]:
        return {name for name in cli.tree(self.prefix) if (self.prefix / name).is_file()}

    def verdict(self) -> tuple[int, str, str]:
        ran = self.unhang("check", "--output-format", "json")
        (result,) = ran.json["results"]
        return ran.code, result["verdict"], result["detail"]


def assert_hashes_hold(site: Path) -> None:
    """Verify every row of the RECORD with importlib.metadata."""
    (distribution,) = importlib.metadata.distributions(name="verl", path=[str(site)])
    files = distribution.files or []
    assert len(files) > 400
    for file in files:
        if file.hash is not None:
            digest = hashlib.new(file.hash.mode, (site / file).read_bytes()).digest()
            assert base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == file.hash.value, file
            assert file.size == (site / file).stat().st_size


# pip


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [pytest.param("--compile", marks=pytest.mark.slow), "--no-compile"])
def test_pip_uninstalls_and_reinstalls_over_a_patched_wheel(tmp_path: Path, compiled: str) -> None:
    env = Venv(tmp_path / "env")
    empty = env.names()
    env.install(compiled)
    assert_hashes_hold(env.site)
    assert env.verdict() == (1, "needed", ""), "it is not called reinstalled"
    before = cli.tree(env.prefix)
    assert env.unhang("apply").code == 0
    assert MARK in (env.site / ENGINE).read_bytes()
    assert_hashes_hold(env.site)

    env.install(compiled, "--force-reinstall")
    code, verdict, detail = env.verdict()
    assert (code, verdict) == (1, "needed")
    assert "patched before, and reverted, reinstalled or restored since" in detail
    assert_hashes_hold(env.site)
    assert env.unhang("apply").code == 0
    assert env.verdict() == (0, "applied", "")
    assert env.unhang("revert").code == 0
    assert cli.tree(env.prefix) == before

    assert env.unhang("apply").code == 0
    env.pip("uninstall", "-y", "verl")
    left = env.names() - empty
    left_in = {name.rpartition("/")[0] for name in left}
    site = str(env.site.relative_to(env.prefix))
    assert left_in == {f"{site}/.unhang", f"{site}/.unhang/pristine"}, "only our receipt is left"
    assert env.unhang("revert").code == 0
    assert env.names() - empty == left, "a file that is gone does not show that its original is not needed"

    env.install(compiled)
    assert env.unhang("revert").code == 0
    assert not any(".unhang" in name for name in env.names()), "the RECORD lists the file"


# Bytecode


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "is_folder"),
    [("timestamp", False), ("timestamp", True), ("checked-hash", False), ("unchecked-hash", False)],
)
def test_bytecode_is_never_stale_and_made_again(tmp_path: Path, mode: str, is_folder: bool) -> None:
    env = Venv(tmp_path / "env")
    where = ("--target", env.site)
    cli.unpack(env.site, VERL)
    sh(env.python, "-m", "compileall", "-q", "--invalidation-mode", mode, env.site / ENGINE, cwd=env.prefix)
    (cached,) = (env.site / ENGINE).parent.glob("__pycache__/transformer_impl.*.pyc")
    foreign = cached.with_name("transformer_impl.cpython-38.pyc")
    foreign.write_bytes(cached.read_bytes())
    head = cached.read_bytes()[4:8]
    source, was = (env.site / ENGINE).read_bytes(), (env.site / ENGINE).stat()
    for command in ("apply", "revert"):
        assert (cli.called(command, *where) if is_folder else env.unhang(command)).code == 0
        assert not foreign.exists(), "no interpreter here can compile that one again"
        assert cached.read_bytes()[4:8] == head, "the mode is kept"
        want = compile((env.site / ENGINE).read_bytes(), str(env.site / ENGINE), "exec", dont_inherit=True)
        assert marshal.loads(cached.read_bytes()[16:]) == want
        # With the old time on the source too, an import would not run the old code.
        os.utime(env.site / ENGINE, ns=(was.st_atime_ns, was.st_mtime_ns))
        assert marshal.loads(cached.read_bytes()[16:]) == want
    assert (env.site / ENGINE).read_bytes() == source


# An interpreter that replaces the source just after it has compiled it.
OVERTAKEN = """\
#!/bin/sh
exec {python} -I -S -c '
import py_compile, sys
real = py_compile.compile
def overtaken(source, *arguments, **options):
    done = real(source, *arguments, **options)
    with open(source, "w") as file:
        file.write("x = 2")
    return done
py_compile.compile = overtaken
exec(sys.argv[-1])
' "$@"
"""


def test_a_source_that_changes_during_compilation_leaves_nothing_stale(tmp_path: Path) -> None:
    source, python = tmp_path / "x.py", tmp_path / "python"
    python.write_text(OVERTAKEN.format(python=sys.executable))
    python.chmod(0o755)
    for overtaken, left in ((sys.executable, True), (str(python), False)):
        source.write_text("x = 1")
        cached = py_compile.compile(str(source), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
        assert cached is not None
        compiled = bytecode.survey([str(source)])
        os.unlink(cached)
        bytecode.recompile(overtaken, compiled)
        assert os.path.exists(cached) is left
    assert source.read_text() == "x = 2"


# conda (uv: test_links.py, test_uv.py)


def test_condas_hardlinked_packages_keep_their_bytes(tmp_path: Path) -> None:
    package = cli.unpack(tmp_path / "pkgs" / "verl-0.7.1", VERL)
    env = Venv(tmp_path / "env")
    for path in package.rglob("*"):
        place = env.site / path.relative_to(package)
        if path.is_file():
            place.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, place)
    py_compile.compile(str(package / ENGINE), doraise=True)
    (cached,) = (package / ENGINE).parent.glob("__pycache__/*.pyc")
    (env.site / ENGINE).parent.joinpath("__pycache__").mkdir()
    linked = (env.site / ENGINE).parent / "__pycache__" / cached.name
    os.link(cached, linked)
    kept, compiled = cli.tree(package), cached.read_bytes()
    assert env.unhang("apply").code == 0
    assert MARK in (env.site / ENGINE).read_bytes()
    assert (cli.tree(package), cached.read_bytes()) == (kept, compiled)
    assert linked.stat().st_ino != cached.stat().st_ino, "a new file under this name alone"
    assert env.unhang("revert").code == 0
    assert (cli.tree(package), cached.read_bytes()) == (kept, compiled)
