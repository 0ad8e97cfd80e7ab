"""docs/conda.md: which patches survive in conda's environments, made from a local channel.

Rattler, which pixi is built on, makes the environments, and so does conda, where there is one.
"""

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

from support import cli, environments, pages, wheels

if missing := [name for name in ("rattler", "whl2conda", "conda_pack") if find_spec(name) is None]:
    pytest.skip(f"{missing[0]} is not installed: nox -s conda runs these tests", allow_module_level=True)

PAGE = Path(__file__).parents[2] / "docs" / "conda.md"
CONDA = os.environ.get("CONDA_EXE") or shutil.which("conda")
SITE = Path("lib", f"python{sys.version_info.major}.{sys.version_info.minor}", "site-packages")
ENGINE = SITE / "verl/workers/engine/megatron/transformer_impl.py"
REINSTALLED = "patched before, and reverted, reinstalled or restored since"


class Workplace(NamedTuple):
    """A folder with a channel, and what makes environments from it."""

    folder: Path
    maker: str
    env: dict[str, str]

    @property
    def channel(self) -> str:
        return (self.folder / "channel").as_uri()

    def prefix(self, name: str) -> Path:
        return self.folder / "envs" / name

    def sh(self, script: str) -> str:
        """Run a script that must succeed, and return its stdout; the first command that fails ends it."""
        env = {**self.env, "CONDA_CHANNELS": self.channel}
        command = ["sh", "-e", "-c", script]
        done = subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def create(self, name: str, *specs: str) -> Path:
        """Make an environment, or install into it, and return its prefix."""
        if self.maker == "conda":
            verb = "install" if self.prefix(name).exists() else "create"
            self.sh(f"conda {verb} -n {name} {' '.join(specs)}")
        else:
            asyncio.run(self._with_rattler(self.prefix(name), specs, set()))
        return self.prefix(name)

    def reinstall(self, name: str) -> None:
        if self.maker == "conda":
            self.sh(f"conda install -n {name} --force-reinstall verl")
        else:
            asyncio.run(self._with_rattler(self.prefix(name), ("python", "verl==0.7.1"), {"verl"}))

    async def _with_rattler(self, prefix: Path, specs: tuple[str, ...], again: set[str]) -> None:
        import rattler

        platforms = [str(rattler.Subdir.current()), "noarch"]
        records = await rattler.solve([self.channel], specs, platforms=platforms)
        pkgs = self.folder / "pkgs"
        await rattler.install(records, prefix, cache_dir=pkgs, show_progress=False, reinstall_packages=again)

    def unhang(self, command: str, name: str) -> cli.Ran:
        """Run a command with this environment activated."""
        ran = cli.unhang(command, env={"CONDA_PREFIX": str(self.prefix(name))})
        assert ran.out.startswith(f"environment: {self.prefix(name)}/bin/python (found by $CONDA_PREFIX)\n"), ran
        return ran

    def verdict(self, name: str) -> tuple[bool, bool]:
        """Return whether `check` finds all fixes in place, and whether it says that they have been."""
        ran = self.unhang("check", name)
        assert (ran.code == 0) is (b"# unhang mtp-cp-deadlock" in (self.prefix(name) / ENGINE).read_bytes())
        return ran.code == 0, REINSTALLED in ran.out

    def copies(self, name: str) -> list[str]:
        """Copy an environment in each way there is, and return the copies' names."""
        archive, unpacked = self.folder / f"{name}.tar", self.prefix(f"{name}-unpacked")
        self.sh(f"conda-pack -q -p {self.prefix(name)} -o {archive}")
        unpacked.mkdir()
        self.sh(f"tar -xf {archive} -C {unpacked}")
        if self.maker == "conda":
            self.sh(f"conda create -n {name}-clone --clone {name}")
        return [f"{name}-unpacked", *([f"{name}-clone"] if self.maker == "conda" else [])]


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A channel with this Python, its pip, and verl 0.7.1 without verl's requirements."""
    import ensurepip

    folder = tmp_path_factory.mktemp("conda") / "channel"
    pack_python(folder)
    bundled = next(Path(ensurepip.__file__).parent.glob("_bundled/pip-*.whl"))
    for wheel in bundled, wheels.alone("verl", "0.7.1", folder.parent):
        whl2conda = [sys.executable, "-m", "whl2conda", "convert", str(wheel), "--format", "conda"]
        environments.run(*whl2conda, "--out-dir", str(folder / "noarch"), cwd=folder)
    index(folder)
    return folder


def index(channel: Path) -> None:
    """List the packages of a channel in it."""
    from rattler.index import index_fs

    asyncio.run(index_fs(channel))


def pack_python(channel: Path) -> None:
    """Write a conda package of the Python that runs this, as small as it can be."""
    import rattler
    from conda_package_streaming.create import conda_builder

    base, version = Path(sys.base_prefix), "{}.{}.{}".format(*sys.version_info)
    subdir, binary = str(rattler.Subdir.current()), f"bin/python{SITE.parent.name.removeprefix('python')}"
    left_out = {"test", "idlelib", "tkinter", "ensurepip", "lib2to3", "site-packages", "__pycache__"}
    library = [path for path in (base / SITE.parent).rglob("*") if path.is_file()]
    names = [str(path.relative_to(base)) for path in library if not left_out.intersection(path.parts)]
    links = ["bin/python", "bin/python3"]
    rows = [_row(base / name, name, "hardlink") for name in [binary, *names]]
    rows += [_row(base / binary, name, "softlink") for name in links]
    index = {"name": "python", "version": version, "build": "0", "build_number": 0, "depends": [], "subdir": subdir}
    files = channel.parent / "python"
    for name, data in ("index.json", index), ("paths.json", {"paths": rows, "paths_version": 1}):
        environments.write(files, {f"info/{name}": json.dumps(data)})
    environments.write(files, {"info/files": "".join(f"{row['_path']}\n" for row in rows)})
    for link in links:
        (files / link).parent.mkdir(exist_ok=True)
        (files / link).symlink_to(Path(binary).name)
    (channel / subdir).mkdir(parents=True)
    with conda_builder(f"python-{version}-0", channel / subdir, compression_level=1) as package:
        for top, tree in (files, [*files.rglob("*")]), (base, [base / name for name in [binary, *names]]):
            for path in tree:
                if path.is_symlink() or path.is_file():
                    package.add(path, str(path.relative_to(top)))


def _row(path: Path, name: str, kind: str) -> dict[str, object]:
    data = path.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    return {"_path": name, "path_type": kind, "sha256": digest, "size_in_bytes": len(data)}


@pytest.fixture(params=["rattler", "conda"])
def place(request: pytest.FixtureRequest, channel: Path, tmp_path: Path) -> Workplace:
    if request.param == "conda" and CONDA is None:
        pytest.skip("no conda on this machine, neither on PATH nor as $CONDA_EXE")
    shutil.copytree(channel, tmp_path / "channel")
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, main in (
        ("unhang", "unhang.__main__:run"),
        ("whl2conda", "whl2conda.cli:main"),
        ("conda-pack", "conda_pack.cli:main"),
    ):
        module, _, function = main.partition(":")
        (tools / name).write_text(f"#!{sys.executable}\nfrom {module} import {function}\n{function}()\n")
        (tools / name).chmod(0o755)
    if CONDA is not None:
        (tools / "conda").symlink_to(CONDA)
    env = {name: value for name, value in cli.environ().items() if not name.startswith(("CONDA", "PIP_"))}
    env |= {"PATH": f"{tools}{os.pathsep}{env['PATH']}", "HOME": str(tmp_path), "PYTHONNOUSERSITE": "1"}
    env |= {"CONDA_PKGS_DIRS": str(tmp_path / "pkgs"), "CONDA_ENVS_DIRS": str(tmp_path / "envs")}
    env |= {"CONDA_OFFLINE": "1", "CONDA_ALWAYS_YES": "1", "CONDA_QUIET": "1", "PIP_NO_INDEX": "1"}
    return Workplace(tmp_path, request.param, {**env, "PIP_FIND_LINKS": str(channel.parent)})


def test_the_cache_and_other_environments_keep_their_bytes(place: Workplace) -> None:
    one, two = place.create("one", "python", "verl"), place.create("two", "python", "verl")
    assert (one / ENGINE).stat().st_ino == (two / ENGINE).stat().st_ino, "a hard link to the same file in the cache"
    kept = cli.tree(place.folder / "pkgs"), cli.tree(two)
    before = cli.tree(one)
    assert place.unhang("apply", "one").code == 0
    assert (place.verdict("one"), place.verdict("two")) == ((True, False), (False, False))
    assert (cli.tree(place.folder / "pkgs"), cli.tree(two)) == kept
    assert place.unhang("revert", "one").code == 0
    assert cli.tree(one) == before


def test_what_copies_and_reinstallations_lose(place: Workplace) -> None:
    place.create("job", "python", "verl", "pip")
    assert place.unhang("apply", "job").code == 0
    place.create("job", "python", "verl", "pip")
    assert place.verdict("job") == (True, False), "nothing to install"
    for copy in place.copies("job"):
        assert place.verdict(copy) == (False, True), copy
    place.reinstall("job")
    assert place.verdict("job") == (False, True)

    python = place.create("pip", "python", "pip") / "bin" / "python"
    place.sh(f"{python} -m pip install $PIP_FIND_LINKS/verl-*.whl")
    assert place.unhang("apply", "pip").code == 0
    for copy in place.copies("pip"):
        assert place.verdict(copy) == (True, False), copy


def test_a_package_with_the_fixes_keeps_them(place: Workplace) -> None:
    place.sh(pages.example(PAGE, "package"))
    index(place.folder / "channel")
    place.create("job", "python", "verl==0.7.1")
    assert place.verdict("job") == (False, False)
    install = pages.example(PAGE, "install")
    if place.maker == "conda":
        place.sh(install)
    else:
        place.create("job", "python", install.split()[-1])
    assert place.verdict("job") == (True, False)
    for copy in place.copies("job"):
        assert place.verdict(copy) == (True, False), copy


@pytest.mark.parametrize("place", ["conda"], indirect=True)
def test_an_environment_file_with_the_patched_wheel(place: Workplace) -> None:
    place.sh(pages.example(PAGE, "wheel"))
    (place.folder / "environment.yml").write_text(pages.example(PAGE, "environment"))
    place.sh(pages.example(PAGE, "create"))
    assert place.verdict("job") == (True, False)
    place.sh("conda env update -f environment.yml")
    for copy in "job", *place.copies("job"):
        assert place.verdict(copy) == (True, False), copy
    place.sh(pages.example(PAGE, "run"))
