"""Folds neighbouring releases with the same verdicts into one range, for people to read. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from packaging.version import Version

from unhang.judge.matrix import Row, is_nightly, parsed
from unhang.shapes.catalog import Fix


class Range(NamedTuple):
    """Neighbours in the order of PEP 440 that have the same verdict for each fix of their panel."""

    versions: tuple[str, ...]
    """All of its releases, in order."""
    yanked: tuple[str, ...]
    verdicts: tuple[str, ...]
    """In the order of the panel's fixes."""

    @property
    def label(self) -> str:
        """``0.10.0 - 0.16.1``, or the only release; a nightly is shown as ``0.16.0rc0.dev*``."""
        return " - ".join(self.ends)

    @property
    def ends(self) -> tuple[str, ...]:
        """The first and the last release, or one name if both are the same."""
        return tuple(dict.fromkeys((_name(self.versions[0]), _name(self.versions[-1]))))

    @property
    def notes(self) -> list[str]:
        """What the label leaves out: the nightlies in the range, and the yanked releases."""
        found = Counter(_nightlies(version) for version in self.versions if is_nightly(version))
        notes = [
            f"{number} {'nightly' if number == 1 else 'nightlies'}{'' if name == self.label else f' {name}'}"
            for name, number in found.items()
        ]
        return notes + [f"yanked: {', '.join(self.yanked)}"] * bool(self.yanked)


class Panel(NamedTuple):
    """One upstream: the fixes that have a target in it, and its releases as ranges."""

    upstream: str
    fixes: tuple[Fix, ...]
    ranges: tuple[Range, ...]

    @property
    def summary(self) -> str:
        """The number of releases: ``45 releases and 339 nightlies``."""
        versions = [version for folded in self.ranges for version in folded.versions]
        nightlies = sum(map(is_nightly, versions))
        others = len(versions) - nightlies
        counted = f"{others} release{'' if others == 1 else 's'}"
        return counted + (f" and {nightlies} nightl{'y' if nightlies == 1 else 'ies'}" if nightlies else "")


def panels(rows: Iterable[Row], fixes: Sequence[Fix]) -> list[Panel]:
    """Return a panel for each upstream that has a target of these fixes."""
    return _folded(rows, fixes, lambda version: None)


def panels_by_series(rows: Iterable[Row], fixes: Sequence[Fix]) -> list[Panel]:
    """Return the same panels, but with a new range where a new series, such as 0.17 after 0.16, begins."""
    return _folded(rows, fixes, series)


def narrowed(panel: Panel, numbers: Sequence[int]) -> Panel:
    """Return a panel of some of its fixes, by their place in it: neighbouring ranges may become one."""
    ranges = []
    for verdicts, group in groupby(panel.ranges, key=lambda item: tuple(item.verdicts[number] for number in numbers)):
        parts = list(group)
        versions = tuple(version for part in parts for version in part.versions)
        ranges.append(Range(versions, tuple(version for part in parts for version in part.yanked), verdicts))
    return Panel(panel.upstream, tuple(panel.fixes[number] for number in numbers), tuple(ranges))


def series(version: str) -> str:
    """Return the first two numbers of a version."""
    return ".".join(map(str, (*parsed(version).release, 0)[:2]))


def _folded(rows: Iterable[Row], fixes: Sequence[Fix], apart: Callable[[str], Hashable]) -> list[Panel]:
    found: dict[str, dict[str, dict[str, Row]]] = {}
    for row in rows:
        found.setdefault(row.upstream, {}).setdefault(row.version, {})[row.fix] = row
    folded = []
    for upstream, versions in found.items():
        mine = tuple(fix for fix in fixes if any(target.upstream == upstream for target in fix.targets))
        if mine:
            verdicts = {version: tuple(by_fix[fix.id].verdict for fix in mine) for version, by_fix in versions.items()}
            yanked = {version for version, by_fix in versions.items() if by_fix[mine[0].id].yanked}
            folded.append(Panel(upstream, mine, tuple(_ranges(verdicts, yanked, apart))))
    return folded


def _ranges(
    verdicts: dict[str, tuple[str, ...]], yanked: set[str], apart: Callable[[str], Hashable]
) -> Iterable[Range]:
    # all nightlies of a series share a place: those with the same verdicts come together, whatever their numbers
    ordered = sorted(verdicts, key=lambda version: (_place(version), verdicts[version], parsed(version)))
    for (_, shared), group in groupby(ordered, key=lambda version: (apart(version), verdicts[version])):
        versions = tuple(group)
        yield Range(versions, tuple(version for version in versions if version in yanked), shared)


def _nightlies(version: str) -> str:
    """Return the name for all nightlies of a series: ``0.16.0rc0.dev*``."""
    return version.rpartition(".dev")[0] + ".dev*"


def _place(version: str) -> Version:
    """Return what to order a release by: its version, or for a nightly that of the first of its series."""
    return parsed(_nightlies(version).replace("*", "0")) if is_nightly(version) else parsed(version)


def _name(version: str) -> str:
    return _nightlies(version) if is_nightly(version) else version
