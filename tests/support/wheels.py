"""Real upstream sources: the wheels that compat/wheels.json pins, kept in a cache, and clones.

They are never committed. ``UNHANG_WHEELS`` names the cache (default ``~/.cache/unhang/wheels``).
The variables in ``upstreams/`` name clones, as ``UNHANG_VERL_CLONE`` does; tests that need a missing one are skipped.
"""

import hashlib
import json
import os
import subprocess
import tempfile
import zipfile
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import pytest

from support import environments
from support.checkout import COMPAT
from unhang.compat import upstreams
from unhang.compat.sweep import trees
from unhang.store import dist_info

CLONES: dict[str, str] = {
    upstream: entry["clone"]
    for project, entry in upstreams.projects().items()
    for upstream in upstreams.of_project(project)
}


class WheelError(Exception):
    """A pinned wheel cannot be fetched, or has another digest."""


@cache
def fetch(project: str, version: str) -> Path:
    """Return the path of a release's pinned wheel, downloading it if the cache lacks it.

    Raises WheelError if pip cannot download it, or if its sha256 is not the pinned one.
    """
    return kept(project, _pin(project, version))


def kept(project: str, pin: dict[str, Any]) -> Path:
    """Return as ``fetch`` the wheel of a pin, which is as a row of compat/wheels.json."""
    cache = Path(os.environ.get("UNHANG_WHEELS") or Path.home() / ".cache" / "unhang" / "wheels")
    path = cache / str(pin["file"])
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        # another run may be fetching the same wheel
        with tempfile.TemporaryDirectory(dir=cache, prefix=".download-") as folder:
            _download(project, pin, Path(folder))
            got = Path(folder) / str(pin["file"])
            if not got.exists():
                raise WheelError(f"pip gave {sorted(os.listdir(folder))}, not {pin['file']}")
            verify(got, str(pin["sha256"]))
            os.replace(got, path)
    verify(path, str(pin["sha256"]))
    return path


def alone(project: str, version: str, folder: Path) -> Path:
    """Write a release's wheel without its requirements, so that it can be resolved offline, and return its path."""
    source = fetch(project, version)
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(source) as full, zipfile.ZipFile(folder / source.name, "w") as out:
        (metadata,) = (name for name in full.namelist() if name.endswith(".dist-info/METADATA"))
        lines = full.read(metadata).splitlines(keepends=True)
        text = b"".join(line for line in lines if not line.startswith(b"Requires-Dist"))
        for name in full.namelist():
            data = text if name == metadata else full.read(name)
            if name.endswith(".dist-info/RECORD"):
                data = dist_info.update(data, {metadata: text})
            out.writestr(name, data)
    return folder / source.name


def read(project: str, version: str, path: str) -> bytes | None:
    """Return a file of a release; None if the release has no such file."""
    wheel = _opened(fetch(project, version))
    return wheel.read(path) if path in wheel.NameToInfo else None


def clone(upstream: str) -> Path:
    """Return an upstream's clone from the environment; skip the test if there is none."""
    variable = CLONES[upstream]
    if not os.environ.get(variable):
        pytest.skip(f"{variable} is not set: shapes that only the upstream's history has are not tested")
    return Path(os.environ[variable])


def verify(path: Path, sha256: str) -> None:
    """Raise WheelError, with both digests, unless the file has this sha256."""
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != sha256:
        raise WheelError(f"{path} has sha256 {found}, but compat/wheels.json pins {sha256}")


def _pin(project: str, version: str) -> dict[str, Any]:
    pinned: list[dict[str, Any]] = json.loads((COMPAT / "wheels.json").read_bytes())["wheels"].get(project, [])
    for pin in pinned:
        if pin["version"] == version:
            return pin
    raise WheelError(f"compat/wheels.json pins no {project} {version}")


def _download(project: str, pin: dict[str, Any], folder: Path) -> None:
    platforms = [word for platform in trees.PLATFORMS for word in ("--platform", platform)]
    command = [environments.pip_python(), "-m", "pip", "download", "--disable-pip-version-check", "-q", "--no-deps"]
    command += ["--only-binary=:all:", "--python-version", pin["python"], *platforms, "--dest", str(folder)]
    done = subprocess.run(
        [*command, f"{project}=={pin['version']}"], capture_output=True, text=True, check=False, timeout=600
    )
    if done.returncode != 0:
        raise WheelError(f"pip could not download {pin['file']}:\n{done.stderr.strip()}")


@lru_cache(maxsize=32)
def _opened(path: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(path)
