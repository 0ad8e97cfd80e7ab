"""The known shape closest to an unknown one, and where the two differ. Imported only if a shape is unknown.

This says where to look and never softens a verdict: an edit far from a rewrite can still change what the rewrite does.
Of upstream's code only digests and kinds are known here; every quoted line is from the user's file.
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
_SAME = "same"
_WIDTH = 80


class Difference(NamedTuple):
    """One statement that differs, and the line of the user's file that shows it."""

    line: int
    """The statement's line; for a missing one, the line of what comes next, or the function's last."""
    how: str
    """``added``, ``changed``, ``missing``, or ``moved`` (into or out of another statement)."""
    kind: str
    """``If``, ``Assign``, ... as ``ast`` calls them; ``elif``, ``else`` and ``finally``."""
    text: str
    """The user's own line, trimmed."""


class Nearest(NamedTuple):
    """A known shape, and how another one differs from it."""

    shape: str
    state: str
    where: str
    """The releases that have it; or the last commit that had it; or whose change it is."""
    differs: tuple[Difference, ...]

    def sentence(self) -> str:
        """Return the text for people: which shape, how much differs, and the first difference."""
        first, many = self.differs[0], len(self.differs)
        counted = "1 statement differs," if many == 1 else f"{many} statements differ, first"
        return (
            f"closest known shape: {self.shape} ({self.state}; {self.where}), {counted} at line {first.line}: "
            f"{described(first)}"
        )

    def document(self) -> dict[str, Any]:
        """Return the value of ``nearest`` in the JSON report."""
        return {**self._asdict(), "differs": [difference._asdict() for difference in self.differs]}


class _Candidate(NamedTuple):
    """A known shape that may be the nearest."""

    digest: str
    shape: Shape
    last: str
    """Where upstream had it last; empty if it never had it."""
    rank: int
    """Its place in the order of ``last``: the newest first, and the shapes that upstream never had at the end."""
    outline: str
    least: int
    """A lower bound of the number of statements that differ: quick to compute, as it ignores their order."""


def nearest(
    target: Target, function: Function, data: bytes, table: ShapeTable, outlines: OutlineTable,
    releases: Mapping[str, Release],
) -> Nearest | None:  # fmt: skip
    """Return the known shape of this target that differs least from the function, which is in the file ``data``.

    Of equally close shapes it is one to which statements were only added, and else the one that upstream has, or had
    last. None if no shape is close: if more than half of the function's statements differ. ``releases`` are those of
    the target's upstream.
    """

    def distance(candidate: _Candidate, differs: Sequence[Difference]) -> tuple[int, int, int]:
        return len(differs), sum(difference.how != ADDED for difference in differs), candidate.rank

    mine = placed_outline(function)
    best: tuple[_Candidate, list[Difference]] | None = None
    for candidate in _candidates(target, mine, table, outlines):
        if best is not None and candidate.least > len(best[1]):
            break
        known = unpacked(candidate.outline, outlines.blocks, outlines.kinds)
        differs = list(_differences(mine, known, function.end_lineno or function.lineno))
        if differs and (best is None or distance(candidate, differs) < distance(*best)):
            best = candidate, differs
    if best is None or 2 * len(best[1]) > len(mine):
        return None
    candidate, differs = best
    lines = data.splitlines()
    quoted = sorted((_quoted(difference, lines) for difference in differs), key=lambda item: item.line)
    where = _where(target, candidate, releases)
    return Nearest(candidate.digest, candidate.shape.state, where, tuple(quoted))


def _candidates(target: Target, mine: Sequence[Placed], table: ShapeTable, outlines: OutlineTable) -> list[_Candidate]:
    """Return the shapes on record for this target that have an outline, the likeliest first."""

    @cache  # most blocks are in many shapes
    def digests(name: str) -> tuple[str, ...]:
        own, *nested = outlines.blocks.get(name, name).split()
        return (own, *chain.from_iterable(map(digests, nested)))

    known = [
        (last, digest, shape, name)
        for (function, digest), (name, last) in outlines.rows.items()
        if function == target.function and (shape := table.shapes.get((target.fix, function, digest)))
    ]
    here, found = Counter(item.entry.digest for item in mine), []
    for rank, (last, digest, shape, name) in enumerate(sorted(known, key=lambda item: item[:2], reverse=True)):
        there = digests(name)
        least = max(len(mine), len(there)) - (here & Counter(there)).total()
        found.append(_Candidate(digest, shape, last, rank, name, least))
    return sorted(found, key=lambda item: item.least)


def _differences(mine: Sequence[Placed], known: Sequence[Entry], end: int) -> Iterator[Difference]:
    """Yield how ``mine`` differs from ``known``, with empty texts; ``end`` is the function's last line."""
    here = [item.entry for item in mine]
    partner: dict[int, int] = {}
    for how, there, ours in _aligned(known, here):
        if how in (_SAME, CHANGED):
            partner.update(zip(ours, there))
        if how == MISSING:
            line = mine[ours.start].line if ours.start < len(mine) else end
            yield from (Difference(line, MISSING, known[at].kind, "") for at in there)
        elif how != _SAME:
            yield from (Difference(mine[at].line, how, here[at].kind, "") for at in ours)
    yield from (Difference(mine[at].line, MOVED, here[at].kind, "") for at in _moved(here, known, partner))


def _aligned(known: Sequence[Entry], here: Sequence[Entry]) -> Iterator[tuple[str, range, range]]:
    """Yield how two outlines align: the same, changed, added or missing, as indexes in ``known`` and ``here``."""
    for tag, i, j, k, m in _opcodes([entry.digest for entry in known], [entry.digest for entry in here]):
        if tag == "equal":
            yield _SAME, range(i, j), range(k, m)
            continue
        for inner, a, b, c, d in _opcodes([entry.kind for entry in known[i:j]], [entry.kind for entry in here[k:m]]):
            there, ours = range(i + a, i + b), range(k + c, k + d)
            if inner == "equal":  # the same kind in the same place: one statement, changed
                yield CHANGED, there, ours
            else:
                yield ADDED, range(0), ours
                yield MISSING, there, range(k + d, k + d)


def _opcodes(left: Sequence[str], right: Sequence[str]) -> list[tuple[str, int, int, int, int]]:
    return SequenceMatcher(None, left, right, autojunk=False).get_opcodes()  # type: ignore[return-value]


def _moved(here: Sequence[Entry], known: Sequence[Entry], partner: Mapping[int, int]) -> Iterator[int]:
    """Yield the statements that are unchanged, but nested in another statement than in ``known``."""
    up_here, up_there, partners = parents(here), parents(known), set(partner.values())
    for at, other in partner.items():
        above = _nearest_partner(up_here[at], up_here, partner)
        if partner.get(above, -1) != _nearest_partner(up_there[other], up_there, partners):
            if here[at].digest == known[other].digest:
                yield at


def _nearest_partner(at: int, up: Sequence[int], partners: Mapping[int, int] | set[int]) -> int:
    """Return the innermost enclosing statement that both functions have: adding a `with` around others moves none."""
    while at != -1 and at not in partners:
        at = up[at]
    return at


def _quoted(difference: Difference, lines: Sequence[bytes]) -> Difference:
    """Return the difference with its line of the file as text, safe for a terminal."""
    line = difference.line
    if difference.kind in ("else", "finally") and difference.how != MISSING:
        word = difference.kind.encode()
        line = next((at for at in range(line, 0, -1) if lines[at - 1].lstrip().startswith(word)), line)
    text = lines[line - 1].strip().decode("utf-8", "backslashreplace")
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    text = text.encode("ascii", "backslashreplace").decode("ascii")
    return difference._replace(line=line, text=text if len(text) <= _WIDTH else text[: _WIDTH - 3] + "...")


def described(difference: Difference) -> str:
    """Return what a difference is, with its line of the file."""
    if difference.how == MISSING:
        return f"a statement of kind {difference.kind} is missing near `{difference.text}`"
    was = {ADDED: "was added", CHANGED: "was changed", MOVED: "was moved into or out of another statement"}
    return f"`{difference.text}` {was[difference.how]}"


def _where(target: Target, candidate: _Candidate, releases: Mapping[str, Release]) -> str:
    from packaging.version import Version

    held = [
        Version(release.version)
        for release in releases.values()
        if any(
            name.endswith(f"::{target.function}") and shape == candidate.digest
            for name, shape in release.shapes.items()
        )
    ]
    named = sorted([version for version in held if not version.is_devrelease] or held)
    if named:
        span = f"{named[0]} to {named[-1]}" if len(named) > 1 else f"{named[0]}"
        return f"{target.upstream} {span}"
    if candidate.last:
        return f"last in {candidate.last}"
    return candidate.shape.note or "our own rewrite"
