"""Fetches the source that a nightly job runs on: the tip of a branch, or the newest pre-release."""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from packaging.version import InvalidVersion, Version

from unhang.compat import index
from unhang.deliver.download import Options, fetch
from unhang.errors import UnhangError

MEGATRON, BRANCH = "NVIDIA/Megatron-LM", "main"


class TreeError(Exception):
    """A source could not be fetched; the message ends with the error of git or the package index."""


class Pre(NamedTuple):
    """A pre-release."""

    version: str
    tag: str | None
    """None if only the index has it, as a wheel."""
    python: str
    """A Python version that its wheel supports."""


def newest_pre_release(project: str, about: Mapping[str, Any], remote: str) -> Pre | None:
    """Return the newest pre-release, by the repository's tags and the package index, if it is newer than all releases.

    ``about``: the upstream's entry in compat/upstreams.json. Raises TreeError.
    """
    prefix = about.get("tree-tags", "v")
    listed = _git("ls-remote", "--tags", "--refs", f"{remote}/{about['repository']}", f"refs/tags/{prefix}*")
    tags = [line.rpartition("refs/tags/")[2] for line in listed.splitlines()]
    found: dict[Version, Pre] = {}
    try:
        with index.client() as client:
            for offer in index.offers(client, project, about["floor"], {}):
                if not offer.yanked:
                    found[Version(offer.version)] = Pre(offer.version, None, offer.python)
    except UnhangError as error:
        raise TreeError(error.message) from error
    for tag in tags:
        try:
            version = Version(tag.removeprefix(prefix))
        except InvalidVersion:
            continue
        found[version] = found.get(version, Pre(str(version), None, "3.12"))._replace(tag=tag)
    newest = max(found, default=None)
    return found[newest] if newest is not None and newest.is_prerelease else None


def clone(repository: str, ref: str, folder: Path, remote: str) -> None:
    """Clone a branch or a tag into a new folder. Raises TreeError."""
    _git("clone", "--quiet", "--depth", "1", "--branch", ref, f"{remote}/{repository}", str(folder))


def unpack(project: str, pre: Pre, folder: Path) -> None:
    """Unpack a pre-release's wheel into a new folder, as an installer does. Raises TreeError."""
    downloads = folder.with_name(f"{folder.name}-wheels")
    downloads.mkdir()
    try:
        (path,) = fetch([f"{project}=={pre.version}"], Options(pre.python, ()), str(downloads)).paths
    except UnhangError as error:
        raise TreeError(error.message) from error
    with zipfile.ZipFile(path) as wheel:
        wheel.extractall(folder)


def put_megatron_beside(folder: Path, remote: str) -> None:
    """Add Megatron-LM's packages to a tree without them: some proofs need both. Raises TreeError."""
    if not (folder / "megatron").exists():
        other = folder.with_name(f"{folder.name}-megatron")
        clone(MEGATRON, BRANCH, other, remote)
        shutil.move(other / "megatron", folder / "megatron")


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        raise TreeError(f"git {words[0]} failed with {done.returncode}: {done.stderr.strip()}")
    return done.stdout
