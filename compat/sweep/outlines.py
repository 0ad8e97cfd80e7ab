"""Renders compat/data/outlines.json: the outlines of all shapes on record, which ``unhang.judge.nearest`` reads.

The shapes of one function differ in a few statements, so the data is packed as git packs trees: a statement that
contains others is a block, named by a digest of its whole content and stored once for all shapes that have it. A shape
is then one name, and a new shape adds a line for each block that it changes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from unhang.compat.sweep.collect import Collection
from unhang.compat.sweep.learnt import Learnt, outline_of
from unhang.compat.sweep.settle import Settled
from unhang.shapes.outline import Entry


class Row(NamedTuple):
    """The outline of one shape."""

    function: str
    """Its qualified name, as in the manifests."""
    shape: str
    last: str
    """The last commit, else release, that had it, as in shapes.json. Empty if upstream never had it."""
    entries: tuple[Entry, ...]


def rows(collection: Collection, learnt: Learnt, settled: Settled) -> list[Row]:
    """Return the outlines of all shapes in the matrix: upstream's, and those of our rewrites."""
    targets = {(target.fix, target.function): target for target in collection.targets}
    found = []
    for entry in settled.rows:
        key = entry["fix"], entry["function"], entry["shape"]
        if key not in collection.rows:  # the result of an older rewrite of ours: no source here has it
            continue
        fix, function, shape = key
        content = collection.rows[key].content
        found.append(Row(function, shape, entry.get("last", ""), outline_of(content.data, function)))
        if key in settled.results:
            result, target = settled.results[key], targets[fix, function]
            patched = learnt.patched(content, target, result)
            assert patched is not None
            found.append(Row(function, result, "", outline_of(patched, function)))
    return found


def render(rows: Iterable[Row]) -> str:
    """Return the text of outlines.json. Of several rows of one shape, the one with the greatest ``last`` counts.

    Raises ValueError if two statements, or two blocks, have the same digest: then the digests must become longer.
    """
    blocks: dict[str, str] = {}
    kinds: dict[str, str] = {}
    shapes: dict[tuple[str, str], dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: (row.function, row.shape, row.last)):
        name, _ = _pack(row.entries, 0, blocks, kinds)
        entry = {"function": row.function, "shape": row.shape, "outline": name}
        shapes[row.function, row.shape] = {**entry, "last": row.last} if row.last else entry
    if clash := sorted(set(blocks) & set(kinds)):
        raise ValueError(f"{clash[0]} is the digest of a block and of a statement")
    parts = [
        "{" + _lines([f"{json.dumps(own)}: {json.dumps(kind)}" for own, kind in sorted(kinds.items())]) + "}",
        "{" + _lines([f"{json.dumps(name)}: {json.dumps(block)}" for name, block in sorted(blocks.items())]) + "}",
        "[" + _lines([json.dumps(entry) for _, entry in sorted(shapes.items())]) + "]",
    ]
    return '{{"schema": 1,\n"kinds": {},\n"blocks": {},\n"outlines": {}}}\n'.format(*parts)


def _pack(entries: Sequence[Entry], index: int, blocks: dict[str, str], kinds: dict[str, str]) -> tuple[str, int]:
    """Add an entry and the entries nested in it to the data; return its name there, and the index of the next one."""
    own = entries[index]
    _keep(kinds, own.digest, own.kind)
    after, nested = index + 1, []
    while after < len(entries) and entries[after].depth > own.depth:
        name, after = _pack(entries, after, blocks, kinds)
        nested.append(name)
    if not nested:
        return own.digest, after
    text = " ".join([own.digest, *nested])
    name = hashlib.sha256(text.encode("ascii")).hexdigest()[:8]
    _keep(blocks, name, text)
    return name, after


def _keep(known: dict[str, str], name: str, value: str) -> None:
    if known.setdefault(name, value) != value:
        raise ValueError(f"{name} is the digest of both {known[name]} and {value}")


def _lines(lines: Sequence[str]) -> str:
    return "\n " + ",\n ".join(lines) + "\n"
