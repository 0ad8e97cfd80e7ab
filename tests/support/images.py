"""Builds images with buildah, as root and with no registry: a base image is made of this machine's own Python."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from support import cli, environments

REPOSITORY = Path(__file__).parents[2]
BASE = "localhost/unhang-test-base"
# What a shell script in a RUN line needs, and no git, no patch, no compiler.
COMMANDS = ("sh", "env", "cat", "ls", "chown", "id", "sed", "rm")
_NOT_COPIED = shutil.ignore_patterns(
    "site-packages", "test", "tests", "idlelib", "tkinter", "turtledemo", "lib2to3", "config-*", "__pycache__", "*.a"
)
_PATH = "/opt/venv/bin:/usr/local/bin:/bin"


class Built(NamedTuple):
    """What came of a build."""

    code: int
    lines: list[str]
    """What the build printed, both streams as they came."""

    def last_line_of_the_step(self) -> str:
        """The last line that a RUN line printed, before buildah's own words on it."""
        ours = [line for line in self.lines if not re.match(r"(Error: |error building|subprocess exited|time=)", line)]
        return ours[-1]


class Buildah(NamedTuple):
    """Images and containers in a folder of their own."""

    folder: Path

    @property
    def _command(self) -> list[str | Path]:
        places = ["--root", self.folder / "root", "--runroot", self.folder / "run"]
        return ["buildah", "--storage-driver", "vfs", *places]

    def run(self, *arguments: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command of buildah's, its two streams as one."""
        return subprocess.run(
            [*self._command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            env={**os.environ, **(env or {})}, timeout=300,
        )  # fmt: skip

    def must(self, *arguments: str | Path) -> str:
        """Run a command that must succeed, and give what it printed."""
        done = self.run(*arguments)
        assert done.returncode == 0, (arguments, done.stdout)
        return done.stdout.strip()

    def build(self, file: Path, context: Path, tag: str, base: str = BASE) -> Built:
        """Build a Dockerfile, with no network in any of its steps."""
        options = ["--isolation", "chroot", "--pull-never", "--layers=false", "--build-arg", f"BASE={base}"]
        done = subprocess.run(
            ["unshare", "--net", *self._command, "build", *options, "-t", f"localhost/{tag}", "-f", file, context],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=300,
        )  # fmt: skip
        return Built(done.returncode, [line for line in done.stdout.splitlines() if line.strip()])

    def in_image(self, tag: str, *command: str, user: str = "0:0") -> cli.Ran:
        """Run a command in a container of an image."""
        container = self.must("from", "--pull-never", f"localhost/{tag}")
        try:
            done = self.run("run", "--isolation", "chroot", "--user", user, container, "--", *command)
        finally:
            self.must("rm", container)
        return cli.Ran(done.returncode, done.stdout, "")


@contextmanager
def storage() -> Iterator[Path]:
    """A folder for images, which are copied whole at each step: in memory, where the machine has room for that."""
    memory = Path("/dev/shm")
    room = memory.is_dir() and shutil.disk_usage(memory).free > 4 * 2**30
    with tempfile.TemporaryDirectory(prefix="unhang-images-", dir=memory if room else None) as folder:
        yield Path(folder)


def trouble() -> str | None:
    """Why no image is built here; None where one is."""
    if not os.environ.get("UNHANG_IMAGES"):
        return "it takes minutes, and nobody asked for it: nox -s image"
    if missing := [name for name in ("buildah", "unshare") if shutil.which(name) is None]:
        return f"{' and '.join(missing)} not installed here"
    return None if os.geteuid() == 0 else "buildah's chroot isolation wants root"


def make_base(buildah: Buildah, folder: Path, wheels: Path, installed: Sequence[Path]) -> None:
    """Make the base image: this Python, a virtual environment of it in /opt/venv with these wheels, pip offline."""
    root = _python_and_commands(folder / "root")
    shutil.copytree(wheels, root / "wheels")
    # unpacked as pip does it; pip itself would refuse a wheel for another Python, though nothing of it is imported
    site = root / f"opt/venv/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    for wheel in installed:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
    container = buildah.must("from", "scratch")
    buildah.must("copy", container, str(root), "/")
    settings = [f"PATH={_PATH}", "PIP_NO_INDEX=1", "PIP_FIND_LINKS=/wheels", "PIP_DISABLE_PIP_VERSION_CHECK=1"]
    buildah.must("config", *(word for setting in settings for word in ("--env", setting)), container)
    buildah.must("run", "--isolation", "chroot", container, "--", "python3", "-m", "venv", "/opt/venv")
    buildah.must("commit", container, BASE)
    buildah.must("rm", container)


def make_context(folder: Path) -> Path:
    """A folder with a clone of this repository in it: the files that git knows, as they are now."""
    listed = environments.run("git", "ls-files", "-co", "--exclude-standard", cwd=REPOSITORY).splitlines()
    for name in listed:
        if (REPOSITORY / name).is_file():
            (folder / "unhang" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, folder / "unhang" / name)
    return folder


def download_needs(folder: Path) -> Path:
    """The wheels that installing unhang needs, for this Python: its dependencies, and what builds it."""
    command = [environments.pip_python(), "-m", "pip", "download", "-q", "--only-binary=:all:", "--dest", str(folder)]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    wanted = ["libcst>=1.4", "packaging>=22", "setuptools>=77"]
    environments.run(*command, "--python-version", version, *wanted, cwd=Path("/"))
    return folder


def _python_and_commands(root: Path) -> Path:
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    home = Path(os.path.realpath(sys.base_prefix))
    shutil.copytree(home / "lib" / name, root / "usr/local/lib" / name, ignore=_NOT_COPIED, symlinks=True)
    (root / "usr/local/lib" / name / "site-packages").mkdir()
    (root / "usr/local/bin").mkdir(parents=True)
    python = root / "usr/local/bin" / name
    shutil.copy(home / "bin" / name, python)
    (root / "usr/local/bin/python3").symlink_to(name)
    for folder in "bin", "tmp", "etc", "proc", "sys", "dev":
        (root / folder).mkdir()
    (root / "tmp").chmod(0o1777)
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\n")
    for command in COMMANDS:
        shutil.copy(str(shutil.which(command)), root / "bin" / command)
    modules = (root / "usr/local/lib" / name / "lib-dynload").glob("*.so")
    native = importlib.util.find_spec("libcst.native")
    assert native is not None
    needed = _libraries([home / "bin" / name, *modules, *(root / "bin").iterdir(), Path(str(native.origin))])
    system = next(Path(path).parent for path in needed if Path(path).name == "libc.so.6")
    for path in needed:
        # the loader looks into the system's folder whoever it runs for; libpython's own may be shut to other users
        to = root / str(system if path.startswith(str(home)) else Path(path).parent).lstrip("/") / Path(path).name
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, to)
    return root


def _libraries(programs: Iterable[Path]) -> set[str]:
    found: set[str] = set()
    for program in programs:
        done = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
        found |= set(re.findall(r"(/\S+) \(0x", done.stdout))
    return found
