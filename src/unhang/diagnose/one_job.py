"""Tell apart the jobs, and the times, whose dumps and stacks lie in one folder tree."""

from __future__ import annotations

import re
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import NamedTuple

from unhang.diagnose.evidence import Group, Unread
from unhang.diagnose.recorder import Dump

_MINUTE, _HOUR = 60.0, 3600.0
"""So far apart the dumps or stacks of one hang may be: a collective may take half an hour, and clocks differ."""
_SOURCE_AHEAD = 64
_NUMBER = re.compile(r"((?i:rank)[_.\-]?)?(\d{1,18})")
SAME = " is read for the same ranks"  # what is said of a file of whose ranks another tells as much
_OTHER_GROUPS = "it is of another job: its groups have other members than in most dumps"


class File(NamedTuple):
    """A file with a dump, or with stacks, of ranks."""

    path: str
    ranks: frozenset[int]
    at: float  # when it was taken, in seconds
    groups: tuple[Group, ...] = ()  # those that a dump lists
    worth: tuple[int, ...] = ()  # how much a dump says: of two that are else as good, the one with more counts


class _Series:
    """Files that were taken together: their paths differ in their ranks alone, and their groups may be of one job."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.files: list[File] = []
        self.ranks: set[int] = set()
        self.groups: dict[str, set[Group]] = defaultdict(set)
        self.at = 0.0

    def has_groups_of(self, groups: Iterable[Group]) -> bool:
        """Return whether a job may have these groups as well: those of one name are for one thing, and no rank is in
        two of them, as with ``split_group``, which gives several one name.
        """
        for group in groups:
            others = self.groups[group.name] if group.members else ()
            if others and group not in others:
                if any(it.description != group.description or {*it.members} & {*group.members} for it in others):
                    return False
        return True


def left_out(files: Iterable[File]) -> list[tuple[File, str]]:
    """Return the files that do not count, since others of the same ranks do, or are of another job; each with the
    reason. Those of the last hour count before older ones, then those of more ranks, then the newer ones.
    """
    series = [*_series(files)]
    times = sorted(one.at for one in series)
    hours = [at for at, before in zip(times, [-_HOUR, *times]) if at - before >= _HOUR]

    def worth(one: _Series) -> tuple[object, ...]:
        numbers = [int(part) if part.isdecimal() else part for part in re.split(r"(\d{1,18})", one.name)]
        return bisect(hours, one.at), len(one.ranks), one.at, max(it.worth for it in one.files), numbers

    kept, best, left = _Series(""), dict[int, _Series](), list[tuple[File, str]]()
    for one in sorted(series, key=worth, reverse=True):
        twice = one.ranks & best.keys()
        has_groups = all(kept.has_groups_of(same) for same in one.groups.values())
        if has_groups and not twice:
            for name, same in one.groups.items():
                kept.groups[name] |= same
            best.update(dict.fromkeys(one.ranks, one))
        else:
            left += [(file, _why(one, best[min(twice)]) if has_groups else _OTHER_GROUPS) for file in one.files]
    return left


def _series(files: Iterable[File]) -> Iterable[_Series]:
    found: dict[str, list[_Series]] = defaultdict(list)
    for file in files:
        name = _series_of(file.path, min(file.ranks)) if len(file.ranks) == 1 else file.path
        same = next((one for one in found[name] if one.has_groups_of(file.groups)), None)
        if same is None:
            found[name].append(same := _Series(name))
        same.files.append(file)
        same.ranks |= file.ranks
        same.at = max(same.at, file.at)
        for group in file.groups:
            same.groups[group.name] |= {group} if group.members else set()
    return (one for several in found.values() for one in several)


def _series_of(path: str, rank: int) -> str:
    """Return a path without its rank: the last number that is called so, or else is the same."""
    own = [found for found in _NUMBER.finditer(path) if int(found[2]) == rank]
    if not own:
        return path
    last = max(own, key=lambda found: (bool(found[1]), found.start()))
    return f"{path[: last.start(2)]}*{path[last.end(2) :]}"


def _why(one: _Series, best: _Series) -> str:
    """Return why another series is read."""
    apart = best.at - one.at
    newer = ": it is newer" if apart >= _MINUTE else ": it has more" if len(best.ranks) > len(one.ranks) else ""
    is_near = apart < _HOUR and not one.groups
    more = "; if these are other ranks of one job, put the rank in the job into each name" if is_near else ""
    return f"{best.name}{SAME}{newer}{more}"


def chosen(files: Iterable[tuple[str, Dump]]) -> tuple[dict[int, Dump], list[Unread], set[str]]:
    """Return the best dump of each rank of one job. Beside them, the dumps that are left out, and the folders that have
    nothing but another job's files.
    """

    def worth(dump: Dump) -> tuple[int, ...]:
        frames = sum(len(one.frames) for one in (*dump.rank.waiting, *dump.rank.last))
        return not dump.broken, bool(dump.groups), frames

    dumps = dict(files)
    left = left_out(
        File(path, frozenset({dump.rank.rank}), dump.newest / 10**9, dump.groups, worth(dump))
        for path, dump in dumps.items()
    )
    unread = [Unread(file.path, why, partly=False) for file, why in left]
    out = {file.path for file, _ in left}
    folders = {folder for path in dumps.keys() - out for folder in PurePosixPath(path).parents}
    beside = {folder for file, why in left if why != _OTHER_GROUPS for folder in PurePosixPath(file.path).parents}
    read = {dump.rank.rank: dump for path, dump in dumps.items() if path not in out}
    return _of_one_time(read, unread), unread, {str(folder) for folder in beside - folders}


def _of_one_time(dumps: Mapping[int, Dump], unread: list[Unread]) -> dict[int, Dump]:
    """Return the dumps of the time that most of them are of; tell of the others. No collective is done before all ranks
    of its group have begun it, but for some broadcasts at their source: so a few more are no evidence.
    """
    left = dict(dumps)

    def keep(spans: Iterable[tuple[int, int, int]], gap: int, why: str) -> None:
        """Leave out the ranks of all but the largest run of spans: each with its end, its beginning and its rank."""
        sides: list[list[int]] = []
        before = 0
        for end, begin, rank in sorted(spans):
            if not sides or begin - before > gap:
                sides.append([])
            sides[-1].append(rank)
            before = end
        most = max(sides, key=lambda side: (len(side), max(dumps[rank].newest for rank in side)), default=[])
        for rank in sorted({rank for side in sides for rank in side} - {*most}):
            unread.append(Unread(f"the dump of rank {rank}", f"it is of another time: {why}", partly=False))
            del left[rank]

    times = [(dump.newest, dump.newest, rank) for rank, dump in dumps.items() if dump.newest > 0]
    keep(times, int(_HOUR) * 10**9, "its newest entry is further from those of most than a collective may take")
    spans: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for rank, dump in dumps.items():
        for name, it in dump.rank.counts.items():
            if it.shared and it.device and it.enqueued >= 0:
                spans[name].append((it.enqueued, it.completed, rank))
    for same in spans.values():
        here = [span for span in same if span[2] in left]
        keep(here, _SOURCE_AHEAD, "it and its peers have done what the other had not begun")
    return left
