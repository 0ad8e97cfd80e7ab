"""Builds images with buildah or Docker, without a registry, on a base image made of this machine's Python.

Where no Docker daemon runs, `dockerd --bridge=none --iptables=false` is one that leaves the network as it is.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from support import cli, environments

REPOSITORY = Path(__file__).parents[2]
BASE = "localhost/unhang-test-base"
SITE = f"/opt/venv/lib/{Path(os.__file__).parent.name}/site-packages"
ENGINE = "verl/workers/engine/megatron/transformer_impl.py"
# Prints the file from which a job would import the engine, and imports nothing of verl.
ORIGIN = f"""
import os.path, sys
name, folder = {ENGINE[:-3].replace("/", ".")!r}, os.path.dirname({f"{SITE}/{ENGINE}"!r})
print(next(filter(None, (finder.find_spec(name, [folder]) for finder in sys.meta_path))).origin)
"""
# What a shell script in a RUN line needs; no git, patch or compiler.
COMMANDS = ("sh", "env", "cat", "ls", "chown", "id", "sed", "rm")
_NOT_COPIED = shutil.ignore_patterns(
    "site-packages", "test", "tests", "idlelib", "tkinter", "turtledemo", "lib2to3", "config-*", "__pycache__", "*.a"
)
_BASE_FILE = """\
FROM scratch
COPY . /
ENV PATH=/opt/venv/bin:/usr/local/bin:/bin PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python3 -m venv /opt/venv
"""
# what buildah adds to what a step or a command prints
_BUILDAH = re.compile(
    r"^(?:(?:\[\d+/\d+\] )?STEP |Error: |error building|subprocess exited|time=|COMMIT |--> ).*\n?", re.MULTILINE
)
# BuildKit prefixes what a step prints with the step's number and the seconds, and repeats it after an error
_BUILDKIT = re.compile(r"^#\d+ \d+\.\d+ (.+)", re.MULTILINE)


class Built(NamedTuple):
    """A finished build."""

    code: int
    lines: list[str]
    """What its steps printed, both streams in order."""


class Builder(Protocol):
    """Builds Dockerfiles and runs commands in the images, without a network unless a build is given this machine's."""

    def build(self, file: Path, context: Path, tag: str, *, network: bool = False, **arguments: str) -> Built:
        """Build a Dockerfile with these build arguments; BASE is the base image, unless it is given."""
        ...

    def in_image(self, tag: str, *command: str, user: str = "0:0", mounts: Mapping[Path, str] | None = None) -> cli.Ran:
        """Run a command in a container of an image, with folders mounted at these places (`/place` or `/place:ro`)."""
        ...

    def save(self, tag: str, path: Path) -> Path:
        """Write an image to an archive, as ``docker save`` does; return its path."""
        ...


class Buildah(NamedTuple):
    """Images and containers in a folder of their own."""

    folder: Path

    def run(self, *arguments: str | Path, within: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        """Run a buildah command, with both streams as one."""
        root, run = self.folder / "root", self.folder / "run"
        command = ["buildah", "--storage-driver", "overlay", "--root", root, "--runroot", run, *arguments]
        return _run(*within, *command)

    def build(self, file: Path, context: Path, tag: str, *, network: bool = False, **arguments: str) -> Built:
        options = ["--isolation", "chroot", "--pull-never", "--layers=false", *_arguments(arguments)]
        words = ["build", *options, "-t", f"localhost/{tag}", "-f"]
        done = self.run(*words, file, context, within=[] if network else ["unshare", "--net"])
        return Built(done.returncode, [line for line in _BUILDAH.sub("", done.stdout).splitlines() if line.strip()])

    def in_image(self, tag: str, *command: str, user: str = "0:0", mounts: Mapping[Path, str] | None = None) -> cli.Ran:
        created = self.run("from", "--pull-never", f"localhost/{tag}")
        assert created.returncode == 0, created.stdout
        container = created.stdout.strip()
        try:
            options = ["--isolation", "chroot", "--user", user, *_volumes(mounts)]
            done = self.run("run", *options, container, "--", *command)
        finally:
            self.run("rm", container)
        return cli.Ran(done.returncode, _BUILDAH.sub("", done.stdout), "")

    def save(self, tag: str, path: Path) -> Path:
        done = self.run("push", f"localhost/{tag}", f"docker-archive:{path}:{tag}:1")
        assert done.returncode == 0, done.stdout
        return path


class Docker(NamedTuple):
    """Docker with BuildKit, and the tags of the images to be removed at the end."""

    tags: list[str]

    def build(self, file: Path, context: Path, tag: str, *, network: bool = False, **arguments: str) -> Built:
        self.tags.append(f"localhost/{tag}")
        options = ["--network", "host" if network else "none", "--progress", "plain", *_arguments(arguments)]
        done = _run(
            "docker", "build", *options, "-t", f"localhost/{tag}", "-f", file, context, env={"DOCKER_BUILDKIT": "1"}
        )
        return Built(done.returncode, _BUILDKIT.findall(done.stdout) or done.stdout.splitlines())

    def in_image(self, tag: str, *command: str, user: str = "0:0", mounts: Mapping[Path, str] | None = None) -> cli.Ran:
        words = ["docker", "run", "--rm", "--network", "none", "--user", user, *_volumes(mounts), f"localhost/{tag}"]
        done = _run(*words, *command)
        return cli.Ran(done.returncode, done.stdout, "")

    def save(self, tag: str, path: Path) -> Path:
        done = _run("docker", "save", "-o", path, f"localhost/{tag}")
        assert done.returncode == 0, done.stdout
        return path


@contextmanager
def builder(name: str) -> Iterator[Builder]:
    """Give the builder of this name, `buildah` or `docker`, and remove its images at the end."""
    if name == "docker":
        docker = Docker([])
        try:
            yield docker
        finally:
            _run("docker", "image", "rm", "--force", *docker.tags)
    else:
        with _scratch("storage") as folder:
            yield Buildah(folder)


def trouble(name: str) -> str | None:
    """Return why this builder, `buildah` or `docker`, cannot build images here; None if it can."""
    if not os.environ.get("UNHANG_IMAGES"):
        return "it takes minutes: run nox -s image"
    commands = ["buildah", "unshare"] if name == "buildah" else ["docker"]
    if missing := [command for command in commands if shutil.which(command) is None]:
        return f"{' and '.join(missing)} not installed here"
    if name == "docker":
        return None if _run("docker", "version").returncode == 0 else "no Docker daemon answers here"
    return None if os.geteuid() == 0 else "buildah's chroot isolation needs root"


def must_build(on: Builder, file: Path, context: Path, tag: str, *, network: bool = False, **arguments: str) -> str:
    """Build a Dockerfile, which must succeed; return the tag."""
    built = on.build(file, context, tag, network=network, **arguments)
    assert built.code == 0, "\n".join(built.lines)
    return tag


def make_base(on: Builder, wheels: Path, installed: Sequence[Path]) -> None:
    """Make the base image: this Python, its virtual environment /opt/venv with these wheels, and pip offline."""
    with _scratch("base") as folder:
        root = _python_and_commands(folder / "root")
        shutil.copytree(wheels, root / "wheels")
        # pip would refuse a wheel for another Python, though nothing of it is imported
        site = root / SITE.lstrip("/")
        for wheel in installed:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(site)
        (folder / "Dockerfile").write_text(_BASE_FILE)
        must_build(on, folder / "Dockerfile", root, BASE.removeprefix("localhost/"))


def _committed() -> list[str]:
    """Return the names of the files of this repository that git does not ignore."""
    listed = environments.run("git", "ls-files", "-co", "--exclude-standard", cwd=REPOSITORY).splitlines()
    return [name for name in listed if os.path.lexists(REPOSITORY / name)]


def make_context(folder: Path) -> Path:
    """Copy what git does not ignore of this repository into a folder `unhang` in a folder; return the latter."""
    for name in _committed():
        (folder / "unhang" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, folder / "unhang" / name, follow_symlinks=False)
    return folder


def make_archive(path: Path) -> Path:
    """Write the archive that GitHub offers of a commit, here of the files that git does not ignore; return its path."""
    with tarfile.open(path, "w:gz") as archive:
        for name in _committed():
            archive.add(REPOSITORY / name, f"{path.name.removesuffix('.tar.gz')}/{name}", recursive=False)
    return path


def download_needs(folder: Path) -> Path:
    """Put the wheels of unhang, of its dependencies and of its build dependencies into a folder; return the folder."""
    pip = [environments.pip_python(), "-m", "pip"]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    options = ["--quiet", "--only-binary=:all:", "--dest", str(folder), "--python-version", version]
    environments.run(*pip, "download", *options, "libcst>=1.4", "packaging>=22", "setuptools>=77", cwd=Path("/"))
    with _scratch("source") as source:
        clone = make_context(source) / "unhang"
        environments.run(*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(clone), cwd=Path("/"))
    return folder


def _run(*command: str | Path, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=300,
        env={**os.environ, **(env or {})},
    )  # fmt: skip


def _arguments(arguments: Mapping[str, str]) -> list[str]:
    given = {"BASE": BASE, **arguments}
    return [word for name, value in given.items() for word in ("--build-arg", f"{name}={value}")]


def _volumes(mounts: Mapping[Path, str] | None) -> list[str]:
    return [word for folder, place in (mounts or {}).items() for word in ("--volume", f"{folder}:{place}")]


@contextmanager
def _scratch(name: str) -> Iterator[Path]:
    """Give a folder, in memory if there is room."""
    memory = Path("/dev/shm")
    room = memory.is_dir() and shutil.disk_usage(memory).free > 4 * 2**30
    with tempfile.TemporaryDirectory(prefix=f"unhang-images-{name}-", dir=memory if room else None) as folder:
        yield Path(folder)


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
