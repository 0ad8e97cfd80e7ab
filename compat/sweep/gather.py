"""Gathers the releases on the index and the history in the clones into a collection."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unhang.compat import index, upstreams
from unhang.compat.index import Offer
from unhang.compat.sweep import as_written, clones, fetch, frozen, pins, settle, sources
from unhang.compat.sweep.cache import Cache
from unhang.compat.sweep.clones import Clone
from unhang.compat.sweep.collect import Collection
from unhang.compat.sweep.learnt import Learnt
from unhang.errors import UnhangError
from unhang.shapes import catalog
from unhang.shapes.catalog import Target
from unhang.tell.progress import Step, silent

if TYPE_CHECKING:
    from pypi_simple import PyPISimple


def targets(fixes: Iterable[str] = ()) -> list[Target]:
    """Return the targets of all fixes, or of these, and the functions that the targets depend on.

    Raises UnhangError ``unknown-fix``.
    """
    chosen = [catalog.fix(name) for name in fixes] or catalog.fixes().values()
    return [target for fix in chosen for target in fix.functions]


def projects(targets: Iterable[Target]) -> list[str]:
    """Return the upstreams on the index, and as clones, that have these targets."""
    wanted = {target.upstream for target in targets}
    return [name for name in upstreams.projects() if wanted & {*upstreams.of_project(name)}]


def wanted(targets: Iterable[Target]) -> dict[str, list[str]]:
    """Return the files of these targets, by upstream."""
    found: dict[str, list[str]] = {}
    for target in targets:
        if target.file not in found.setdefault(target.upstream, []):
            found[target.upstream].append(target.file)
    return found


def offers(
    client: PyPISimple, targets: Iterable[Target], pinned: Sequence[Mapping[str, Any]], on_record: bool = False
) -> list[Offer]:
    """Return the wheel that stands for each release on the index.

    ``on_record``: leave out upstreams without a target, and releases without a pin of an upstream that has any. Raises
    UnhangError ``pin-changed`` or ``pin-gone`` if the index contradicts a pin, else as ``index.all_offers`` does.
    """
    mine = upstreams.projects()
    if on_record:
        mine = {name: mine[name] for name in projects(targets)}
        pinned = [pin for pin in pinned if pin["project"] in mine]
    offered = index.all_offers(client, mine, pinned)
    pins.hold_against(pinned, offered)
    if gone := pins.gone(pinned, offered):
        raise UnhangError(
            "pin-gone",
            f"the index no longer has {', '.join(gone)}",
            hint="people may still run it; to drop it from the matrix, delete its row in compat/wheels.json",
        )
    if on_record:
        known = {(pin["project"], pin["version"]) for pin in pinned}
        new = mine.keys() - {project for project, _ in known}
        offered = [offer for offer in offered if offer.project in new or (offer.project, offer.version) in known]
    return offered


def releases(
    client: PyPISimple, collection: Collection, offered: Sequence[Offer], cache: Cache, wheels: str | None, step: Step
) -> int:
    """Collect these releases; return how many wheels were opened. Raises as ``fetch.releases`` does."""
    found, opened = fetch.releases(client, offered, wanted(collection.targets), cache, wheels=wheels, step=step)
    for release in found:
        collection.release(release)
    return opened


def open_clones(
    where: Mapping[str, str], cache: Cache, compat: Path = sources.HERE, newest: bool = False
) -> dict[str, Clone]:
    """Open the upstreams' clones, by name: to read the commits that are frozen in ``compat``, or the newest ones.

    A pull request or an upstream that is not frozen yet is read as it is now. Raises UnhangError ``no-git`` or
    ``clone-failed``.
    """
    mine, commits, opened = upstreams.projects(), frozen.read(compat), {}
    for name, place in where.items():
        pulls = list(dict.fromkeys(pull.ref for pull in as_written.pulls() if pull.project == name))
        repo = clones.open_clone(place, cache.folder, pulls)
        entry = mine[name]
        if newest or name not in commits:  # a new upstream has nothing on record
            opened[name] = clones.newest(repo, entry, pulls)
            continue
        clone = clones.at(repo, commits.get(name, {}))
        fresh = clones.pulled(repo, [ref for ref in pulls if ref not in clone.pulls])
        opened[name] = clone._replace(pulls={**clone.pulls, **fresh})
    return opened


def history(collection: Collection, opened: Mapping[str, Clone], step: Step = silent) -> int:
    """Collect source trees, history and branch tips; return how many commits changed a target's file.

    Reports contents that do not parse on stderr: a branch may be broken for a day. Raises UnhangError ``clone-failed``.
    """
    commits = 0
    for project, clone in opened.items():
        if project not in projects(collection.targets):
            continue
        step(f"reading the history of {project}")
        entry = upstreams.projects()[project]
        mine = wanted(item for item in collection.targets if item.upstream in upstreams.of_project(project))
        paths = [path for found in mine.values() for path in found]
        if "tree-tags" in entry:
            for upstream in upstreams.of_project(project)[1:]:
                published = list(collection.releases.get(upstream, ()))
                for release in clones.trees(clone, upstream, entry, mine.get(upstream, ()), published):
                    collection.release(release)
        seen, changed = clones.history(clone, entry, paths)
        commits += changed
        for line in collection.history(seen):
            step("")
            print(f"left out: {line}", file=sys.stderr)
        for path, found in clones.tips(clone, entry, paths):
            collection.tip(path, found)
        for target in collection.targets:
            if target.upstream in upstreams.of_project(project) and (other := target.depends_on) is not None:
                for one, beside in clones.pairs(clone, entry, (target.file, other.file)):
                    collection.together(target, one, beside)
    return commits


def pull_requests(collection: Collection, learnt: Learnt, opened: Mapping[str, Clone]) -> None:
    """Collect the shapes of upstream's pull requests as written. Raises UnhangError ``clone-failed``."""
    for pull in as_written.pulls():
        if pull.project in opened and pull.target in collection.targets:
            diff = as_written.hunks(opened[pull.project], pull.ref, pull.target.file, pull.target.function)
            settle.as_written(collection, learnt, pull.target, diff, pull.note)


def clone_places(arguments: Iterable[str]) -> dict[str, str]:
    """Return where each clone is: from ``UPSTREAM=PATH_OR_URL`` arguments, else from the environment.

    Raises UnhangError ``usage``.
    """
    found = {name: os.environ[variable] for name, variable in clones.variables().items() if os.environ.get(variable)}
    for argument in arguments:
        name, _, where = argument.partition("=")
        if name not in clones.variables() or not where:
            names = ", ".join(clones.variables())
            raise UnhangError("usage", f"--clone {argument}: not UPSTREAM=PATH_OR_URL", hint=f"upstreams: {names}")
        found[name] = where
    return found
