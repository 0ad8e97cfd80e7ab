"""Folds neighbouring releases that have the same verdicts into one range, for people to read. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from packaging.version import Version

from unhang.judge.matrix import Row, is_nightly, parsed
from unhang.shapes.catalog import Fix


class Range(NamedTuple):
    """Releases that are neighbours as PEP 440 orders them, and have the same verdict for each fix of their panel."""

    versions: tuple[str, ...]
    """All of them, in order."""
    yanked: tuple[str, ...]
    verdicts: tuple[str, ...]
    """In the order of the panel's fixes."""

    @property
    def label(self) -> str:
        """``0.10.0 - 0.16.1``, or the one release there is; a nightly is told as ``0.16.0rc0.dev*``."""
        return " - ".join(self.ends)

    @property
    def ends(self) -> tuple[str, ...]:
        """The first and the last release; one name where they are the same."""
        return tuple(dict.fromkeys((_name(self.versions[0]), _name(self.versions[-1]))))

    @property
    def notes(self) -> list[str]:
        """What the label does not tell: nightlies inside, and releases that were yanked."""
        found = Counter(_nightlies(version) for version in self.versions if is_nightly(version))
        told = [
            f"{number} {'nightly' if number == 1 else 'nightlies'}{'' if name == self.label else f' {name}'}"
            for name, number in found.items()
        ]
        return told + [f"yanked: {', '.join(self.yanked)}"] * bool(self.yanked)


class Panel(NamedTuple):
    """One upstream: the fixes that have a target in it, and its releases, folded."""

    upstream: str
    fixes: tuple[str, ...]
    ranges: tuple[Range, ...]

    @property
    def summary(self) -> str:
        """How many releases there are: ``45 releases and 339 nightlies``."""
        versions = [version for folded in self.ranges for version in folded.versions]
        nightlies = sum(map(is_nightly, versions))
        others = len(versions) - nightlies
        told = f"{others} release{'' if others == 1 else 's'}"
        return told + (f" and {nightlies} nightl{'y' if nightlies == 1 else 'ies'}" if nightlies else "")


def panels(rows: Iterable[Row], fixes: Sequence[Fix]) -> list[Panel]:
    """A panel for each upstream that has a target of these fixes: neighbours with the same verdicts are one range."""
    return _folded(rows, fixes, lambda version: None)


def panels_by_series(rows: Iterable[Row], fixes: Sequence[Fix]) -> list[Panel]:
    """As ``panels``, but releases of different series, such as 0.16 and 0.17, stay apart."""
    return _folded(rows, fixes, series)


def series(version: str) -> str:
    """The first two numbers of a version."""
    return ".".join(map(str, (*parsed(version).release, 0)[:2]))


def _folded(rows: Iterable[Row], fixes: Sequence[Fix], apart: Callable[[str], Hashable]) -> list[Panel]:
    found: dict[str, dict[str, dict[str, Row]]] = {}
    for row in rows:
        found.setdefault(row.upstream, {}).setdefault(row.version, {})[row.fix] = row
    folded = []
    for upstream, versions in found.items():
        mine = tuple(fix.id for fix in fixes if any(target.upstream == upstream for target in fix.targets))
        if mine:
            verdicts = {version: tuple(by_fix[fix].verdict for fix in mine) for version, by_fix in versions.items()}
            yanked = {version for version, by_fix in versions.items() if by_fix[mine[0]].yanked}
            folded.append(Panel(upstream, mine, tuple(_ranges(verdicts, yanked, apart))))
    return folded


def _ranges(
    verdicts: dict[str, tuple[str, ...]], yanked: set[str], apart: Callable[[str], Hashable]
) -> Iterable[Range]:
    # nightlies share a place: those with the same verdicts stand together, whatever their numbers
    ordered = sorted(verdicts, key=lambda version: (_place(version), verdicts[version], parsed(version)))
    for (_, told), group in groupby(ordered, key=lambda version: (apart(version), verdicts[version])):
        versions = tuple(group)
        yield Range(versions, tuple(version for version in versions if version in yanked), told)


def _nightlies(version: str) -> str:
    """The name of the series that a nightly belongs to: ``0.16.0rc0.dev*``."""
    return version.rpartition(".dev")[0] + ".dev*"


def _place(version: str) -> Version:
    """What a release is ordered by: its version; all nightlies of a series share one place, the first one's."""
    return parsed(_nightlies(version).replace("*", "0")) if is_nightly(version) else parsed(version)


def _name(version: str) -> str:
    return _nightlies(version) if is_nightly(version) else version
