"""Generate compat/ from upstream's releases and history: `python -m unhang.compat.sweep --out compat`.

A content is looked at once, however many releases and commits have it. What cannot be decided by evidence, and is not
in decisions.json, is listed, and the sweep exits with 1: it does not guess.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from unhang import catalog, report
from unhang.catalog import Target
from unhang.compat import as_written, clones, fetch, index, matrix_files, settle, sources
from unhang.compat.cache import Cache, default_folder
from unhang.compat.collect import Collection
from unhang.compat.index import Offer
from unhang.compat.learnt import Learnt
from unhang.compat.settle import Settled
from unhang.errors import UnhangError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sweep: 0 if every shape was decided, 1 if a person must decide some (listed), 2 if it could not be run."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except UnhangError as error:
        print(report.text_error(error), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted: nothing was written; what was fetched is kept, run it again to go on", file=sys.stderr)
        return 130


def wanted(targets: Sequence[Target]) -> dict[str, list[str]]:
    """The files that these targets lie in, by upstream."""
    found: dict[str, list[str]] = {}
    for target in targets:
        if target.file not in found.setdefault(target.upstream, []):
            found[target.upstream].append(target.file)
    return found


def all_targets() -> list[Target]:
    """The targets of all fixes."""
    return [target for fix in catalog.fixes().values() for target in fix.targets]


def _run(options: argparse.Namespace) -> int:
    started = time.monotonic()
    upstreams = sources.load("upstreams.json")["upstreams"]
    where = _clones(options)
    left_out = [item["repository"] for name, item in upstreams.items() if name not in where]
    if left_out and not options.without_history:
        hint = "name them: --clone UPSTREAM=PATH_OR_URL; or say --without-history"
        raise UnhangError("no-clone", f"no clone of {', '.join(left_out)}: its history would be left out", hint=hint)
    cache = Cache(Path(options.cache or default_folder()))
    learnt = Learnt(cache)
    collection = Collection(all_targets(), learnt)
    try:
        offered, opened = _releases(collection, upstreams, cache, options)
        fetched = time.monotonic()
        commits = _history(collection, learnt, upstreams, where, cache.folder)
        settled = settle.settle(
            collection,
            learnt,
            sources.load("decisions.json")["decisions"],
            sources.load("superseded.json")["superseded"],
        )
        collection.patched(settled.results)
    finally:
        learnt.save()
    texts = _texts(options.out, collection, settled, offered)
    if left_out:
        _refuse_to_forget(options.out, settled)
    matrix_files.write(texts)
    for line in settled.undecided:
        print(f"undecided: {line}", file=sys.stderr)
    _tell(collection, settled, offered, commits)
    done = time.monotonic()
    print(f"{opened} wheels opened; {fetched - started:.1f} s for the releases, {done - fetched:.1f} s for the history")
    return 1 if settled.undecided else 0


def _releases(
    collection: Collection, upstreams: Mapping[str, Any], cache: Cache, options: argparse.Namespace
) -> tuple[list[Offer], int]:
    """Collect what the index offers, and give that, with the number of wheels that had to be opened for it."""
    pins: dict[str, list[dict[str, Any]]] = {}
    with suppress(FileNotFoundError):
        pins = json.loads(Path(options.out, "wheels.json").read_text())["wheels"]
    rows = [{"project": project, **row} for project, mine in pins.items() for row in mine]
    with index.client(fetch.CONNECTIONS) as session:
        offered = []
        for project, about in upstreams.items():
            pinned = {row["version"]: row["file"] for row in pins.get(project, ())}
            offered += index.offers(session, project, about["floor"], pinned)
        index.hold_against(rows, offered)
        if gone := index.gone(rows, offered):
            raise UnhangError(
                "pin-gone",
                f"the index no longer has {', '.join(gone)}",
                hint="people may run it still; take its row out of compat/wheels.json if it is to be forgotten",
            )
        releases, opened = fetch.releases(
            session, offered, wanted(collection.targets), cache, wheels=options.wheels or os.environ.get("UNHANG_WHEELS")
        )
    for release in releases:
        collection.release(release)
    return offered, opened


def _history(
    collection: Collection, learnt: Learnt, upstreams: Mapping[str, Any], where: Mapping[str, str], cache: Path
) -> int:
    """Collect what the clones have: trees, history, tips, pull requests; gives how many commits touched a target."""
    commits, pulls = 0, sources.load("upstreams.json")["as-written"]
    for project, about in upstreams.items():
        if project not in where:
            continue
        repo = clones.open_clone(where[project], cache)
        mine = wanted([item for item in collection.targets if item.upstream in sources.upstreams_of(project)])
        paths = [path for found in mine.values() for path in found]
        if "tree-tags" in about:
            published = collection.releases.get("megatron-lm", ())
            for release in clones.trees(repo, about, mine["megatron-lm"], list(published)):
                collection.release(release)
        seen, touched = clones.history(repo, about, paths)
        commits += touched
        for line in collection.history(seen):
            print(f"left out: {line}", file=sys.stderr)
        for path, found in clones.tips(repo, about, paths):
            collection.tip(path, found)
        for pull in (pull for pull in pulls if pull["upstream"] == project):
            (target,) = (
                item
                for item in collection.targets
                if (item.fix, item.file, item.function) == (pull["fix"], pull["file"], pull["function"])
            )
            diff = as_written.hunks(repo, pull["ref"], pull["file"], pull["function"])
            settle.as_written(collection, learnt, target, diff, pull["note"])
    return commits


def _clones(options: argparse.Namespace) -> dict[str, str]:
    """Where each upstream's clone is: as the command line says, else as the environment does."""
    found = {name: os.environ[variable] for name, variable in clones.VARIABLES.items() if os.environ.get(variable)}
    for item in options.clone:
        name, _, where = item.partition("=")
        if name not in clones.VARIABLES or not where:
            names = ", ".join(clones.VARIABLES)
            raise UnhangError("usage", f"--clone {item}: not UPSTREAM=PATH_OR_URL", hint=f"upstreams: {names}")
        found[name] = where
    return found


def _texts(out: str, collection: Collection, settled: Settled, offered: Sequence[Offer]) -> dict[str, str]:
    data = os.path.join(out, "data")
    return {
        os.path.join(out, "wheels.json"): matrix_files.wheels(offered),
        os.path.join(data, "shapes.json"): matrix_files.shapes(settled.rows),
        os.path.join(data, "files.json"): matrix_files.files(collection.files),
        os.path.join(data, "releases.json"): matrix_files.releases(collection),
    }


def _refuse_to_forget(out: str, settled: Settled) -> None:
    """Raises UnhangError ``would-forget`` where shapes on record there would be lost, since a history was left out."""
    try:
        before = json.loads(Path(out, "data", "shapes.json").read_text())["shapes"]
    except FileNotFoundError:
        return
    now = {(row["fix"], row["function"], row["shape"]) for row in settled.rows}
    lost = [row for row in before if (row["fix"], row["function"], row["shape"]) not in now]
    if lost:
        raise UnhangError(
            "would-forget",
            f"{len(lost)} shapes on record would be lost: without history only releases are known",
            path=os.path.join(out, "data", "shapes.json"),
            hint="give --clone for each upstream, or another --out",
        )


def _tell(collection: Collection, settled: Settled, offered: Sequence[Offer], commits: int) -> None:
    nightlies = sum(".dev" in offer.version and offer.project == "megatron-core" for offer in offered)
    yanked = sum(offer.yanked for offer in offered)
    trees = sum(len(versions) for versions in collection.releases.values()) - len(offered)
    print(
        f"{len(offered)} releases on the index ({nightlies} of them nightlies, {yanked} yanked), {trees} of Megatron-LM; "
        f"{commits} commits; {len(collection.contents)} distinct files"
    )
    counts: dict[str, int] = {}
    for row in settled.rows:
        name = f"{row['fix']} {row['function']}"
        counts[name] = counts.get(name, 0) + 1
    for name, count in counts.items():
        print(f"{name}: {count} shapes")
    print(f"{len(settled.rows)} shapes, {len(collection.files)} file digests, {settled.by_person} decided by a person, ")
    print(f"{len(settled.undecided)} undecided")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m unhang.compat.sweep")
    parser.add_argument("--out", required=True, help="the folder to write to: compat")
    parser.add_argument(
        "--clone",
        action="append",
        default=[],
        metavar="UPSTREAM=PATH_OR_URL",
        help="a clone of an upstream (default: " + ", ".join(clones.VARIABLES.values()) + ")",
    )
    parser.add_argument("--wheels", metavar="DIR", help="a folder with wheels that need not be fetched again")
    parser.add_argument("--cache", metavar="DIR", help="where to keep what was fetched (default: ~/.cache/unhang/sweep)")
    parser.add_argument("--without-history", action="store_true", help="go on without the clones that are not given")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
