"""Generates compat/ from upstream's releases and history: ``python -m unhang.compat.sweep.generate``.

It examines each content once, however many releases and commits have it. It does not guess: it lists the shapes that
neither evidence nor a person has decided, and exits with 1.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unhang.compat import index, upstreams
from unhang.compat.index import Offer
from unhang.compat.sweep import by_fix, clones, fetch, frozen, gather, matrix_files, pins, sources
from unhang.compat.sweep.cache import Cache, default_folder
from unhang.compat.sweep.collect import Collection
from unhang.compat.sweep.learnt import Learnt
from unhang.compat.sweep.settle import Settled, settle
from unhang.errors import UnhangError
from unhang.judge.decide import OURS
from unhang.plugins import packs
from unhang.shapes import catalog, facts
from unhang.shapes.catalog import Fix
from unhang.tell import progress, report
from unhang.tell.progress import Step


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sweep.

    Return 0 if every shape was decided, 1 if a person must decide some, 2 if it could not run (then it wrote nothing),
    130 if it was interrupted.
    """
    options = _parser().parse_args(arguments)
    try:
        with progress.shown() as step:
            return _run(options, step)
    except UnhangError as error:
        print(report.text_error(error), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the cache keeps what was fetched: run it again to continue", file=sys.stderr)
        return 130


def _run(options: argparse.Namespace, step: Step) -> int:
    if options.fix and options.newest:
        hint = "first run it with --newest alone"
        raise UnhangError("usage", "--newest moves the commits of all fixes, so it does not go with --fix", hint=hint)
    fixes = [catalog.fix(name) for name in options.fix or catalog.fixes()]
    for fix in fixes:
        dict(fix.manifest)  # before anything is fetched: git may have left conflict markers
    targets = [target for fix in fixes for target in fix.functions]
    before = {fix.id: facts.known(str(options.out / "data" / f"{fix.id}.json")) for fix in fixes}
    swept = frozen.branches(options.out)
    projects = gather.projects(targets)
    places = {name: place for name, place in gather.clone_places(options.clone).items() if name in projects}
    if not options.without_history:
        _require(places, projects)
    cache = Cache(options.cache or default_folder())
    learnt = Learnt(cache)
    collection = Collection(targets, learnt)
    times = [time.monotonic()]
    try:
        wheels = options.wheels or os.environ.get("UNHANG_WHEELS")
        with index.client(fetch.CONNECTIONS) as client:
            pinned = pins.read(options.out)
            offered = gather.offers(client, targets, pinned, on_record=bool(options.fix))
            times.append(time.monotonic())
            opened = gather.releases(client, collection, offered, cache, wheels, step)
        times.append(time.monotonic())
        opened_clones = gather.open_clones(places, cache, options.out, options.newest)
        commits = gather.history(collection, opened_clones, step)
        times.append(time.monotonic())
        new = [fix for fix in fixes if catalog.facts(fix.id).get("targets") != by_fix.places(fix)]
        _begin(new, collection, learnt, step)
        step("applying pull requests as they are written")
        gather.pull_requests(collection, learnt, opened_clones)
        settled = settle(collection, learnt, sources.decisions(), step)
        settled.undecided.extend(collection.patched(settled.results))
        texts = {}
        for fix in fixes:
            kept = before[fix.id] if options.fix else {**before[fix.id], "releases": {}}
            known = by_fix.facts(fix, collection, learnt, settled, opened_clones, kept)
            texts[f"data/{fix.id}.json"] = matrix_files.facts(known)
        mine = {offer.project for offer in offered}
        others = [pin for pin in pinned if options.fix and pin["project"] not in mine]
        if not options.fix or mine - {pin["project"] for pin in pinned}:  # of an upstream that is new
            listed = facts.known(str(options.out / "releases.json")).get("releases", {}) if options.fix else {}
            texts |= {
                "wheels.json": matrix_files.wheels([*others, *(offer._asdict() for offer in offered)]),
                "releases.json": matrix_files.releases(collection.releases, listed),
            }
        if (moved := frozen.moved(swept, opened_clones)) != swept:
            texts[frozen.NAME] = matrix_files.swept(moved)
    finally:
        learnt.save()
    step("")
    _say_undecided(settled)
    if not options.forget:
        _refuse_to_forget(options.out, before, settled)
    matrix_files.write({str(options.out / name): text for name, text in texts.items()})
    times.append(time.monotonic())
    _report(collection, settled, offered, commits)
    asked, first, second, third = (now - before for before, now in zip(times, times[1:]))
    print(f"{asked:.2f} s for the index, {opened} wheels opened")
    print(f"{first:.2f} s for the releases, {len(offered) / first:.0f} a second")
    print(f"{second:.2f} s for the history, {commits / second:.0f} commits a second; {third:.2f} s to decide and write")
    return 1 if settled.undecided else 0


def _begin(fixes: Sequence[Fix], collection: Collection, learnt: Learnt, step: Step) -> None:
    """Put on record what the releases have of fixes that are new, or have a new target: a scene plays in a release.

    What no release has plays in the closest one, and what depends on another function beside a wrong one of that.
    """
    released = Collection([target for fix in fixes for target in fix.functions], learnt)
    for release in (release for versions in collection.releases.values() for release in versions.values()):
        released.release(release)
    settled, is_more = Settled([], {}, [], [], {}), bool(fixes)
    while is_more:
        known = {fix.id: by_fix.facts(fix, released, learnt, settled, {}, {}) for fix in fixes}
        catalog.learn({fix: json.loads(matrix_files.facts(of_fix)) for fix, of_fix in known.items()})
        before, settled = settled, settle(released, learnt, sources.decisions(), step)
        is_more = len(settled.rows) > len(before.rows)


def _require(places: Mapping[str, str], projects: Sequence[str]) -> None:
    """Raise UnhangError ``no-clone`` unless there is a clone of each of these upstreams."""
    entries = upstreams.projects()
    missing = [entries[name] for name in projects if name not in places]
    if missing:
        raise UnhangError(
            "no-clone",
            f"no clone of {', '.join(it['repository'] for it in missing)} is given: its history would be left out",
            hint=f"name each in {', '.join(it['clone'] for it in missing)} or with --clone UPSTREAM=PATH_OR_URL, or "
            "leave it out with --without-history",
        )


def _refuse_to_forget(out: Path, before: Mapping[str, Any], settled: Settled) -> None:
    """Raise UnhangError ``would-forget`` if shapes on record would be lost: a clone may lack a branch."""
    now = {(row["fix"], f"{row['function']} {row['shape']}") for row in settled.rows}
    known = [(fix, key, row["state"]) for fix, facts in before.items() for key, row in facts.get("shapes", {}).items()]
    if lost := [(fix, key) for fix, key, state in known if state != OURS and (fix, key) not in now]:
        raise UnhangError(
            "would-forget",
            f"{len(lost)} shapes on record would be lost, the first is {' '.join(lost[0])}",
            path=str(out / "data" / f"{lost[0][0]}.json"),
            hint="mend what is undecided, or fetch all branches and tags into the clones; to lose them, --forget",
        )


def _say_undecided(settled: Settled) -> None:
    for line in settled.undecided:
        print(f"undecided: {line}", file=sys.stderr)
    if settled.undecided:
        print("  mend the scene or the codemod, or decide in the manifest", file=sys.stderr)


def _report(collection: Collection, settled: Settled, offered: Sequence[Offer], commits: int) -> None:
    nightlies = sum(".dev" in offer.version for offer in offered)
    print(f"{len(offered)} releases, {nightlies} of them nightlies, {sum(offer.yanked for offer in offered)} yanked")
    for upstream in (one.name for one in packs.upstreams().values() if one.within is not None):
        print(f"{len(collection.releases.get(upstream, ()))} releases of {upstream}, as source trees or in wheels")
    print(f"{commits} commits, {len(set().union(*collection.contents.values()))} distinct files")
    counts = Counter((row["fix"], row["function"]) for row in settled.rows)
    for (fix, function), files in sorted(collection.contents.items()):
        print(f"{counts[fix, function]} shapes of {function} ({fix}), in {len(files)} distinct files")
    print(f"{len(settled.rows)} shapes, {len({digest for _, digest in collection.files})} file digests")
    print(f"{len(settled.by_person)} decided by a person, {len(settled.undecided)} undecided")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m unhang.compat.sweep.generate")
    parser.add_argument(
        "--fix", action="append", default=[], metavar="ID", help="only this fix, on the releases and commits on record"
    )
    parser.add_argument("--out", type=Path, default=sources.HERE, help="the folder to write (default: compat)")
    parser.add_argument(
        "--clone",
        action="append",
        default=[],
        metavar="UPSTREAM=PATH_OR_URL",
        help=f"a clone of an upstream (default: {', '.join(clones.variables().values())})",
    )
    parser.add_argument(
        "--newest", action="store_true", help="read what the clones have now, and freeze it in swept.json"
    )
    parser.add_argument("--wheels", metavar="DIR", help="a folder of downloaded wheels (default: UNHANG_WHEELS)")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="the cache (default: ~/.cache/unhang/sweep)")
    parser.add_argument("--without-history", action="store_true", help="go on without the clones that are not given")
    parser.add_argument("--forget", action="store_true", help="drop shapes on record that are no longer seen")
    return parser


if __name__ == "__main__":
    gc.disable()  # it would walk every syntax tree and find nothing to free
    raise SystemExit(main())
