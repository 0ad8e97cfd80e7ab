"""What an untouched copy of a release needs, and which later one is right. It imports nothing slow: ``check`` asks."""

from __future__ import annotations

import re

from unhang.judge.decide import BY_STATE, DRIFTED, NEEDED, NOT_AFFECTED, SETTLED, UNLISTED, URGENCY, beside
from unhang.plugins import packs
from unhang.shapes import catalog
from unhang.shapes.catalog import Fix, Release, Shape, ShapeTable, Target

_NIGHTLY, _PRE_RELEASE = r"\.dev\d{4}", r"(a|b|rc|dev)\d"


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


def fixed_in(fix: Fix, upstream: str, version: str) -> str | None:
    """Return the first newer release that does not need a fix, nor does a later one; empty if there is none yet.

    None if the version is not on record, written like that. Nightlies and yanked releases are left out, and
    pre-releases unless the version is one. What is on record is in the order of PEP 440.
    """
    releases, table, found = catalog.releases_of(fix.id, upstream), catalog.shape_table(), ""
    names = (*releases,) if fix.pack.folder else catalog.versions(upstream)
    if version not in names:
        return None
    left_out = _NIGHTLY if re.search(_PRE_RELEASE, version) else _PRE_RELEASE
    for name in reversed(names[names.index(version) + 1 :]):
        release = releases.get(name)  # of our fixes, a pack's releases are in none
        if release is None or release.yanked or re.search(left_out, name):
            continue
        if verdict(fix, upstream, release, table) not in SETTLED:
            break
        found = name
    return found
