"""What a sweep has found of each fix, as its file in compat/data has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unhang.compat.sweep.clones import Clone
from unhang.compat.sweep.collect import Collection
from unhang.compat.sweep.learnt import Learnt
from unhang.compat.sweep.matrix_files import Facts
from unhang.compat.sweep.outlines import Packed
from unhang.compat.sweep.rules import made_elsewhere
from unhang.compat.sweep.settle import Settled
from unhang.judge.decide import OURS
from unhang.shapes import catalog
from unhang.shapes.catalog import Fix

FIGURES = ("branches", "configurations", "passed", "cured", "failed", "worse")
"""What is on record of a shape's row."""


def places(fix: Fix) -> dict[str, list[str]]:
    """Return the places of a fix's functions, by upstream."""
    found: dict[str, list[str]] = {}
    for target in fix.functions:
        if target.place not in found.setdefault(target.upstream, []):
            found[target.upstream].append(target.place)
    return found


def facts(
    fix: Fix,
    collection: Collection,
    learnt: Learnt,
    settled: Settled,
    opened: Mapping[str, Clone],
    before: Mapping[str, Any],
) -> Facts:
    """Return what is known of a fix. ``before`` has the releases and the pull requests that were not read now.

    Raises ValueError as ``Packed.add`` does.
    """
    targets = places(fix)
    left = collection.rows.keys() - {(row["fix"], row["function"], row["shape"]) for row in settled.rows}
    files = {  # without those that have a shape which is left without a verdict: `check` parses these
        digest: row
        for (name, digest), row in collection.files.items()
        if name == fix.id and not any((name, *place) in left for place in row.items())
    }
    releases = {**before.get("releases", {})} if before.get("targets") == targets else {}
    for upstream, names in targets.items():
        by_place = {target.place: target for target in fix.functions if target.upstream == upstream}
        for version in collection.releases.get(upstream, ()):
            row = [collection.shapes[upstream, version, by_place[place]] for place in names]
            releases[f"{upstream} {version}"] = row
    refs = [row["ref"] for row in fix.manifest.get("as-written", ())]
    commits = {**before.get("pulls", {}), **{ref: at for clone in opened.values() for ref, at in clone.pulls.items()}}
    pulls = {ref: commits[ref] for ref in refs if ref in commits}
    packed = Packed()
    shapes = _shapes(fix, collection, learnt, settled, packed, {pair for row in files.values() for pair in row.items()})
    return Facts(targets, pulls, files, shapes, releases, packed)


def _shapes(
    fix: Fix,
    collection: Collection,
    learnt: Learnt,
    settled: Settled,
    packed: Packed,
    here: set[tuple[str, str | None]],
) -> dict[str, dict[str, Any]]:
    """Return what is known of each shape. Those in a file on record (``here``) have an outline: what people edit."""
    known: dict[str, dict[str, Any]] = {}
    targets = {target.function: target for target in fix.functions}
    made = made_elsewhere(fix.id, {other: catalog.facts(other) for other in catalog.fixes()})
    for row in settled.rows:
        if row["fix"] != fix.id:
            continue
        function, shape = row["function"], row["shape"]
        key = fix.id, function, shape
        entry = {name: value for name, value in row.items() if name not in ("fix", "function", "shape")}
        if (seen := settled.states[key].row) is not None:
            failing = {"failing": seen.failing} if seen.failing else {}
            entry["endstate"] = {name: getattr(seen, name) for name in FIGURES} | failing
        beside = collection.pairs.get(key, set())
        if (other := targets[function].depends_on) is not None:
            beside = beside.union(*(made.get(f"{other.function} {digest}", ()) for digest in beside))
        if beside:
            entry["beside"] = sorted(beside)
        content = collection.rows[key].content
        if (function, shape) in here:
            entry["outline"] = packed.add(learnt.outline(content, function))
        known[f"{function} {shape}"] = entry
        if (result := settled.results.get(key)) is not None:
            ours = known.setdefault(f"{function} {result}", {"state": OURS})
            if beside:
                ours["beside"] = sorted(beside | {*ours.get("beside", ())})
            if (function, result) in here and "outline" not in ours:
                ours["outline"] = packed.add(learnt.outline_patched(content, targets[function], result))
    return known
