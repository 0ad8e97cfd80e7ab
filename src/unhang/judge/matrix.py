"""The compat matrix: what an untouched copy of each release needs, and from which release on a fix can be dropped."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from unhang.errors import UnhangError
from unhang.judge.decide import NEEDED, SETTLED
from unhang.judge.untouched import verdict
from unhang.shapes.catalog import Fix, Release, ShapeTable

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


def droppable(fix: Fix, releases: Releases, table: ShapeTable) -> dict[str, str | None]:
    """Return the first release from which on none needs the fix, for each upstream that ever needed it.

    It is None while the newest release needs the fix. Every later release has upstream's own fix, or no longer has the
    defect. ``right_from`` says which release counts.
    """
    found: dict[str, str | None] = {}
    for upstream in dict.fromkeys(target.upstream for target in fix.targets):
        ordered = _ordered(releases.get(upstream, {}))
        verdicts = {release.version: verdict(fix, upstream, release, table) for release in ordered}
        if NEEDED in verdicts.values():
            found[upstream] = right_from(verdicts, [release.version for release in ordered if release.yanked])
    return found


def right_from(verdicts: Mapping[str, str], yanked: Collection[str]) -> str | None:
    """Return the first release from which on none needs a fix, by the verdicts in the order of versions; None if none.

    It is no yanked one, no nightly, whose number does not grow with time, and a pre-release if there is no other.
    """
    names = [*verdicts]
    last = max((index for index, name in enumerate(names) if verdicts[name] not in SETTLED), default=-1)
    later = [name for name in names[last + 1 :] if name not in yanked and not is_nightly(name)]
    return next((name for name in later if not parsed(name).is_prerelease), later[0] if later else None)


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
