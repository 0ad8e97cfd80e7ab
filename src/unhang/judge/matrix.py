"""The compat matrix: what an untouched copy of each release needs, and from which release on a fix can be dropped."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from unhang.errors import UnhangError
from unhang.judge.decide import BY_STATE, DRIFTED, NEEDED, NOT_AFFECTED, SETTLED, UNLISTED, URGENCY, beside
from unhang.plugins import packs
from unhang.shapes.catalog import Fix, Release, Shape, ShapeTable, Target

Releases = Mapping[str, Mapping[str, Release]]
"""Releases by upstream and version, as ``catalog.releases`` returns them."""


class Row(NamedTuple):
    """The verdict of one fix on an untouched copy of one release."""

    upstream: str
    version: str
    yanked: bool
    fix: str
    grade: str
    kinds: tuple[str, ...]
    changes_numbers: bool
    verdict: str


def rows(fixes: Sequence[Fix], releases: Releases, table: ShapeTable) -> list[Row]:
    """Return a row for every release and every fix: upstreams in the given order, releases in the order of PEP 440.

    A fix that has no target in an upstream is ``not-affected`` there.
    """
    return [
        Row(
            upstream,
            release.version,
            release.yanked,
            fix.id,
            fix.grade,
            fix.kinds,
            fix.changes_numbers,
            verdict(fix, upstream, release, table),
        )
        for upstream, versions in releases.items()
        for release in _ordered(versions)
        for fix in fixes
    ]


def verdict(fix: Fix, upstream: str, release: Release, table: ShapeTable) -> str:
    """Return the verdict of a fix on an untouched copy of a release; of several targets, the most urgent verdict.

    A shape that is not on record is ``drifted``, as it would be in an environment: nobody has verified it.
    """
    found = [of_target(fix, target, release, table) for target in fix.targets if target.upstream == upstream]
    return min(found, key=URGENCY.index, default=NOT_AFFECTED)


def of_target(fix: Fix, target: Target, release: Release, table: ShapeTable) -> str:
    """Return the verdict on one target of a fix in an untouched copy of a release."""
    if fix.pack.folder and target.place not in release.shapes:  # of a pack's fix, not every release was read
        return UNLISTED
    found = _by_shape(target, release, table)
    return NEEDED if found == NOT_AFFECTED and copies(fix, target.upstream, release) else found


def copies(fix: Fix, upstream: str, release: Release) -> list[str]:
    """Return what is said of copies of the function, elsewhere in a release, that have the defect."""
    return [
        f"{row['package']} {row['what']}"
        for row in fix.manifest.get("instead", ())
        if release.version in row.get("needed-in", ()) and row["module"] == packs.upstreams()[upstream].module
    ]


def _by_shape(target: Target, release: Release, table: ShapeTable) -> str:
    if release.shapes.get(target.place) is None:
        return NOT_AFFECTED
    known = known_shape(target, release, table)
    found = DRIFTED if known is None else BY_STATE[known.state]
    if target.only_with and all(release.shapes.get(other.place) is None for other in target.only_with):
        return NOT_AFFECTED if found == NEEDED else found
    if (other := target.depends_on) is None:
        return found
    return beside(found, known, known_shape(other, release, table), release.shapes.get(other.place))


def known_shape(target: Target, release: Release, table: ShapeTable) -> Shape | None:
    """Return what is on record of a function's shape in a release."""
    shape = release.shapes.get(target.place)
    return table.shapes.get((target.fix, target.function, shape or ""))


def droppable(fix: Fix, releases: Releases, table: ShapeTable) -> dict[str, str | None]:
    """Return the first release from which on none needs the fix, for each upstream that ever needed it.

    It is None while the newest release needs the fix. Every later release has upstream's own fix, or no longer has the
    defect. It is never a nightly, whose number does not grow with time.
    """
    found: dict[str, str | None] = {}
    for upstream in dict.fromkeys(target.upstream for target in fix.targets):
        ordered = _ordered(releases.get(upstream, {}))
        verdicts = [verdict(fix, upstream, release, table) for release in ordered]
        if NEEDED in verdicts:
            last = max(index for index, item in enumerate(verdicts) if item not in SETTLED)
            later = (release.version for release in ordered[last + 1 :] if not is_nightly(release.version))
            found[upstream] = next(later, None)
    return found


def matching(rows: Sequence[Row], wanted: str) -> list[Row]:
    """Return the rows of the releases that a version (``0.17.1``) or a PEP 440 specifier (``~=0.17``) names.

    Pre-releases count. Raises UnhangError ``bad-version`` if it is neither, ``no-such-release`` if nothing on record
    matches.
    """
    accepts = _filter(rows, wanted)
    chosen = [row for row in rows if accepts(parsed(row.version))]
    if rows and not chosen:
        message = f"no release in the matrix matches {wanted!r}"
        raise UnhangError("no-such-release", message, hint=f"nearest in the matrix: {_nearest(rows, wanted)}")
    return chosen


@cache
def parsed(version: str) -> Version:
    """Return a version, parsed only once. Raises InvalidVersion."""
    return Version(version)


def is_nightly(version: str) -> bool:
    """Return whether a version is a nightly, whose number does not grow with time.

    A CI job numbers nightlies by its own id; development releases that people number count from 0.
    """
    return (parsed(version).dev or 0) >= 1000


def _ordered(versions: Mapping[str, Release]) -> list[Release]:
    return sorted(versions.values(), key=lambda release: parsed(release.version))


def _filter(rows: Iterable[Row], wanted: str) -> Callable[[Version], bool]:
    """Return whether a version is wanted, as a function. Raises UnhangError ``bad-version``."""
    text = wanted if len(wanted) < 200 else ""  # Python takes no number of thousands of digits
    try:
        exact = Version(text)
    except InvalidVersion:
        pass
    else:
        return lambda version: version == exact
    try:
        specifier = SpecifierSet(text)
    except InvalidSpecifier:
        specifier = SpecifierSet("")
    if not str(specifier):
        import difflib

        near = difflib.get_close_matches(wanted, sorted({row.version for row in rows}), n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UnhangError(
            "bad-version", f"{wanted!r} is neither a version nor a PEP 440 specifier",
            hint=f"{hint}a version looks like 0.17.1, a specifier like '~=0.17' or '>=0.16,<0.18'",
        )  # fmt: skip
    return lambda version: specifier.contains(version, prereleases=True)


def _nearest(rows: Sequence[Row], wanted: str) -> str:
    """Return the nearest release of each upstream: the newest that is not newer than the wanted one, or the oldest."""
    bound = re.search(r"\d[\w.!+]*", wanted)
    try:
        aim = Version(bound.group().rstrip(".") if bound else "")
    except InvalidVersion:  # after ===, which accepts any text
        aim = max(parsed(row.version) for row in rows)
    nearest = []
    for upstream in dict.fromkeys(row.upstream for row in rows):
        found = (row.version for row in rows if row.upstream == upstream and not is_nightly(row.version))
        ordered = sorted(dict.fromkeys(found), key=parsed)
        older = [version for version in ordered if parsed(version) <= aim]
        nearest += [f"{upstream} {version}" for version in (older[-1:] or ordered[:1])]
    return ", ".join(nearest)
