"""Every commit that the sweep reads, by what it has in the targets' files. Each object is looked up, none inferred."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from packaging.version import InvalidVersion, Version

from unhang.compat import upstreams
from unhang.compat.sweep import gather
from unhang.compat.sweep.clones import Clone, Reader, in_tree, introduced, together
from unhang.compat.sweep.sources import Content
from unhang.find import metadata
from unhang.plugins import packs
from unhang.shapes.catalog import Target


class Tree(NamedTuple):
    """What some commits have in common: the version, and the targets' files."""

    version: str
    """As ``unhang`` reads it."""
    files: Mapping[str, Content | None]
    """Each target's file, by path; None if there is none."""
    commits: Sequence[str]
    """Their ids, the newest first."""


class History(NamedTuple):
    """The history of an upstream."""

    trees: Sequence[Tree]
    """Each distinct tree of the commits at or above the floor."""
    older: int
    """How many other commits there are: they are below the floor, or state no version."""

    @property
    def commits(self) -> int:
        """How many commits are at or above the floor."""
        return sum(len(tree.commits) for tree in self.trees)


class Found(NamedTuple):
    """One content of a target's file, and the commits that have it."""

    target: Target
    content: Content
    commits: Sequence[str]
    """Their ids, the newest first."""


def of_upstream(project: str, clone: Clone) -> History:
    """Return the history of an upstream in its clone."""
    mine = upstreams.of_project(project)
    paths = sorted({target.file for target in gather.targets() if target.upstream in mine})
    return read(clone, project, upstreams.projects()[project], paths)


def read(clone: Clone, project: str, entry: Mapping[str, Any], paths: Iterable[str]) -> History:
    """Return the history of an upstream. ``entry`` is its file in upstreams/, ``paths`` are its targets' files.

    A pre-release of the floor is below it, as it is to ``unhang check``.
    """
    names = [entry["version"]["file"], *paths]
    places = [in_tree(entry, name) for name in names]
    reader = Reader(clone.repo)
    reader.prefetch({blob for _, _, blob in introduced(clone, places)})
    alike = together(clone, places)
    floor, trees, older = Version(entry["floor"]), [], 0
    for ids, same in alike.items():
        found = {name: reader.content(blob) if blob else None for name, blob in zip(names, ids)}
        version = _version(project, entry["version"]["file"], found.pop(entry["version"]["file"]))
        if version is None or Version(version) < floor:
            older += len(same)
        else:
            trees.append(Tree(version, found, same))
    return History(trees, older)


def contents(history: History, targets: Iterable[Target]) -> Iterator[Found]:
    """Yield each distinct content of these targets' files. Pure."""
    for target in targets:
        found: dict[Content, list[str]] = {}
        for tree in history.trees:
            content = tree.files.get(target.file)
            if content is not None:
                found.setdefault(content, []).extend(tree.commits)
        for content, commits in found.items():
            yield Found(target, content, commits)


def _version(project: str, path: str, found: Content | None) -> str | None:
    """Return the version that a tree with this version file has, as ``unhang`` reads it; None if it states none."""
    if found is None:
        return None
    module = packs.upstreams()[project].module
    with tempfile.TemporaryDirectory(prefix="unhang-") as root:
        file = Path(root, path)
        file.parent.mkdir(parents=True, exist_ok=True)  # it may be in the root
        file.write_bytes(found.data)
        metadata.read.cache_clear()
        version = metadata.version(module, os.path.join(root, *module.split(".")))
    return version if version and _is_number(version) else None


def _is_number(version: str) -> bool:
    try:
        Version(version)
    except InvalidVersion:
        return False
    return True
