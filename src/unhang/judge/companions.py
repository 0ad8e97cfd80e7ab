"""Which fixes come along, as another one would harm a job without them; and which may harm one here. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import eq, ge, gt, le, lt, ne
from typing import Any

from unhang.job.strikes import Harm, unasked
from unhang.judge.decide import FIXED_UPSTREAM, NOT_AFFECTED
from unhang.judge.findings import Finding
from unhang.records import Installation
from unhang.shapes import catalog
from unhang.shapes.catalog import Companion

_VERSION = re.compile(r'version\("([^"]+)"\)\s*([=!<>]=?)\s*"([^"]+)"')
_PLAIN = re.compile(r"(?:\.?[0-9]+)+")
_COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge,
}  # fmt: skip


def of(fixes: Iterable[str]) -> tuple[str, ...]:
    """Return the fixes that may have to come along with these, and are not among them."""
    known, found = catalog.fixes(), dict.fromkeys(fixes)
    chosen = {*found}
    for name in (waiting := [*found]):  # one that comes along may need another
        more = [it.fix for it in known[name].companions if it.fix in known and it.fix not in found]
        found.update(dict.fromkeys(more))
        waiting += more
    return tuple(name for name in known if name in found and name not in chosen)


def along(findings: Sequence[Finding], coming: Collection[str], skipped: Collection[str]) -> list[Finding]:
    """Return the findings, each with the companions that it needs here.

    Of the fixes that are only ``coming`` along, those are left that a chosen one needs, and not ``skipped``.
    """
    by_fix: dict[str, list[Finding]] = {}
    for it in findings:
        by_fix.setdefault(it.target.fix, []).append(it)
    here = {name: _here(name, by_fix) for name in by_fix if catalog.fix(name).companions}
    if not here and not coming:
        return [*findings]
    callers: dict[str, list[str]] = {}
    wanted = [name for name in by_fix if name not in coming]
    for name in wanted:
        for other in here.get(name, ()):
            if other in coming and name not in callers.setdefault(other, []):
                callers[other].append(name)
                wanted += [other] if other not in wanted else []
    found = []
    for it in findings:
        name = it.target.fix
        if name in coming and (name not in callers or name in skipped):
            continue
        needs = tuple(
            other for other in here.get(name, ()) if _has_it(it) and not all(one.settled for one in by_fix[other])
        )
        found.append(it._replace(needs=needs, along=tuple(callers.get(name, ()))))
    return found


def with_harms(findings: Iterable[Finding], installations: Iterable[Installation]) -> list[Finding]:
    """Return the findings with what the fixes may do to a job of which nothing was said, in these releases."""
    here = {it.upstream: it.version for it in installations}
    return [it._replace(harms=_harms(it.target.fix, here)) for it in findings]


def _harms(name: str, here: Mapping[str, str | None]) -> tuple[Harm, ...]:
    return tuple(it for it in unasked(catalog.fix(name)) if not _is_ruled_out(it.leave_out.condition, here))


def _is_ruled_out(condition: str, here: Mapping[str, str | None]) -> bool:
    """Return whether a release alone decides that a condition does not hold; `ast`, which reads all, is slow."""
    if " or " in condition or "(" in _VERSION.sub("", condition):
        return False
    asked = [_VERSION.fullmatch(part.strip()) for part in condition.split(" and ")]
    return any(it and it[1] in here and not _is_in(here[it[1]], f"{it[2]}{it[3]}") for it in asked)


def _here(name: str, by_fix: Mapping[str, Sequence[Finding]]) -> list[str]:
    """Return the companions of a fix that are needed here, or in place, if the fix itself is."""
    if not any(map(_has_it, by_fix[name])):
        return []
    return [
        each.fix
        for each in catalog.fix(name).companions
        if any(_is_of(it, each) and _has_it(it) for it in by_fix.get(each.fix, ()))
    ]


def _has_it(finding: Finding) -> bool:
    return finding.verdict.verdict not in (FIXED_UPSTREAM, NOT_AFFECTED)


def _is_of(finding: Finding, companion: Companion) -> bool:
    place = finding.installation
    return place.upstream == companion.upstream and _is_in(place.version, companion.releases)


def _is_in(version: str | None, releases: str) -> bool:
    """Return whether a version is one of these releases, as pip compares them; one that nobody knows may be."""
    if not releases or not version:
        return True
    parts = [re.match(r"\s*([=!<>]=?)\s*(.*?)\s*$", part) for part in releases.split(",")]
    if _PLAIN.fullmatch(version) and all(part and _PLAIN.fullmatch(part[2]) for part in parts):
        mine = _numbers(version)  # `packaging` is slow to import
        return all(part and _COMPARED[part[1]](mine, _numbers(part[2])) for part in parts)
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        return SpecifierSet(releases).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return True


def _numbers(version: str) -> list[int]:
    numbers = [int(part) for part in version.split(".")]
    while numbers[1:] and not numbers[-1]:
        del numbers[-1]
    return numbers
