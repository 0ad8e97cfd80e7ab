"""Packs the outlines of a fix's shapes, which ``unhang.judge.nearest`` reads.

The shapes of one function differ in a few statements, so the data is packed as git packs trees: a statement that
contains others is a block, named by a digest of its whole content and stored once for all shapes that have it. A shape
is then one name, and a new shape adds a line for each block that it changes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from unhang.shapes.outline import Entry


class Packed:
    """Some outlines."""

    def __init__(self) -> None:
        self.kinds: dict[str, str] = {}
        """The kind of each statement by its digest."""
        self.blocks: dict[str, str] = {}
        """Each block by its name: the digest of its own statement, then the names of those in it."""

    def add(self, entries: Sequence[Entry]) -> str:
        """Add an outline; return its name.

        Raises ValueError if two statements, or two blocks, have the same digest: then the digests must become longer.
        """
        name, _ = self._add(entries, 0)
        if clash := sorted({*self.blocks} & {*self.kinds}):
            raise ValueError(f"{clash[0]} is the digest of a block and of a statement")
        return name

    def _add(self, entries: Sequence[Entry], index: int) -> tuple[str, int]:
        """Add an entry and the entries nested in it; return its name, and the index of the next one."""
        own = entries[index]
        _keep(self.kinds, own.digest, own.kind)
        after, nested = index + 1, []
        while after < len(entries) and entries[after].depth > own.depth:
            name, after = self._add(entries, after)
            nested.append(name)
        if not nested:
            return own.digest, after
        text = " ".join([own.digest, *nested])
        name = hashlib.sha256(text.encode("ascii")).hexdigest()[:8]
        _keep(self.blocks, name, text)
        return name, after


def _keep(known: dict[str, str], name: str, value: str) -> None:
    if known.setdefault(name, value) != value:
        raise ValueError(f"{name} is the digest of both {known[name]} and {value}")
