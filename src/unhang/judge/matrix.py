"""The compat matrix: what an untouched copy of every release needs, and from which release on a fix can go. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from unhang.errors import UnhangError
from unhang.judge.decide import APPLIED, DRIFTED, FIXED_UPSTREAM, NEEDED, NOT_AFFECTED, SETTLED, URGENCY
from unhang.shapes.catalog import Fix, Release, ShapeTable

Releases = Mapping[str, Mapping[str, Release]]
"""Releases by upstream and version, as ``catalog.releases`` gives them."""

BY_STATE = {  # the verdict of an untouched copy whose function has a shape of this state
    "affected": NEEDED,
    "superseded": NEEDED,
    "ours": APPLIED,
    "fixed": FIXED_UPSTREAM,
    "not-affected": NOT_AFFECTED,
}


class Row(NamedTuple):
    """What is true of one fix on an untouched copy of one release."""

    upstream: str
    version: str
    yanked: bool
    fix: str
    verdict: str


def rows(fixes: Sequence[Fix], releases: Releases, table: ShapeTable) -> list[Row]:
    """A row for every release and every fix: upstreams in the order given, releases as PEP 440 orders them.

    A fix that has no target in an upstream is ``not-affected`` there: its function is not here.
    """
    return [
        Row(upstream, release.version, release.yanked, fix.id, verdict(fix, upstream, release, table))
        for upstream, versions in releases.items()
        for release in sorted(versions.values(), key=lambda release: parsed(release.version))
        for fix in fixes
    ]


def verdict(fix: Fix, upstream: str, release: Release, table: ShapeTable) -> str:
    """The verdict of a fix on an untouched copy of a release; of several targets, that of the most urgent one.

    A shape that is not on record is ``drifted``, as it would be in an environment: nobody has verified it.
    """
    told = []
    for target in fix.targets:
        if target.upstream == upstream:
            shape = release.shapes.get(f"{target.file}::{target.function}")
            known = None if shape is None else table.shapes.get((fix.id, target.function, shape))
            absent = NOT_AFFECTED if shape is None else DRIFTED
            told.append(absent if known is None else BY_STATE[known.state])
    return min(told, key=URGENCY.index, default=NOT_AFFECTED)


def droppable(fix: Fix, releases: Releases, table: ShapeTable) -> dict[str, str | None]:
    """For each upstream that ever needed a fix: the first release from which on none needs it; None while one does.

    Every later release then has upstream's own fix, or no longer the defect. A nightly is never that first release:
    its number does not grow with time.
    """
    found: dict[str, str | None] = {}
    for upstream in dict.fromkeys(target.upstream for target in fix.targets):
        ordered = sorted(releases.get(upstream, {}).values(), key=lambda release: parsed(release.version))
        verdicts = [verdict(fix, upstream, release, table) for release in ordered]
        if NEEDED in verdicts:
            last = max(index for index, told in enumerate(verdicts) if told not in SETTLED)
            later = (release.version for release in ordered[last + 1 :] if not is_nightly(release.version))
            found[upstream] = next(later, None)
    return found


def matching(rows: Sequence[Row], wanted: str) -> list[Row]:
    """The rows of the releases that a version (``0.17.1``) or a PEP 440 specifier (``~=0.17``) names; pre-releases too.

    Raises UnhangError ``bad-version`` where it is neither, ``no-such-release`` where nothing on record matches.
    """
    accepts = _reader(rows, wanted)
    chosen = [row for row in rows if accepts(parsed(row.version))]
    if rows and not chosen:
        message = f"no release in the matrix matches {wanted!r}"
        raise UnhangError("no-such-release", message, hint=f"nearest in the matrix: {_nearest(rows, wanted)}")
    return chosen


@cache
def parsed(version: str) -> Version:
    """A version, read once. Raises InvalidVersion."""
    return Version(version)


def is_nightly(version: str) -> bool:
    """Whether a version is one of a series of nightlies, whose numbers do not grow with time.

    A CI job numbers those by its own identity; a development release that people number counts from 0.
    """
    return (parsed(version).dev or 0) >= 1000


def _reader(rows: Iterable[Row], wanted: str) -> Callable[[Version], bool]:
    try:
        exact = Version(wanted)
    except InvalidVersion:
        pass
    else:
        return lambda version: version == exact
    try:
        specifier = SpecifierSet(wanted)
    except InvalidSpecifier:
        specifier = SpecifierSet("")
    if not str(specifier):
        import difflib

        near = difflib.get_close_matches(wanted, sorted({row.version for row in rows}), n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UnhangError(
            "bad-version", f"{wanted!r} is neither a version nor a PEP 440 specifier",
            hint=f"{hint}a version reads 0.17.1, a specifier '~=0.17' or '>=0.16,<0.18'",
        )  # fmt: skip
    return lambda version: specifier.contains(version, prereleases=True)


def _nearest(rows: Sequence[Row], wanted: str) -> str:
    """The nearest release of each upstream: the newest that is not newer than what is wanted, else the oldest."""
    bound = re.search(r"\d[\w.!+]*", wanted)
    try:
        aim = Version(bound.group().rstrip(".") if bound else "")
    except InvalidVersion:  # ===, which takes any text
        aim = max(parsed(row.version) for row in rows)
    told = []
    for upstream in dict.fromkeys(row.upstream for row in rows):
        found = (row.version for row in rows if row.upstream == upstream and not is_nightly(row.version))
        ordered = sorted(dict.fromkeys(found), key=parsed)
        older = [version for version in ordered if parsed(version) <= aim]
        told += [f"{upstream} {version}" for version in (older[-1:] or ordered[:1])]
    return ", ".join(told)
