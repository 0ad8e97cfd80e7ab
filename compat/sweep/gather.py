"""Gather what the sweep judges: the releases that the index offers, and what the clones hold, into a collection."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unhang.compat import index
from unhang.compat.index import Offer
from unhang.compat.sweep import as_written, clones, fetch, settle, sources
from unhang.compat.sweep.cache import Cache
from unhang.compat.sweep.collect import Collection
from unhang.compat.sweep.learnt import Learnt
from unhang.errors import UnhangError
from unhang.shapes import catalog
from unhang.shapes.catalog import Target

if TYPE_CHECKING:
    from git import Repo


def targets() -> list[Target]:
    """The targets of all fixes."""
    return [target for fix in catalog.fixes().values() for target in fix.targets]


def wanted(targets: Iterable[Target]) -> dict[str, list[str]]:
    """The files that these targets lie in, by upstream."""
    found: dict[str, list[str]] = {}
    for target in targets:
        if target.file not in found.setdefault(target.upstream, []):
            found[target.upstream].append(target.file)
    return found


def pinned(folder: str) -> list[dict[str, Any]]:
    """The rows of a folder's wheels.json, each with its ``project``; none where there is no such file yet."""
    with suppress(FileNotFoundError):
        return sources.rows(json.loads(Path(folder, "wheels.json").read_text(encoding="utf-8")))
    return []


def releases(
    collection: Collection, pins: Sequence[Mapping[str, Any]], cache: Cache, wheels: str | None
) -> tuple[list[Offer], int]:
    """Collect the releases that the index offers; gives these, and how many wheels had to be opened for them.

    Raises UnhangError ``pin-changed`` or ``pin-gone`` where the index contradicts a pin, and what ``fetch`` raises.
    """
    with index.client(fetch.CONNECTIONS) as session:
        offered = index.all_offers(session, sources.load("upstreams.json")["upstreams"], pins)
        index.hold_against(pins, offered)
        if gone := index.gone(pins, offered):
            raise UnhangError(
                "pin-gone",
                f"the index no longer has {', '.join(gone)}",
                hint="people may run it still; take its row out of compat/wheels.json if it is to be forgotten",
            )
        found, opened = fetch.releases(session, offered, wanted(collection.targets), cache, wheels=wheels)
    for release in found:
        collection.release(release)
    return offered, opened


def open_clones(where: Mapping[str, str], cache: Cache) -> dict[str, Repo]:
    """The clones of the upstreams, by name. Raises UnhangError ``clone-failed``."""
    pulls = sources.load("upstreams.json")["as-written"]
    return {
        name: clones.open_clone(place, cache.folder, [pull["ref"] for pull in pulls if pull["upstream"] == name])
        for name, place in where.items()
    }


def history(collection: Collection, repos: Mapping[str, Repo]) -> int:
    """Collect what the clones hold: trees, history, and the tips of branches; gives how many commits touched a target.

    What does not parse is named on stderr: a branch may be broken for a day. Raises UnhangError ``clone-failed``.
    """
    commits = 0
    for project, repo in repos.items():
        about = sources.load("upstreams.json")["upstreams"][project]
        mine = wanted(item for item in collection.targets if item.upstream in sources.upstreams_of(project))
        paths = [path for found in mine.values() for path in found]
        if "tree-tags" in about:
            published = list(collection.releases.get("megatron-lm", ()))
            for release in clones.trees(repo, about, mine["megatron-lm"], published):
                collection.release(release)
        seen, touched = clones.history(repo, about, paths)
        commits += touched
        for line in collection.history(seen):
            print(f"left out: {line}", file=sys.stderr)
        for path, found in clones.tips(repo, about, paths):
            collection.tip(path, found)
    return commits


def pull_requests(collection: Collection, learnt: Learnt, repos: Mapping[str, Repo]) -> None:
    """Collect the shapes of upstream's pull requests as written. Raises UnhangError ``clone-failed``."""
    for pull in sources.load("upstreams.json")["as-written"]:
        if pull["upstream"] in repos:
            (target,) = (
                item
                for item in collection.targets
                if (item.fix, item.file, item.function) == (pull["fix"], pull["file"], pull["function"])
            )
            diff = as_written.hunks(repos[pull["upstream"]], pull["ref"], pull["file"], pull["function"])
            settle.as_written(collection, learnt, target, diff, pull["note"])


def clone_places(told: Iterable[str]) -> dict[str, str]:
    """Where each upstream's clone is: as ``UPSTREAM=PATH_OR_URL`` says, else as the environment does.

    Raises UnhangError ``usage``.
    """
    found = {name: os.environ[variable] for name, variable in clones.VARIABLES.items() if os.environ.get(variable)}
    for item in told:
        name, _, where = item.partition("=")
        if name not in clones.VARIABLES or not where:
            names = ", ".join(clones.VARIABLES)
            raise UnhangError("usage", f"--clone {item}: not UPSTREAM=PATH_OR_URL", hint=f"upstreams: {names}")
        found[name] = where
    return found
