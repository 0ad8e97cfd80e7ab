"""Real upstream sources for the tests: the wheels that compat/wheels.json pins, kept in a cache, and clones if given.

Nothing of them is ever committed. ``UNHANG_WHEELS`` names the cache (default ``~/.cache/unhang/wheels``), and
``UNHANG_MEGATRON_CLONE``, ``UNHANG_VERL_CLONE`` and ``UNHANG_SWIFT_CLONE`` name clones; without these, what needs the
history of an upstream is skipped, by name.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import pytest

from unhang.compat.sweep.sources import pins

CLONES = {
    "megatron-core": "UNHANG_MEGATRON_CLONE",
    "megatron-lm": "UNHANG_MEGATRON_CLONE",
    "verl": "UNHANG_VERL_CLONE",
    "ms-swift": "UNHANG_SWIFT_CLONE",
}
# The platforms that the pinned wheels of megatron-core are built for; a wheel for any platform matches as well.
_PLATFORMS = tuple(f"manylinux_2_{minor}_{machine}" for machine in ("x86_64", "aarch64") for minor in (28, 24))


class WheelError(Exception):
    """A pinned wheel that cannot be had, or is not the one that was pinned."""


@cache
def fetch(project: str, version: str) -> Path:
    """The pinned wheel of a release, from the cache; downloaded by pip if it is not there yet.

    Raises WheelError where it cannot be downloaded, or its sha256 is not the pinned one.
    """
    pin = _pin(project, version)
    cache = Path(os.environ.get("UNHANG_WHEELS") or Path.home() / ".cache" / "unhang" / "wheels")
    path = cache / str(pin["file"])
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        # a folder of its own, then one rename: another run may be fetching the same wheel
        with tempfile.TemporaryDirectory(dir=cache, prefix=".download-") as folder:
            _download(pin, Path(folder))
            got = Path(folder) / str(pin["file"])
            if not got.exists():
                raise WheelError(f"pip gave {sorted(os.listdir(folder))}, not {pin['file']}")
            verify(got, str(pin["sha256"]))
            os.replace(got, path)
    verify(path, str(pin["sha256"]))
    return path


def read(project: str, version: str, path: str) -> bytes | None:
    """A file of a release, None where the release has no such file."""
    wheel = _opened(fetch(project, version))
    return wheel.read(path) if path in wheel.NameToInfo else None


def clone(upstream: str) -> Path:
    """The clone of an upstream that the environment names; the test is skipped where it names none."""
    variable = CLONES[upstream]
    if not os.environ.get(variable):
        pytest.skip(f"{variable} names no clone: shapes that only the history of the upstream has are not tested")
    return Path(os.environ[variable])


def verify(path: Path, sha256: str) -> None:
    """Raises WheelError, with both digests, unless a file has this sha256."""
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != sha256:
        raise WheelError(f"{path} has sha256 {found}, not {sha256} as compat/wheels.json pins it")


def _pin(project: str, version: str) -> dict[str, Any]:
    for pin in pins():
        if (pin["project"], pin["version"]) == (project, version):
            return pin
    raise WheelError(f"compat/wheels.json pins no {project} {version}")


def _download(pin: dict[str, Any], folder: Path) -> None:
    platforms = [word for platform in _PLATFORMS for word in ("--platform", platform)]
    command = [_python_with_pip(), "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--python-version", pin["python"], *platforms, "--dest", str(folder)]
    done = subprocess.run(
        [*command, f"{pin['project']}=={pin['version']}"], capture_output=True, text=True, check=False, timeout=600
    )
    if done.returncode != 0:
        raise WheelError(f"pip could not download {pin['file']}:\n{done.stderr.strip()}")


@lru_cache(maxsize=1)
def _python_with_pip() -> str:
    """An interpreter that has pip: ours, else the one it came from, else one on the path."""
    candidates = [sys.executable, getattr(sys, "_base_executable", ""), *map(shutil.which, ("python3", "python"))]
    for candidate in filter(None, candidates):
        done = subprocess.run([str(candidate), "-m", "pip", "--version"], capture_output=True, check=False)
        if done.returncode == 0:
            return str(candidate)
    raise WheelError("no interpreter here has pip, which the tests fetch upstream's wheels with: install pip")


@lru_cache(maxsize=8)
def _opened(path: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(path)
