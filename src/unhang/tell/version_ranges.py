"""Folds neighbouring releases with the same verdicts into one range, for people to read. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from unhang.judge.matrix import Row, is_nightly, parsed
from unhang.shapes.catalog import Fix


class Range(NamedTuple):
    """Neighbours in the order of PEP 440 that have the same verdict for each fix of their panel, and nightlies."""

    versions: tuple[str, ...]
    """All of its releases, in order, and then its nightlies."""
    yanked: tuple[str, ...]
    verdicts: tuple[str, ...]
    """In the order of the panel's fixes."""

    @property
    def label(self) -> str:
        """``0.12.0 to 0.15.3, and 163 nightlies``."""
        return named([self])

    @property
    def ends(self) -> tuple[str, ...]:
        """The first and the last release, or one if both are the same; none of nightlies alone."""
        ordered = [version for version in self.versions if not is_nightly(version)]
        return tuple(dict.fromkeys((*ordered[:1], *ordered[-1:])))

    @property
    def nightlies(self) -> str:
        """How many of them are nightlies, whose numbers are in no order with the code; empty for none."""
        number = sum(map(is_nightly, self.versions))
        return f"{number} nightl{'y' if number == 1 else 'ies'}" if number else ""

    @property
    def notes(self) -> list[str]:
        """What the label leaves out: the yanked releases."""
        return [f"yanked: {', '.join(self.yanked)}"] * bool(self.yanked)


def named(ranges: Sequence[Range]) -> str:
    """Return the name of some ranges: ``0.10.0, 0.12.0 to 0.15.3, and 163 nightlies``."""
    spans = [" to ".join(item.ends) for item in ranges if item.ends]
    nightlies = Range(tuple(version for item in ranges for version in item.versions), (), ()).nightlies
    return ", and ".join(filter(None, (", ".join(spans), nightlies)))


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
    """Yield the ranges. Nightlies with the same verdicts come together, and to releases beside them with the same."""

    def key(version: str) -> Hashable:
        return apart(version), verdicts[version]

    ordered = sorted(verdicts, key=parsed)
    groups = [[*group] for _, group in groupby((it for it in ordered if not is_nightly(it)), key=key)]
    alike: dict[Hashable, list[str]] = {}
    for version in filter(is_nightly, ordered):
        alike.setdefault(key(version), []).append(version)
    for shared, nightlies in alike.items():
        after = sum(parsed(group[0]) < parsed(nightlies[0]) for group in groups)
        beside = [group for group in groups[max(after - 1, 0) : after + 1] if key(group[0]) == shared]
        if beside:
            beside[0] += nightlies
        else:
            groups.insert(after, nightlies)
    for group in groups:
        yield Range(tuple(group), tuple(version for version in group if version in yanked), verdicts[group[0]])
