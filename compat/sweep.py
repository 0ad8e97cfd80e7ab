"""Generate compat/data from upstream's sources: `python -m unhang.compat.sweep --wheels DIR --clone UPSTREAM=PATH`.

A content is parsed once, however many releases and commits have it. What cannot be decided by evidence, and is not in
decisions.json, is listed, and the sweep exits with 1: it does not guess.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from unhang import catalog
from unhang import shape as shapes
from unhang.catalog import Target
from unhang.compat import sources
from unhang.compat.classify import classify
from unhang.rewriting import Step, rewrite


class Row(NamedTuple):
    """A shape under way to the matrix: the file that showed it, and where it was seen."""

    data: bytes
    places: list[str]
    releases: list[str]
    note: str
    supported: list[bool]
    """Whether it was seen at the floor version or later, each time."""


class Sweep:
    """Collects contents and shapes; each distinct content is parsed once."""

    def __init__(self, targets: Sequence[Target]) -> None:
        self.targets = targets
        self.rows: dict[tuple[str, str, str], Row] = {}
        self.files: dict[str, dict[str, str | None]] = {}
        self.releases: dict[str, dict[str, dict[str, Any]]] = {}
        self._parsed: dict[tuple[str, str], str | None] = {}

    def shape_of(self, data: bytes, function: str) -> str | None:
        """The shape of a function in a file; None where it is not there."""
        key = hashlib.sha256(data).hexdigest(), function
        if key not in self._parsed:
            found = shapes.find(shapes.parse(data), function) if shapes.mentions(data, function) else []
            self._parsed[key] = shapes.digest(found[0]) if len(found) == 1 else None
        return self._parsed[key]

    def see(
        self, target: Target, data: bytes, *, place: str = "", release: str = "", note: str = "", supported: bool = True
    ) -> str | None:
        """Take note of a target's function in a file, and give its shape."""
        shape = self.shape_of(data, target.function)
        if shape is not None:
            row = self.rows.setdefault((target.fix, target.function, shape), Row(data, [], [], note, []))
            row.supported.append(supported)
            if place:
                row.places.append(place)
            if release:
                row.releases.append(release)
        return shape

    def release(self, release: sources.Release) -> None:
        """Take note of a release: its files' digests, its shapes."""
        told: dict[str, str | None] = {}
        for target in self.targets:
            if target.upstream != release.upstream:
                continue
            data = release.files[target.file]
            name = f"{release.upstream} {release.version}"
            shape = None if data is None else self.see(target, data, release=name)
            told[f"{target.file}::{target.function}"] = shape
            if data is not None:
                self.files.setdefault(hashlib.sha256(data).hexdigest(), {})[target.function] = shape
        item: dict[str, Any] = {"shapes": told}
        if release.yanked:
            item["yanked"] = True
        self.releases.setdefault(release.upstream, {})[release.version] = item

    def patched(self, release: sources.Release, results: Mapping[tuple[str, str, str], str]) -> None:
        """Take note of what a release's files are once they are patched: then `check` need not parse them either."""
        for target in self.targets:
            data = release.files.get(target.file) if target.upstream == release.upstream else None
            shape = None if data is None else self.shape_of(data, target.function)
            if data is not None and shape is not None and (target.fix, target.function, shape) in results:
                result = results[target.fix, target.function, shape]
                new = rewrite(data, [Step(target, result)]).data
                self.files.setdefault(hashlib.sha256(new).hexdigest(), {})[target.function] = result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sweep; 0 if every shape was decided, 1 if a person must decide some (they are listed)."""
    parser = argparse.ArgumentParser(prog="python -m unhang.compat.sweep")
    parser.add_argument("--wheels", required=True, help="a folder with the wheels that compat/wheels.json pins")
    parser.add_argument("--clone", action="append", default=[], metavar="UPSTREAM=PATH", help="a clone of an upstream")
    parser.add_argument("--out", required=True, help="the folder to write the data to: compat/data")
    options = parser.parse_args(arguments)
    targets = [target for fix in catalog.fixes().values() for target in fix.targets]
    clones = dict(item.split("=", 1) for item in options.clone)
    sweep = Sweep(targets)
    releases = list(_releases(options.wheels, clones, targets))
    for release in releases:
        sweep.release(release)
    _history(sweep, clones)
    undecided, shape_rows, results = _decide(sweep, clones)
    for release in releases:
        sweep.patched(release, results)
    _write(options.out, sweep, shape_rows)
    for line in undecided:
        print(f"undecided: {line}", file=sys.stderr)
    print(f"{len(shape_rows)} shapes, {len(sweep.files)} file digests, {len(undecided)} undecided", file=sys.stderr)
    return 1 if undecided else 0


def _releases(wheels: str, clones: Mapping[str, str], targets: Iterable[Target]) -> Iterable[sources.Release]:
    wanted: dict[str, list[str]] = {}
    for target in targets:
        wanted.setdefault(target.upstream, []).append(target.file)
    yield from sources.from_wheels(wheels, wanted)
    for name, upstream in sources.load("upstreams.json")["upstreams"].items():
        if name in clones and upstream["trees"]:
            from git import Repo

            yield from sources.from_trees(Repo(clones[name]), upstream["trees"], wanted["megatron-lm"])


def _history(sweep: Sweep, clones: Mapping[str, str]) -> None:
    for name, upstream in sources.load("upstreams.json")["upstreams"].items():
        if name not in clones:
            print(f"no clone of {upstream['repository']} was given: its history is left out", file=sys.stderr)
            continue
        from git import Repo

        repo = Repo(clones[name])
        # megatron-core and Megatron-LM are one repository
        held = {name, "megatron-lm"} if name == "megatron-core" else {name}
        mine = [target for target in sweep.targets if target.upstream in held]
        for target in mine:
            for seen in sources.history(
                repo, name, upstream["refs"], target.file, upstream["floor"], upstream["version-file"]
            ):
                try:
                    for place in (seen.first, seen.last):
                        sweep.see(target, seen.data, place=place, supported=seen.supported)
                except SyntaxError as error:
                    print(f"{target.file} at {seen.first} does not parse: {error}", file=sys.stderr)


def _decide(
    sweep: Sweep, clones: Mapping[str, str]
) -> tuple[list[str], list[dict[str, Any]], dict[tuple[str, str, str], str]]:
    decided = {(item["fix"], item["shape"]): item for item in sources.load("decisions.json")["decisions"]}
    by_key = {(target.fix, target.function): target for target in sweep.targets}
    undecided, rows, results = [], [], {}
    _as_written(sweep, clones, by_key)
    older = {
        (item["fix"], item["function"], item["pristine"]): item
        for item in sources.load("superseded.json")["superseded"]
    }
    for (fix, function, shape), row in sorted(sweep.rows.items(), key=lambda item: item[0]):
        state = classify(row.data, by_key[fix, function])
        told: dict[str, Any] = {"fix": fix, "function": function, "shape": shape, "state": state.state}
        if (fix, shape) in decided:
            told["state"], told["note"] = decided[fix, shape]["state"], decided[fix, shape]["why"]
        elif state.state == "undecided" and not any(row.supported):
            continue  # older than the floor: what evidence does not decide is left out
        elif state.state == "undecided":
            undecided.append(f"{fix} {function} {shape}, {min(row.places, default='')}: {state.why}")
            continue
        if told["state"] == "affected" and state.result is not None:
            told |= {"result": state.result, "names": list(state.names)}
            results[fix, function, shape] = state.result
            if (fix, function, shape) in older:
                was = older[fix, function, shape]["shape"]
                rows.append({**told, "shape": was, "state": "superseded"})
        if row.note and "note" not in told:
            told["note"] = row.note
        if row.places:
            told |= {"first": min(row.places), "last": max(row.places)}
        if row.releases:
            told["releases"] = row.releases
        rows.append(told)
    return undecided, rows, results


def _as_written(sweep: Sweep, clones: Mapping[str, str], by_key: Mapping[tuple[str, str], Target]) -> None:
    """Add the shapes of upstream's pull requests as written, applied to every shape they still apply to."""
    for item in sources.load("upstreams.json")["as-written"]:
        if item["upstream"] not in clones:
            continue
        from git import Repo

        repo = Repo(clones[item["upstream"]])
        target = by_key[item["fix"], item["function"]]
        for (fix, function, _), row in list(sweep.rows.items()):
            if (fix, function) != (target.fix, target.function) or row.note:
                continue
            data = sources.as_written(repo, item["ref"], item["file"], function, row.data)
            if data is None or not _parses(data):
                continue
            # a hunk that was rejected shows: then our rewrite of it is not what our rewrite of the untouched file is
            state, untouched = classify(data, target), classify(row.data, target)
            known = {key[2] for key in sweep.rows}
            whole = state.state == "fixed" or (state.state == "affected" and state.result == untouched.result)
            if whole and sweep.shape_of(data, function) not in known:
                sweep.see(target, data, note=item["note"])


def _parses(data: bytes) -> bool:
    try:
        shapes.parse(data)
    except SyntaxError:
        return False
    return True


def _write(folder: str, sweep: Sweep, shape_rows: list[dict[str, Any]]) -> None:
    from packaging.version import Version

    os.makedirs(folder, exist_ok=True)
    _dump(os.path.join(folder, "shapes.json"), "shapes", [json.dumps(row) for row in shape_rows], "[]")
    files = [f"{json.dumps(digest)}: {json.dumps(told)}" for digest, told in sorted(sweep.files.items())]
    _dump(os.path.join(folder, "files.json"), "files", files, "{}")
    upstreams = []
    for upstream, versions in sorted(sweep.releases.items()):
        lines = [f"{json.dumps(version)}: {json.dumps(versions[version])}" for version in sorted(versions, key=Version)]
        upstreams.append(f"{json.dumps(upstream)}: {{\n  " + ",\n  ".join(lines) + "\n }")
    _dump(os.path.join(folder, "releases.json"), "releases", upstreams, "{}")


def _dump(path: str, key: str, lines: list[str], brackets: str) -> None:
    """One entry a line: small diffs."""
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write(f'{{"schema": 1, "{key}": {brackets[0]}\n ' + ",\n ".join(lines) + f"\n{brackets[1]}}}\n")


if __name__ == "__main__":
    raise SystemExit(main())
