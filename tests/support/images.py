"""Builds images with buildah, as root and without a registry, on a base image made of this machine's Python."""

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
# What a shell script in a RUN line needs; no git, patch or compiler.
COMMANDS = ("sh", "env", "cat", "ls", "chown", "id", "sed", "rm")
_NOT_COPIED = shutil.ignore_patterns(
    "site-packages", "test", "tests", "idlelib", "tkinter", "turtledemo", "lib2to3", "config-*", "__pycache__", "*.a"
)
_PATH = "/opt/venv/bin:/usr/local/bin:/bin"


class Built(NamedTuple):
    """A finished build."""

    code: int
    lines: list[str]
    """Its output, both streams in order."""

    def last_line_of_the_step(self) -> str:
        """Return the last line of the RUN step itself, without buildah's messages."""
        step = [line for line in self.lines if not re.match(r"(Error: |error building|subprocess exited|time=)", line)]
        return step[-1]


class Buildah(NamedTuple):
    """Images and containers in a folder of their own."""

    folder: Path

    @property
    def _command(self) -> list[str | Path]:
        root, run = self.folder / "root", self.folder / "run"
        return ["buildah", "--storage-driver", "vfs", "--root", root, "--runroot", run]

    def run(self, *arguments: str | Path, within: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        """Run a buildah command, with both streams as one."""
        return subprocess.run(
            [*within, *self._command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            check=False, timeout=300,
        )  # fmt: skip

    def must(self, *arguments: str | Path) -> str:
        """Run a command that must succeed; return its output."""
        done = self.run(*arguments)
        assert done.returncode == 0, (arguments, done.stdout)
        return done.stdout.strip()

    def build(self, file: Path, context: Path, tag: str, base: str = BASE) -> Built:
        """Build a Dockerfile without a network."""
        options = ["--isolation", "chroot", "--pull-never", "--layers=false", "--build-arg", f"BASE={base}"]
        words = ["build", *options, "-t", f"localhost/{tag}", "-f"]
        done = self.run(*words, file, context, within=["unshare", "--net"])
        return Built(done.returncode, [line for line in done.stdout.splitlines() if line.strip()])

    def must_build(self, file: Path, context: Path, tag: str, base: str = BASE) -> None:
        """Build a Dockerfile, which must succeed."""
        built = self.build(file, context, tag, base)
        assert built.code == 0, "\n".join(built.lines)

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
    """Give a folder for images, in memory if there is room: each step copies the whole image."""
    memory = Path("/dev/shm")
    room = memory.is_dir() and shutil.disk_usage(memory).free > 4 * 2**30
    with tempfile.TemporaryDirectory(prefix="unhang-images-", dir=memory if room else None) as folder:
        yield Path(folder)


def trouble() -> str | None:
    """Return why images cannot be built here; None if they can."""
    if not os.environ.get("UNHANG_IMAGES"):
        return "it takes minutes: run nox -s image"
    if missing := [name for name in ("buildah", "unshare") if shutil.which(name) is None]:
        return f"{' and '.join(missing)} not installed here"
    return None if os.geteuid() == 0 else "buildah's chroot isolation needs root"


def make_base(buildah: Buildah, folder: Path, wheels: Path, installed: Sequence[Path]) -> None:
    """Make the base image: this Python, its virtual environment /opt/venv with these wheels, and pip offline."""
    root = _python_and_commands(folder / "root")
    shutil.copytree(wheels, root / "wheels")
    # pip would refuse a wheel for another Python, though nothing of it is imported
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
    """Copy the files of this repository that git does not ignore into a folder; return the folder."""
    listed = environments.run("git", "ls-files", "-co", "--exclude-standard", cwd=REPOSITORY).splitlines()
    for name in listed:
        if (REPOSITORY / name).is_file():
            (folder / "unhang" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, folder / "unhang" / name)
    return folder


def download_needs(folder: Path) -> Path:
    """Download the dependencies and build dependencies of unhang, for this Python; return the folder."""
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
        # other users may be unable to read the folder of libpython
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
