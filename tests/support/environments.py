"""Build virtual environments for the tests, and stand-ins for the upstreams.

The stand-ins have the files that identify the upstreams and little else, so that they can be imported: the tests
compare what the search finds with what `import` finds.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import venv
import zipfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import unhang
from unhang.find.environment import choose
from unhang.find.locate import search
from unhang.plugins import packs
from unhang.records import Search

MODULES = {one.name: one.module for one in packs.upstreams().values()}
# Prints where `import` finds each module. It does import them, so it is only for stand-ins.
TRUTH = """
import importlib, json, sys
if sys.path[0] == "": del sys.path[0]
found = {}
for name in ["megatron.core", "megatron.training", "megatron.bridge", "mcore_bridge", "verl", "swift", "trl"]:
    try: found[name] = getattr(importlib.import_module(name), "__file__", None)
    except ImportError: found[name] = None
print(json.dumps(found))
"""
# Searches in the environment's own process, which needs `unhang` in its site-packages.
IN_PROCESS = """
import json, os, sys
from unhang.find.environment import choose
from unhang.find.locate import search
found = search(choose(None, os.getcwd(), {}), script=(sys.argv[1:] or [None])[0], cwd=os.getcwd())
print(json.dumps([found.environment.found_by, found.installations, found.warnings]))
"""


class Env(NamedTuple):
    """A virtual environment without pip, with a copy of `unhang`."""

    prefix: Path
    python: Path
    site: Path

    def run(self, *arguments: str, cwd: Path | None = None) -> str:
        """Run the interpreter, by default in the prefix, and return its stdout."""
        return run(str(self.python), *arguments, cwd=cwd or self.prefix)

    def install(self, *wheels: Path) -> None:
        command = [pip_python(), "-m", "pip", "--python", str(self.python), "install", "--no-deps", "--no-index", "-q"]
        run(*command, *map(str, wheels), cwd=self.prefix)

    def search(self, cwd: Path | None = None, script: Path | None = None) -> Search:
        """Search from our process: the probe runs in the interpreter of this environment."""
        where = str(cwd or self.prefix)
        return search(choose(str(self.python), where, {}), script=str(script) if script else None, cwd=where)


def run(*command: str, cwd: Path) -> str:
    """Run a command and return its stdout; raises AssertionError with its output if it fails."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def make_venv(prefix: Path) -> None:
    """Make a virtual environment of the Python that runs the tests.

    Until Python 3.10, one that is made in another one names that as its home, which says too little to be read.
    """
    if sys.version_info >= (3, 11):
        venv.create(prefix, symlinks=True)
    else:
        python = Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}")
        run(str(python), "-m", "venv", "--without-pip", str(prefix), cwd=Path("/"))


def make_env(prefix: Path) -> Env:
    """Make an environment of the interpreter that runs the tests."""
    make_venv(prefix)
    site = prefix / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    # A copy of what is installed here, in whichever way: the new environment does not see ours.
    shutil.copytree(os.path.dirname(unhang.__file__), site / "unhang", ignore=shutil.ignore_patterns("__pycache__"))
    return Env(prefix, prefix / "bin" / "python", site)


@cache
def pip_python() -> str:
    """Return an interpreter that has pip: uv makes environments without it."""
    if subprocess.run([sys.executable, "-m", "pip", "-V"], capture_output=True, check=False).returncode == 0:
        return sys.executable
    folder = tempfile.mkdtemp(prefix="unhang-pip-")
    venv.create(folder, with_pip=True)
    return os.path.join(folder, "bin", "python")


def uv() -> str:
    """Return uv's path, of our own environment or of this machine; skips the test where there is none."""
    found = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        pytest.skip("no uv on this machine: pip install uv")
    return found


def write(root: Path, files: dict[str, str]) -> Path:
    """Write files below a folder and return the folder."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return root


def package_info(version: str) -> str:
    """Return megatron/core/package_info.py for a version such as 0.17.0rc0, as upstream writes it."""
    major, minor, rest = version.split(".", 2)
    return f"""\
        # Copyright
        MAJOR = {major}
        MINOR = {minor}
        PATCH = {rest[0]}
        PRE_RELEASE = '{rest[1:]}'

        # Use the following formatting: (major, minor, patch, pre-release)
        VERSION = (MAJOR, MINOR, PATCH, PRE_RELEASE)

        __shortversion__ = '.'.join(map(str, VERSION[:3]))
        __version__ = '.'.join(map(str, VERSION[:3])) + ''.join(VERSION[3:])
        if not __version__:
            MAJOR = 9
        """


def core(root: Path, version: str = "0.16.1") -> Path:
    """Write a stand-in for megatron.core alone, as in older wheels."""
    return write(root, {"megatron/core/__init__.py": "", "megatron/core/package_info.py": package_info(version)})


def training(root: Path) -> Path:
    return write(root, {"megatron/training/__init__.py": ""})


def tree(root: Path, version: str = "0.17.0") -> Path:
    """Write a stand-in for a Megatron-LM checkout, or for the contents of a newer wheel."""
    return training(core(root, version))


def verl(root: Path, version: str = "0.7.1") -> Path:
    return write(root, {"verl/__init__.py": "", "verl/protocol.py": "", "verl/version/version": version + "\n"})


def swift(root: Path, version: str = "4.6.0") -> Path:
    """Write a stand-in for ms-swift."""
    text = f"# Make sure\n__version__ = '{version}'\n__release_datetime__ = '2026-01-01 12:00:00'\n"
    folders = {f"swift/{name}/__init__.py": "" for name in ("tuners", "trainers")}
    return write(root, {"swift/__init__.py": "", "swift/version.py": text, **folders})


def bridge(root: Path, version: str = "0.6.2") -> Path:
    """Write a stand-in for Megatron-Bridge, beside what else is in the namespace package."""
    files = {f"megatron/bridge/{name}": "" for name in ("__init__.py", "training/__init__.py")}
    return write(root, {**files, "megatron/bridge/package_info.py": package_info(version)})


def mcore_bridge(root: Path, version: str = "1.4.2") -> Path:
    """Write a stand-in for mcore-bridge."""
    folders = {f"mcore_bridge/{name}/__init__.py": "" for name in ("bridge", "model")}
    about = {"mcore_bridge/__init__.py": "", "mcore_bridge/version.py": f"__version__ = '{version}'\n"}
    return write(root, {**about, **folders})


def trl(root: Path, version: str = "1.9.0") -> Path:
    """Write a stand-in for TRL, as a checkout has it."""
    files = ("__init__", "data_utils", "import_utils", "trainer/__init__", "trainer/grpo_trainer")
    return write(root, {**{f"trl/{name}.py": "" for name in files}, "VERSION": f"{version}\n"})


def project(root: Path, name: str, version: str, where: str = ".") -> Path:
    """Add a pyproject.toml with which setuptools builds all packages of a tree, namespace packages included."""
    text = f"""\
        [build-system]
        requires = ["setuptools"]
        build-backend = "setuptools.build_meta"
        [project]
        name = "{name}"
        version = "{version}"
        [tool.setuptools.packages.find]
        where = ["{where}"]
        include = {[f"{module}*" for module in MODULES.values()]}
        [tool.setuptools.package-data]
        "verl.version" = ["version"]
        """
    return write(root, {"pyproject.toml": text})


def build(root: Path, out: Path, *, editable: str | None = None) -> Path:
    """Build a wheel of a project, or an editable wheel in one of setuptools' modes, without a network."""
    out.mkdir(parents=True, exist_ok=True)
    hook, settings = ("build_editable", {"editable_mode": editable}) if editable else ("build_wheel", {})
    code = "import sys; sys.argv = ['setup.py']; from setuptools import build_meta; "
    code += f"print('\\n' + build_meta.{hook}({str(out)!r}, {settings!r}))"
    name = run(sys.executable, "-c", code, cwd=root).splitlines()[-1]
    return out / name


def extract(wheel: Path, site: Path) -> None:
    """Unpack a wheel, where its files matter and not who installed them: pip takes a second."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)


def agree(env: Env, *, cwd: Path | None = None, script: Path | None = None, namesakes: tuple[str, ...] = ()) -> Search:
    """Search an environment from our process; check that its own process and `import` find the same."""
    where = cwd or env.prefix
    found = env.search(where, script)
    arguments = [str(script)] if script else []
    inside = json.loads(env.run("-c", IN_PROCESS, *arguments, cwd=where))
    assert inside == json.loads(json.dumps(["own interpreter", found.installations, found.warnings]))
    if script:
        script.write_text(TRUTH)
    truth = json.loads(env.run(*([str(script)] if script else ["-c", TRUTH]), cwd=where))
    imported = {name: os.path.realpath(file) for name, file in truth.items() if file and name not in namesakes}
    inits = {MODULES[i.upstream]: os.path.realpath(f"{i.package_dir}/__init__.py") for i in found.installations}
    assert inits == imported
    return found
