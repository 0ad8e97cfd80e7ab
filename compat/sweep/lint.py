"""Lints the matrix: ``python -m unhang.compat.sweep.lint``. Prints a line for each problem.

The JSON Schemas in compat/schemas/ check the form of the files (``nox -s compat`` runs both); this checks what they
say, and compares a random sample of releases with their real wheels.
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
from unhang.compat.sweep import fetch, gather, pins, rules, sources
from unhang.compat.sweep.cache import Cache
from unhang.compat.sweep.learnt import Learnt, UnreadableError
from unhang.compat.sweep.rules import RELEASES, SHAPES, WHEELS, Data, Problem
from unhang.compat.sweep.sources import Release
from unhang.errors import UnhangError
from unhang.shapes import catalog
from unhang.tell import progress, report


def main(arguments: Sequence[str] | None = None) -> int:
    """Lint the checkout's matrix. Return 1 if there is a problem, 2 if a wheel cannot be fetched, else 0."""
    parser = argparse.ArgumentParser(prog="python -m unhang.compat.sweep.lint", description=__doc__)
    parser.add_argument("--sample", type=int, default=6, help="how many releases to verify; 0 needs no index")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6), help="selects the sample")
    options = parser.parse_args(arguments)
    try:
        data, found = read(sources.HERE, [fix.folder for fix in catalog.fixes().values()])
        found = found or lint(data)
        if options.sample and not found:
            print(f"verifying {options.sample} releases (--seed {options.seed})", flush=True)
            found = list(verify(data, chosen(pins.read(sources.HERE), options.sample, options.seed)))
    except UnhangError as error:
        print(report.text_error(error), file=sys.stderr)
        return 2
    for problem in found:
        print(f"{problem.file}: {problem.entry}: {problem.message}")
    releases = sum(len(entry["versions"]) for entry in data.releases.values())
    counts = f"{len(data.manifests)} fixes, {releases} releases, {len(data.shapes)} shapes, {len(data.files)} files"
    print(f"{len(found)} problems in {counts}" if found else f"{counts}: no problem")
    return 1 if found else 0


def read(compat: Path, patches: Sequence[str]) -> tuple[Data, list[Problem]]:
    """Read the files of the matrix and the manifests in these folders; return them, and their duplicate keys.

    JSON Schema cannot see a duplicate key: the parser keeps the last one.
    """
    problems: list[Problem] = []

    def load(path: Path) -> Any:
        def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
            found: dict[str, Any] = {}
            for key, value in items:
                if key in found:
                    problems.append(Problem(path.name, key, "is a duplicate key; keep one"))
                found[key] = value
            return found

        return json.loads(path.read_bytes(), object_pairs_hook=pairs)

    manifests = {os.path.basename(folder): load(Path(folder, "manifest.json")) for folder in patches}
    generated = {name: load(compat / "data" / f"{name}.json")[name] for name in rules.GENERATED}
    written = {name: load(compat / f"{name}.json") for name in ("wheels", "upstreams", "decisions", "superseded")}
    return Data(manifests, **generated, **{name: file[name] for name, file in written.items()}), problems


def lint(data: Data) -> list[Problem]:
    """Return the problems that the first failing rule finds; later rules depend on earlier ones. Pure."""
    return next((found for rule in rules.RULES if (found := list(rule(data)))), [])


def chosen(pinned: Sequence[Mapping[str, Any]], number: int, seed: int) -> list[Mapping[str, Any]]:
    """Return this many random pins, one of each project first. The same seed gives the same pins. Pure."""
    random_ = random.Random(seed)  # noqa: S311 - a sample, no secret
    left = sorted(pinned, key=lambda pin: (pin["project"], pin["version"]))
    random_.shuffle(left)
    first = {pin["project"]: pin for pin in left}
    others = [pin for pin in left if pin not in first.values()]
    return [*(first[name] for name in sorted(first)), *others][:number]


def verify(data: Data, sample: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    """Yield what the real wheels of these pins contradict. Raises UnhangError as ``index`` and ``fetch`` do."""
    targets = gather.targets()
    with tempfile.TemporaryDirectory(prefix="unhang-") as folder:
        cache = Cache(Path(folder))  # an empty one, so that nothing rests on an earlier run
        learnt = Learnt(cache)
        with index.client(fetch.CONNECTIONS) as client, progress.shown() as step:
            projects = {pin["project"] for pin in sample}
            upstreams = {name: entry for name, entry in data.upstreams.items() if name in projects}
            offered = index.all_offers(client, upstreams, sample)
            pins.hold_against(sample, offered)
            wanted = {(pin["project"], pin["version"]) for pin in sample}
            mine = [offer for offer in offered if (offer.project, offer.version) in wanted]
            wheels = os.environ.get("UNHANG_WHEELS")
            releases, _ = fetch.releases(client, mine, gather.wanted(targets), cache, wheels=wheels, step=step)
        for name in pins.gone(sample, offered):
            yield Problem(WHEELS, name, "is not on the index any more")
        for release in releases:
            print(f"  {release.upstream} {release.version}")
            yield from _contradicted(data, release, learnt)


def _contradicted(data: Data, release: Release, learnt: Learnt) -> Iterator[Problem]:
    entry = data.releases[release.upstream]
    listed = dict(zip(entry["targets"], entry["versions"][release.version]["shapes"]))
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
            yield Problem(RELEASES, where, f"{error}; run nox -s sweep")
            continue
        if shape != listed[name]:
            yield Problem(RELEASES, where, f"its wheel has {shape}, the data {listed[name]}; run nox -s sweep")
        elif shape is not None and content is not None and (target.fix, shape) not in by_person:
            row, state = rows[target.fix, target.function, shape], learnt.state(content, target)
            if (state.state, state.result) != (row["state"], row.get("result")):
                found = f"is {state.state} {state.result or ''} by its wheel, {row['state']} by the data"
                yield Problem(SHAPES, where, f"{found}; run nox -s sweep")


if __name__ == "__main__":
    raise SystemExit(main())
