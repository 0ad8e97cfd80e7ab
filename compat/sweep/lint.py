"""Lint the matrix: `python -m unhang.compat.sweep.lint`. Lists each problem on a line; exits with 1 if it finds any.

Then a random sample of releases is verified again against the real wheels: shapes taken anew, and their states too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from unhang.compat import index
from unhang.compat.sweep import fetch, gather, rules, schema, sources
from unhang.compat.sweep.cache import Cache
from unhang.compat.sweep.learnt import Learnt, UnreadableError
from unhang.compat.sweep.schema import Data, Problem
from unhang.compat.sweep.sources import Release
from unhang.errors import UnhangError
from unhang.shapes import catalog
from unhang.tell import report


def main(arguments: Sequence[str] | None = None) -> int:
    """Lint the installed matrix: 0 if all holds, 1 if something does not, 2 where a wheel cannot be had."""
    parser = argparse.ArgumentParser(prog="python -m unhang.compat.sweep.lint", description=__doc__)
    parser.add_argument("--sample", type=int, default=6, help="how many releases to verify again; 0: none, offline")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6), help="which they are")
    options = parser.parse_args(arguments)
    try:
        data, found = read(Path(sources.HERE), [fix.folder for fix in catalog.fixes().values()])
        found = found or lint(data)
        if options.sample and not found:
            print(f"verifying {options.sample} releases again (--seed {options.seed})", flush=True)
            found = list(verify(data, chosen(sources.pins(), options.sample, options.seed)))
    except UnhangError as error:
        print(report.text_error(error), file=sys.stderr)
        return 2
    for problem in found:
        print(f"{problem.file}: {problem.entry}: {problem.message}")
    releases = sum(len(told["versions"]) for told in data.releases.values())
    counts = f"{len(data.manifests)} fixes, {releases} releases, {len(data.shapes)} shapes, {len(data.files)} files"
    print(f"{len(found)} problems in {counts}" if found else f"{counts}: all holds")
    return 1 if found else 0


def read(compat: Path, patches: Sequence[str]) -> tuple[Data, list[Problem]]:
    """The files of the matrix, and the manifests in these folders; and what is wrong with the files as such.

    Raises KeyError where a file lacks what it is about.
    """
    problems: list[Problem] = []

    def load(path: Path) -> Any:
        def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
            found = dict(items)
            if len(found) != len(items):
                again = next(key for number, (key, _) in enumerate(items) if key in dict(items[:number]))
                problems.append(Problem(path.name, again, "stands there twice: the last one would win; keep one"))
            return found

        return json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=pairs)

    manifests = {os.path.basename(folder): load(Path(folder) / "manifest.json") for folder in patches}
    whole = {}
    for name in schema.WHOLE:
        beside = compat / f"{name}.json"
        path = beside if beside.exists() else compat / "data" / f"{name}.json"
        whole[name] = load(path)
        problems += schema.whole(path.name, name, whole[name])
    named = {name: told[name] for name, told in whole.items() if name in Data._fields}
    data = Data(manifests, pulls=whole["upstreams"]["as-written"], **named)
    return data, problems


def lint(data: Data) -> list[Problem]:
    """All that does not hold of the data; no more than the first kind of it, which the others rest on. Pure."""
    for rule in rules.RULES:
        found = list(rule(data))
        if found:
            return found
    return []


def chosen(pins: Sequence[Mapping[str, Any]], number: int, seed: int) -> list[Mapping[str, Any]]:
    """So many pins at random, the same for the same seed: one of each project first, then any. Pure."""
    random_ = random.Random(seed)  # noqa: S311 - a sample, no secret
    left = sorted(pins, key=lambda pin: (pin["project"], pin["version"]))
    random_.shuffle(left)
    first = {pin["project"]: pin for pin in left}
    others = [pin for pin in left if pin not in first.values()]
    return [*(first[name] for name in sorted(first)), *others][:number]


def verify(data: Data, pins: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    """What the real wheels of these pins contradict. Raises UnhangError as the index and the fetching do."""
    targets = gather.targets()
    with tempfile.TemporaryDirectory(prefix="unhang-") as folder:
        cache = Cache(Path(folder))  # of its own: what another run has learnt is not asked
        learnt = Learnt(cache)
        with index.client(fetch.CONNECTIONS) as session:
            projects = {pin["project"] for pin in pins}
            upstreams = {name: about for name, about in data.upstreams.items() if name in projects}
            offered = index.all_offers(session, upstreams, pins)
            index.hold_against(pins, offered)
            wanted = {(pin["project"], pin["version"]) for pin in pins}
            sample = [offer for offer in offered if (offer.project, offer.version) in wanted]
            there = os.environ.get("UNHANG_WHEELS")
            releases, _ = fetch.releases(session, sample, gather.wanted(targets), cache, wheels=there)
        for project, version in sorted(wanted - {(offer.project, offer.version) for offer in sample}):
            yield Problem("compat/wheels.json", f"{project} {version}", "is not on the index any more")
        for release in releases:
            print(f"  {release.upstream} {release.version}")
            yield from _contradicted(data, release, learnt)


def _contradicted(data: Data, release: Release, learnt: Learnt) -> Iterator[Problem]:
    told = data.releases[release.upstream]
    listed = dict(zip(told["targets"], told["versions"][release.version]["shapes"]))
    rows = {(row["fix"], row["function"], row["shape"]): row for row in data.shapes}
    by_person = {(row["fix"], row["shape"]) for row in data.decisions}
    for target in gather.targets():
        if target.upstream != release.upstream:
            continue
        name, content = f"{target.file}::{target.function}", release.files[target.file]
        where = f"{release.upstream} {release.version} {name}"
        try:
            shape = None if content is None else learnt.shape(content, target.function)
        except UnreadableError as error:
            yield Problem("compat/data/releases.json", where, f"{error}; run nox -s sweep")
            continue
        if shape != listed[name]:
            message = f"its wheel has {shape}, the data {listed[name]}; run nox -s sweep"
            yield Problem("compat/data/releases.json", where, message)
        elif shape is not None and content is not None and (target.fix, shape) not in by_person:
            row, state = rows[target.fix, target.function, shape], learnt.state(content, target)
            if (state.state, state.result) != (row["state"], row.get("result")):
                told_now = f"is {state.state} {state.result or ''} by its wheel, {row['state']} by the data"
                yield Problem("compat/data/shapes.json", where, f"{told_now}; run nox -s sweep")


if __name__ == "__main__":
    raise SystemExit(main())
