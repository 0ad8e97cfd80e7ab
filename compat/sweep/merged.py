"""The matrix after a sweep of some fixes: what is on record of the others stays, byte for byte."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from unhang.compat.sweep import matrix_files, outlines
from unhang.compat.sweep.collect import Collection
from unhang.compat.sweep.learnt import Learnt
from unhang.compat.sweep.settle import Settled
from unhang.shapes import outline
from unhang.shapes.catalog import Target


def texts(
    compat: Path, every: Sequence[Target], collection: Collection, learnt: Learnt, settled: Settled
) -> dict[str, str]:
    """Return the texts of the generated files, by their names below compat/.

    ``every`` are the targets of all fixes; the collection has those of the fixes that were swept. Raises ValueError as
    ``outlines.render`` does.
    """
    before = {name: _read(compat, name) for name in ("shapes", "files", "releases", "outlines")}
    swept = {target.fix for target in collection.targets}
    own = {target.function for target in collection.targets}
    own -= {target.function for target in every if target.fix not in swept}
    rows = [row for row in before["shapes"]["shapes"] if row["fix"] not in swept] + settled.rows
    return {
        "data/shapes.json": matrix_files.shapes(sorted(rows, key=lambda row: str(row["fix"]))),
        "data/files.json": matrix_files.files(_files(before["files"]["files"], own, collection.files)),
        "data/releases.json": matrix_files.releases(_releases(before["releases"]["releases"], every, collection)),
        "data/outlines.json": outlines.render(
            [*_outlines(before["outlines"], own), *outlines.rows(collection, learnt, settled)]
        ),
    }


def _files(
    before: Mapping[str, Mapping[str, str | None]], own: set[str], now: Mapping[str, Mapping[str, str | None]]
) -> dict[str, dict[str, str | None]]:
    """Return the files' shapes: of the functions in ``own``, which no other fix has, only those of ``now``."""
    found: dict[str, dict[str, str | None]] = {}
    for digest in {**before, **now}:
        kept = {function: shape for function, shape in before.get(digest, {}).items() if function not in own}
        if shapes := {**kept, **now.get(digest, {})}:
            found[digest] = shapes
    return found


def _releases(
    before: Mapping[str, Any], every: Iterable[Target], collection: Collection
) -> dict[str, matrix_files.Upstream]:
    """Return the releases on record, with the shapes of the targets that were swept in their places."""
    found = {}
    for upstream, entry in before.items():
        places = matrix_files.places(every, upstream)
        versions: dict[str, dict[str, Any]] = {}
        for version, release in entry["versions"].items():
            shapes = dict(zip(entry["targets"], release["shapes"]))
            for target in collection.targets:
                if target.upstream == upstream:
                    name = matrix_files.place(target)
                    shapes[name] = collection.shapes.get((upstream, version, target), shapes.get(name))
            versions[version] = {**release, "shapes": [shapes.get(place) for place in places]}
        found[upstream] = matrix_files.Upstream(places, versions)
    return found


def _outlines(before: Mapping[str, Any], own: set[str]) -> list[outlines.Row]:
    """Return the outlines on record of the functions that other fixes have."""
    return [
        outlines.Row(
            row["function"],
            row["shape"],
            row.get("last", ""),
            tuple(outline.unpacked(row["outline"], before["blocks"], before["kinds"])),
        )
        for row in before["outlines"]
        if row["function"] not in own
    ]


def _read(compat: Path, name: str) -> Any:
    return json.loads((compat / "data" / f"{name}.json").read_bytes())
