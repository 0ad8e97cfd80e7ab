"""The trees in which scenes play: releases of the upstreams, unpacked beside the cached wheels."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

from packaging.version import Version

from unhang.compat import upstreams
from unhang.compat.sweep import pins, sources
from unhang.find import metadata
from unhang.judge import pinned, rows, scene
from unhang.judge.decide import NOT_AFFECTED, WRONG
from unhang.judge.nearest import nearest
from unhang.judge.rows import Row, Source
from unhang.shapes import catalog, shape
from unhang.shapes.catalog import ShapeTable, Target

_LINUX = ("manylinux_2_28", "manylinux_2_24", "manylinux2014", "manylinux2010", "manylinux1")
PLATFORMS = tuple(f"{linux}_{machine}" for machine in ("x86_64", "aarch64") for linux in _LINUX)
"""Those of the wheels that pip may take; it accepts a wheel for any platform too."""


class TreeError(scene.SceneError):
    """A release cannot be fetched."""


def run(fix: str, before: Source, after: Source | None) -> Row:
    """Compare a function with its rewrite, as ``rows.run`` does, in the release that is closest. Raises SceneError."""
    return rows.run(fix, before, after, closest(fix, before))


def closest(fix: str, source: Source) -> tuple[Target, list[Path]]:
    """Return the target whose function this is, and the folder of the release that has it, or one closest to it.

    A function whose defect depends on another one, or is one only with others, gets a release that has a wrong one of
    those. One that no release has gets a release with another function of its file; of several files with a function of
    its name, the file that is most like its own; so too where no function is close. What is equally close is taken from
    the newest release. Raises TreeError.
    """
    functions = catalog.fix(fix).functions
    targets = [target for target in functions if target.function == source.name]
    beside = [it for it in functions if it.file in {target.file for target in targets}]
    released = _all_released(targets) or _all_released(beside)
    if not released:
        raise TreeError(f"no release has {source.name}, in whose tree {fix} could play")
    digest = shape.digest(source.function)
    known = {known for _, _, known in released}
    if digest not in known:
        each = [it for it in map(_all_released, zip(targets)) if it]
        released = max(each, key=partial(_alike, source)) if each[1:] else released
        released = _with_feature(fix, source, released)
        digest = _nearest(fix, source, released) or _most_alike(source, released)
    target, version, _ = [it for it in released if it[2] == digest][-1]
    return place(target._replace(function=source.name), version)


def place(target: Target, version: str) -> tuple[Target, list[Path]]:
    """Return a target, and the folders of a release of its upstream and of what its scene imports beside that.

    Raises TreeError.
    """
    beside = getattr(scene.of(target.fix), "BESIDE", {}).get(target.upstream, ())
    return target, [
        unpacked(project_of(target.upstream), version),
        *(unpacked(project_of(upstream), _newest(upstream)) for upstream in beside),
    ]


def _alike(source: Source, released: Sequence[tuple[Target, str, str]]) -> int:
    """Return how many lines the file of a source has in common with that of the last release."""
    target, version, _ = released[-1]
    text = (unpacked(project_of(target.upstream), version) / target.file).read_text(encoding="utf-8")
    return len({*text.splitlines()} & {*source.text.splitlines()})


def _all_released(targets: Sequence[Target]) -> list[tuple[Target, str, str]]:
    return [(target, version, digest) for target in targets for version, digest in _released(target)]


def _released(target: Target) -> list[tuple[str, str]]:
    """Return the releases that have a function in their wheel, with its shape in each: the final ones last, by age."""
    found = []
    project = project_of(target.upstream)
    needs = [others for others in ((target.depends_on,) if target.depends_on else (), target.only_with) if others]
    for version, release in catalog.releases_of(target.fix, target.upstream).items():
        digest = release.shapes.get(target.place)
        if digest is None or release.yanked or target.upstream not in pinned.held(project, version):
            continue
        if all(any(_is_wrong(other, release.shapes.get(other.place)) for other in others) for others in needs):
            found.append((version, digest))
    return sorted(found, key=lambda it: (not Version(it[0]).is_prerelease, Version(it[0])))


def _is_wrong(target: Target, digest: str | None) -> bool:
    return _state(target, digest) in (WRONG, "affected")


def _state(target: Target, digest: str | None) -> str:
    known = catalog.shape_table().shapes.get((target.fix, target.function, digest or ""))
    return known.state if known else ""


def _newest(upstream: str) -> str:
    """Return the newest final release of an upstream."""
    versions = (version for version, it in catalog.releases()[upstream].items() if not it.yanked)
    return max((it for it in versions if not Version(it).is_prerelease), key=Version)


def _with_feature(fix: str, source: Source, released: list[tuple[Target, str, str]]) -> list[tuple[Target, str, str]]:
    """Return the releases that have the feature, if the source has it; all where none does."""
    if not scene.has_feature(fix, source.function):
        return released
    return [it for it in released if _state(it[0], it[2]) != NOT_AFFECTED] or released


def _nearest(fix: str, source: Source, released: Sequence[tuple[Target, str, str]]) -> str:
    """Return which of the shapes of releases is closest; empty if none is close."""
    table, known, target = catalog.shape_table(), {digest for _, _, digest in released}, released[-1][0]
    shapes = {key: it for key in table.shapes if key[0] == fix and key[2] in known and (it := table.shapes.get(key))}
    mine = ShapeTable(shapes, table.files)
    data = source.text.encode()
    found = nearest(
        target, source.function, data, mine, catalog.outlines(fix), catalog.releases_of(fix, target.upstream)
    )
    return found.shape if found else ""


def _most_alike(source: Source, released: Sequence[tuple[Target, str, str]]) -> str:
    """Return the shape of the release, or of the newest of several, whose file is most like that of the source."""
    last = {digest: (target, version, digest) for target, version, digest in released}
    return max(reversed(last.values()), key=lambda it: _alike(source, [it]))[2]


def project_of(upstream: str) -> str:
    """Return the project whose wheels have an upstream: megatron-core for megatron-lm."""
    return next(name for name in upstreams.projects() if upstream in upstreams.of_project(name))


@cache
def unpacked(project: str, version: str) -> Path:
    """Return the folder that a release's wheel is unpacked in, beside the cached wheels; later runs use it again."""
    wheel = fetch(project, version)
    folder = wheel.parent / "unpacked" / wheel.stem
    if not folder.exists():
        folder.parent.mkdir(exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
        fresh.chmod(0o755)
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                member.filename = metadata.installed(member.filename)
                archive.extract(member, fresh)
        try:
            fresh.rename(folder)
        except OSError:  # another run was faster
            shutil.rmtree(fresh)
    return folder


@cache
def fetch(project: str, version: str) -> Path:
    """Return the path of a release's pinned wheel, which pip downloads if the cache lacks it. Raises TreeError."""
    found = [it for it in pins.read(sources.HERE) if (it["project"], it["version"]) == (project, version)]
    if not found:
        raise TreeError(f"compat/wheels.json pins no {project} {version}")
    (pin,) = found
    folder = Path(os.environ.get("UNHANG_WHEELS") or Path.home() / ".cache" / "unhang" / "wheels")
    path = folder / str(pin["file"])
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as fresh:
            platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
            command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "-q", "--no-deps"]
            command += ["--only-binary=:all:", "--python-version", pin["python"], *platforms, "--dest", fresh]
            done = subprocess.run([*command, f"{project}=={version}"], capture_output=True, text=True, check=False)
            if done.returncode:
                raise TreeError(f"pip could not download {pin['file']}: {done.stderr.strip()[-500:]}")
            os.replace(Path(fresh, pin["file"]), path)
    if (digest := hashlib.sha256(path.read_bytes()).hexdigest()) != pin["sha256"]:
        raise TreeError(f"{path} has sha256 {digest}, but compat/wheels.json pins {pin['sha256']}")
    return path
