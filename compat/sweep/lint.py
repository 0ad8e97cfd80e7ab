"""Lints the fixes and the matrix: ``python -m unhang.compat.sweep.lint``. Prints a line for each problem.

Of a fix it names at once all that is missing or wrong in its parts. The JSON Schemas in compat/schemas/ check the form
of the other files (``nox -s compat`` runs both); this checks what they say, and compares a random sample of releases
with their real wheels.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from unhang.compat import index
from unhang.compat.sweep import fetch, gather, parts, pins, rules, sources
from unhang.compat.sweep.cache import Cache
from unhang.compat.sweep.learnt import Learnt, UnreadableError
from unhang.compat.sweep.rules import WHEELS, Data, Problem
from unhang.compat.sweep.sources import Release
from unhang.errors import UnhangError
from unhang.shapes import catalog, facts
from unhang.tell import progress, report


def main(arguments: Sequence[str] | None = None) -> int:
    """Lint the checkout's matrix. Return 1 if there is a problem, 2 if a wheel cannot be fetched, else 0."""
    parser = argparse.ArgumentParser(prog="python -m unhang.compat.sweep.lint", description=__doc__)
    parser.add_argument("--sample", type=int, default=6, help="how many releases to verify; 0 needs no index")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6), help="selects the sample")
    options = parser.parse_args(arguments)
    checkout = sources.HERE.parent
    names = parts.names(checkout)
    try:
        found = [problem for name in names for problem in parts.problems(checkout, name)]
        if any(problem.file.endswith("manifest.json") for problem in found):
            return _told(found, f"{len(names)} fixes; the matrix was not read, for a manifest is wrong")
        data, twice = read(sources.HERE, [fix.folder for fix in catalog.fixes().values()])
        found += twice or lint(data)
        if options.sample and not found:
            print(f"verifying {options.sample} releases (--seed {options.seed})", flush=True)
            found = list(verify(data, chosen(pins.read(sources.HERE), options.sample, options.seed)))
    except UnhangError as error:
        print(report.text_error(error), file=sys.stderr)
        return 2
    shapes, files = (sum(len(known[name]) for known in data.facts.values()) for name in ("shapes", "files"))
    counts = f"{len(data.manifests)} fixes, {len(data.releases)} releases, {shapes} shapes, {files} files"
    return _told(found, counts)


def _told(found: Sequence[Problem], counts: str) -> int:
    """Print the problems and what was read; return the exit code."""
    for problem in found:
        print(f"{problem.file}: {problem.entry}: {problem.message}")
    print(f"{len(found)} problems in {counts}" if found else f"{counts}: no problem")
    return 1 if found else 0


def read(compat: Path, patches: Sequence[str]) -> tuple[Data, list[Problem]]:
    """Read the files of the matrix and the manifests in these folders; return them, and their duplicate keys.

    JSON Schema cannot see a duplicate key: the parser keeps the last one. Raises UnhangError ``conflict-markers``.
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

        return facts.parsed(str(path), path.read_text(encoding="utf-8"), pairs)

    manifests = {os.path.basename(folder): load(Path(folder, "manifest.json")) for folder in patches}
    by_fix = {path.stem: load(path) for path in sorted((compat / "data").glob("*.json"))}
    releases, wheels = (load(compat / f"{name}.json")[name] for name in ("releases", "wheels"))
    listed = {path.stem: load(path) for path in sorted((compat.parent / "upstreams").glob("*.json"))}
    projects = {name: entry for name, entry in listed.items() if "within" not in entry}
    return Data(manifests, by_fix, releases, wheels, projects), problems


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
            listed = {name: entry for name, entry in data.upstreams.items() if name in projects}
            offered = index.all_offers(client, listed, sample)
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
    by_person = {(row["fix"], row["shape"]) for row in sources.decisions()}
    for target in gather.targets():
        if target.upstream != release.upstream:
            continue
        known, name, content = (
            data.facts[target.fix],
            f"{release.upstream} {release.version}",
            release.files[target.file],
        )
        file, where = rules.file_of(target.fix), f"{name} {target.place}"
        listed = dict(zip(known["targets"][target.upstream], known["releases"][name]))[target.place]
        try:
            shape = None if content is None else learnt.shape(content, target.function)
        except UnreadableError as error:
            yield Problem(file, where, f"{error}; run nox -s sweep")
            continue
        if shape != listed:
            yield Problem(file, where, f"its wheel has {shape}, the data {listed}; run nox -s sweep")
        elif shape is not None and content is not None and (target.fix, shape) not in by_person:
            row, state = known["shapes"][f"{target.function} {shape}"], learnt.state(content, target)
            if (state.state, state.result) != (row["state"], row.get("result")):
                found = f"is {state.state} {state.result or state.why} by its wheel, {row['state']} by the data"
                yield Problem(file, where, f"{found}; run nox -s sweep")


if __name__ == "__main__":
    raise SystemExit(main())
