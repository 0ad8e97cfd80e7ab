"""What an upgrade changes: which fixes each newer release makes superfluous, and which it brings in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from unhang.judge import matrix, untouched
from unhang.judge.decide import NEEDED, SETTLED, UNLISTED
from unhang.judge.pinned import held, on_record, project
from unhang.shapes import catalog
from unhang.shapes.catalog import Fix


class Step(NamedTuple):
    """What one newer release of a distribution changes for those who have the older one."""

    version: str
    needs: tuple[str, ...]
    """The fixes that an untouched copy of it needs."""
    drops: tuple[str, ...]
    """The fixes that the older one needs, and this one does not."""
    brings: tuple[str, ...]
    """The fixes that this one needs, and the older one does not."""
    unknown: tuple[str, ...]
    """The fixes of which nobody knows whether this one needs them."""


def needs(distribution: str, version: str, fixes: Sequence[Fix]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the fixes that an untouched copy of a release needs, and those of which nobody knows it."""
    verdicts = list(_verdicts(distribution, version, fixes))
    needed = dict.fromkeys(fix for fix, verdict in verdicts if verdict == NEEDED)
    unknown = dict.fromkeys(fix for fix, verdict in verdicts if verdict not in (NEEDED, *SETTLED))
    return tuple(needed), tuple(fix for fix in unknown if fix not in needed)


def steps(distribution: str, version: str, fixes: Sequence[Fix]) -> list[Step]:
    """Return what each newer release of a distribution changes, in order.

    Nightlies and yanked releases are left out, and pre-releases unless the version is one.
    """
    have = needs(distribution, version, fixes)[0]
    found = []
    for name in _newer(project(distribution).name, version):
        need, unknown = needs(distribution, name, fixes)
        drops = tuple(fix for fix in have if fix not in (*need, *unknown))
        found.append(Step(name, need, drops, tuple(fix for fix in need if fix not in have), unknown))
    return found


def best(found: Sequence[Step]) -> Step | None:
    """Return the newest of the steps with which the most fixes are superfluous; None if none makes one so."""
    chosen = max(reversed(found), key=lambda step: len(step.drops), default=None)
    return chosen if chosen is not None and chosen.drops else None


def _newer(upstream: str, version: str) -> Iterator[str]:
    """Yield the newer releases on record, in order, as ``steps`` does."""
    mine = matrix.parsed(version)
    for name in sorted(catalog.versions(upstream), key=matrix.parsed):
        other = matrix.parsed(name)
        if other <= mine or matrix.is_nightly(name) or (other.is_prerelease and not mine.is_prerelease):
            continue
        if not catalog.is_yanked(upstream, name):
            yield name


def _verdicts(distribution: str, version: str, fixes: Sequence[Fix]) -> Iterator[tuple[str, str]]:
    for upstream in held(distribution, version):
        name = on_record(upstream, version)
        for fix in fixes:
            if any(target.upstream == upstream for target in fix.targets):
                yield fix.id, _verdict(fix, upstream, name)


def _verdict(fix: Fix, upstream: str, version: str) -> str:
    release = catalog.releases_of(fix.id, upstream).get(version)
    return untouched.verdict(fix, upstream, release, catalog.shape_table()) if release else UNLISTED
