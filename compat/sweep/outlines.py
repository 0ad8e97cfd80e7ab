"""compat/data/outlines.json: the outlines of all shapes on record, digests and kinds alone.

``unhang.judge.nearest`` reads them.

The shapes of one function differ in a few statements, so the data is packed as git packs trees: a statement with others
nested in it is a block, named by a digest of its whole content, and stands there once, however many shapes have it. A
shape is then one name, and a new shape adds a line for each block that it changes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from unhang.compat.sweep.collect import Collection
from unhang.compat.sweep.learnt import Learnt
from unhang.compat.sweep.settle import Settled
from unhang.shapes.outline import Entry


class Row(NamedTuple):
    """The outline of one shape."""

    function: str
    """Its qualified name, as the manifests have it."""
    shape: str
    last: str
    """Where upstream had it last, as shapes.json says it: a commit, else a release. Empty if upstream never had it."""
    entries: tuple[Entry, ...]


def rows(collection: Collection, learnt: Learnt, settled: Settled) -> list[Row]:
    """The rows of all shapes that the matrix will hold, upstream's and those of our rewrites."""
    targets = {(target.fix, target.function): target for target in collection.targets}
    found = []
    for told in settled.rows:
        key = told["fix"], told["function"], told["shape"]
        if key not in collection.rows:  # the result of an older rewrite of ours: nobody has it at hand
            continue
        _, function, shape = key
        content = collection.rows[key].content
        found.append(Row(function, shape, told.get("last", ""), tuple(learnt.outline(content, function))))
        if key in settled.results:
            result, target = settled.results[key], targets[told["fix"], function]
            found.append(Row(function, result, "", tuple(learnt.outline_patched(content, target, result))))
    return found


def render(rows: Iterable[Row]) -> str:
    """The text of outlines.json. Of rows of one shape, that with the greatest ``last`` counts.

    Raises ValueError where two statements, or two blocks, have one digest: lengthen the digests then.
    """
    blocks: dict[str, str] = {}
    kinds: dict[str, str] = {}
    shapes: dict[tuple[str, str], dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: (row.function, row.shape, row.last)):
        name, _ = _pack(row.entries, 0, blocks, kinds)
        told = {"function": row.function, "shape": row.shape, "outline": name}
        shapes[row.function, row.shape] = {**told, "last": row.last} if row.last else told
    if clash := sorted(set(blocks) & set(kinds)):
        raise ValueError(f"{clash[0]} is the digest of a block and of a statement")
    parts = [
        "{" + _lines([f"{json.dumps(own)}: {json.dumps(kind)}" for own, kind in sorted(kinds.items())]) + "}",
        "{" + _lines([f"{json.dumps(name)}: {json.dumps(block)}" for name, block in sorted(blocks.items())]) + "}",
        "[" + _lines([json.dumps(told) for _, told in sorted(shapes.items())]) + "]",
    ]
    return '{{"schema": 1,\n"kinds": {},\n"blocks": {},\n"outlines": {}}}\n'.format(*parts)


def _pack(entries: Sequence[Entry], index: int, blocks: dict[str, str], kinds: dict[str, str]) -> tuple[str, int]:
    """Put an entry and what is nested in it into the data: gives its name there, and the index of what comes next."""
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
        raise ValueError(f"{name} is the digest of two: {known[name]}, and {value}")


def _lines(lines: Sequence[str]) -> str:
    return "\n " + ",\n ".join(lines) + "\n"
