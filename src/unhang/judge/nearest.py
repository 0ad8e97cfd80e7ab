"""The closest known shape of an unknown one, and where the two part. Imported only where a shape is unknown.

It says where to look, and never softens a verdict: what differs may lie far from what a rewrite touches, and still
change what it means. Of upstream only digests and kinds are known here; what is quoted is the file of the user.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

from unhang.shapes.catalog import OutlineTable, Release, Shape, ShapeTable, Target
from unhang.shapes.outline import Entry, Placed, parents, placed_outline, unpacked
from unhang.shapes.shape import Function

ADDED, CHANGED, MISSING, MOVED = "added", "changed", "missing", "moved"
_WIDTH = 80


class Difference(NamedTuple):
    """One statement that differs, and the line of the user's file where that shows."""

    line: int
    """Its own line; of a missing statement, that of what comes next, or the function's last."""
    how: str
    """``added``, ``changed``, ``missing``, or ``moved`` (it is nested in another statement)."""
    kind: str
    """``If``, ``Assign``, ... as ``ast`` calls them; ``elif``, ``else`` and ``finally``."""
    text: str
    """The user's own line there, trimmed."""


class Candidate(NamedTuple):
    """A known shape that may be the nearest."""

    digest: str
    shape: Shape
    last: str
    """Where upstream had it last; empty if it never had it."""
    rank: int
    """The newest first, and those that upstream never had last."""
    outline: str
    least: int
    """How many statements differ at the least, whatever their order: cheap, and never too high."""


class Nearest(NamedTuple):
    """A known shape, and how another differs from it."""

    shape: str
    state: str
    where: str
    """The releases that have it, or the last commit that has, or whose change it is."""
    differs: tuple[Difference, ...]

    def sentence(self) -> str:
        """For people: which shape, how much differs, and the first of that."""
        first, many = self.differs[0], len(self.differs)
        counted = "1 statement differs," if many == 1 else f"{many} statements differ, first"
        return (
            f"closest known shape: {self.shape} ({self.state}; {self.where}), {counted} at line {first.line}: "
            f"{_told(first)}"
        )

    def document(self) -> dict[str, Any]:
        """For programs: the value of ``nearest`` in the JSON report."""
        return {**self._asdict(), "differs": [difference._asdict() for difference in self.differs]}


def nearest(
    target: Target, function: Function, data: bytes, table: ShapeTable, outlines: OutlineTable,
    releases: Mapping[str, Release],
) -> Nearest | None:  # fmt: skip
    """The known shape of this target that the function, which stands in ``data``, differs from least.

    Of equally close ones the one that upstream has, or had last. None where none is close: where less is equal than
    differs. ``releases`` are those of the target's upstream.
    """
    mine = placed_outline(function)
    best: tuple[Candidate, list[Difference]] | None = None
    for candidate in _candidates(target, mine, table, outlines):
        if best is not None and candidate.least > len(best[1]):
            break
        known = unpacked(candidate.outline, outlines.blocks, outlines.kinds)
        differs = list(_differences(mine, known, function.end_lineno or function.lineno))
        if differs and (best is None or (len(differs), candidate.rank) < (len(best[1]), best[0].rank)):
            best = candidate, differs
    if best is None or 2 * len(best[1]) > len(mine):
        return None
    (digest, shape, last, *_), differs = best
    lines = data.splitlines()
    quoted = sorted((_quoted(difference, lines) for difference in differs), key=lambda item: item.line)
    return Nearest(digest, shape.state, _where(target, digest, shape, last, releases), tuple(quoted))


def _candidates(target: Target, mine: Sequence[Placed], table: ShapeTable, outlines: OutlineTable) -> list[Candidate]:
    """The shapes on record for this target that have an outline, the likeliest first."""

    @cache  # most blocks are in many shapes
    def digests(name: str) -> tuple[str, ...]:
        own, *nested = outlines.blocks.get(name, name).split()
        return (own, *chain.from_iterable(map(digests, nested)))

    known = [
        (row[1], digest, shape, row[0])
        for (fix, function, digest), shape in table.shapes.items()
        if (fix, function) == (target.fix, target.function) and (row := outlines.rows.get((function, digest)))
    ]
    here, found = Counter(item.entry.digest for item in mine), []
    for rank, (last, digest, shape, name) in enumerate(sorted(known, key=lambda item: item[:2], reverse=True)):
        there = digests(name)
        least = max(len(mine), len(there)) - (here & Counter(there)).total()
        found.append(Candidate(digest, shape, last, rank, name, least))
    return sorted(found, key=lambda item: item.least)


def _differences(mine: Sequence[Placed], known: Sequence[Entry], end: int) -> Iterator[Difference]:
    """How ``mine`` differs from ``known``; the texts are left empty."""
    here = [item.entry for item in mine]
    partner: dict[int, int] = {}
    for tag, i, j, k, m in _opcodes([entry.digest for entry in known], [entry.digest for entry in here]):
        if tag == "equal":
            partner.update(zip(range(k, m), range(i, j)))
            continue
        for inner, *span in _opcodes([entry.kind for entry in known[i:j]], [entry.kind for entry in here[k:m]]):
            a, b, c, d = span
            if inner == "equal":  # of one kind, and in one place: the same statement, changed
                partner.update(zip(range(k + c, k + d), range(i + a, i + b)))
                yield from (Difference(mine[at].line, CHANGED, here[at].kind, "") for at in range(k + c, k + d))
                continue
            yield from (Difference(mine[at].line, ADDED, here[at].kind, "") for at in range(k + c, k + d))
            before = mine[k + d].line if k + d < len(mine) else end
            yield from (Difference(before, MISSING, entry.kind, "") for entry in known[i + a : i + b])
    up_here, up_there, partners = parents(here), parents(known), set(partner.values())
    for at, other in partner.items():
        above = _nearest_partner(up_here[at], up_here, partner)
        if partner.get(above, -1) != _nearest_partner(up_there[other], up_there, partners):
            if here[at].digest == known[other].digest:
                yield Difference(mine[at].line, MOVED, here[at].kind, "")


def _opcodes(left: Sequence[str], right: Sequence[str]) -> list[tuple[str, int, int, int, int]]:
    return SequenceMatcher(None, left, right, autojunk=False).get_opcodes()  # type: ignore[return-value]


def _nearest_partner(at: int, up: Sequence[int], partners: Mapping[int, int] | set[int]) -> int:
    """The innermost statement from here outwards that both functions have: a `with` put around it moves nothing."""
    while at != -1 and at not in partners:
        at = up[at]
    return at


def _quoted(difference: Difference, lines: Sequence[bytes]) -> Difference:
    line = difference.line
    if difference.kind in ("else", "finally") and difference.how != MISSING:
        word = difference.kind.encode()
        line = next((at for at in range(line, 0, -1) if lines[at - 1].lstrip().startswith(word)), line)
    text = lines[line - 1].strip().decode("utf-8", "backslashreplace")
    text = "".join(letter if letter.isprintable() else "?" for letter in text)  # it goes to a terminal
    text = text.encode("ascii", "backslashreplace").decode("ascii")
    return difference._replace(line=line, text=text if len(text) <= _WIDTH else text[: _WIDTH - 3] + "...")


def _told(difference: Difference) -> str:
    if difference.how == MISSING:
        return f"a statement of kind {difference.kind} is missing near `{difference.text}`"
    was = {ADDED: "was added", CHANGED: "was changed", MOVED: "was moved into or out of another statement"}
    return f"`{difference.text}` {was[difference.how]}"


def _where(target: Target, digest: str, shape: Shape, last: str, releases: Mapping[str, Release]) -> str:
    from packaging.version import Version

    held = [Version(release.version) for release in releases.values() if _has(release, target.function, digest)]
    named = sorted([version for version in held if not version.is_devrelease] or held)
    if named:
        span = f"{named[0]} to {named[-1]}" if len(named) > 1 else f"{named[0]}"
        return f"{target.upstream} {span}"
    if last:
        return f"last in {last}"
    return shape.note or "our own rewrite"


def _has(release: Release, function: str, digest: str) -> bool:
    return any(name.endswith(f"::{function}") and shape == digest for name, shape in release.shapes.items())
