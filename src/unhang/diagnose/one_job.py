"""Tell apart the jobs, and the times, whose dumps and stacks lie in one folder tree."""

from __future__ import annotations

import re
from bisect import bisect
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from unhang.diagnose.evidence import Group, Unread
from unhang.diagnose.recorder import Dump

_HOUR = 3600 * 10**9
_CLOCKS = 600 * 10**9
"""So far apart the clocks of two nodes, and a straggler and its peers, may be where collectives may take less."""
_MINUTE = 60.0
_SOURCE_AHEAD = 64
_NUMBER = re.compile(r"(\d{1,18})")
_OTHER_GROUPS = "it is of another job: its groups have other members than in most dumps"


class File(NamedTuple):
    """A dump and where it lies."""

    path: str
    dump: Dump


class Taken(NamedTuple):
    """Which stacks a file was taken with, and when."""

    series: str = ""
    """Its path without its rank: files of which this is the same were taken together."""
    stamp: float = 0.0
    """The time in that, in seconds; 0 if there is none."""
    at: float = 0.0
    """When it was written, in seconds."""


class Spied(NamedTuple):
    """A file with stacks."""

    file: str
    ranks: frozenset[int]
    taken: Taken


class _Run:
    """Files that may be of one job."""

    def __init__(self, files: Iterable[File]) -> None:
        self.files: list[File] = []
        self.ranks: dict[int, list[Dump]] = defaultdict(list)
        self.groups: dict[str, set[Group]] = defaultdict(set)
        self.newest = 0
        self.take(files)

    def take(self, files: Iterable[File]) -> None:
        for file in files:
            self.files.append(file)
            self.ranks[file.dump.rank.rank].append(file.dump)
            self.newest = max(file.dump.newest, self.newest)
            for group in file.dump.groups:
                if group.members:
                    self.groups[group.name].add(group)

    def goes_with(self, other: _Run) -> bool:
        """Return whether both may be of one job: of its ranks, none has two processes."""
        twice = self.ranks.keys() & other.ranks.keys()
        return self.has_groups_of(other) and (
            not twice or any(_is_one_process(a, b) for n in twice for a in self.ranks[n] for b in other.ranks[n])
        )

    def has_groups_of(self, other: _Run) -> bool:
        """Return whether a job may have the groups of both, as with ``split_group``, which gives several one name."""
        return all(_may_be_beside(self.groups[name] | other.groups[name]) for name in self.groups.keys() & other.groups)

    def is_surely_another(self, other: _Run) -> bool:
        """Return whether the same entry of a rank has two times, so that both are of jobs of the same groups."""
        return self.has_groups_of(other) and any(
            dict(a.marks).keys() & dict(b.marks).keys() and not _is_one_process(a, b)
            for number in self.ranks.keys() & other.ranks.keys()
            for a in self.ranks[number]
            for b in other.ranks[number]
        )


def chosen(files: Sequence[File]) -> tuple[dict[int, Dump], list[Unread], set[str]]:
    """Return the best dump of each rank of one job: of those that ran side by side, the one with most ranks, else the
    latest one. Beside them, the dumps that are left out, and the folders that have nothing but another job's files.
    """
    if not files:
        return {}, [], set()
    runs = _runs(files)
    latest = max(run.newest for run in runs)
    gap = _gap(dump for _, dump in files)
    beside = [run for run in runs if run.newest <= 0 or latest - run.newest <= gap]
    best = max(beside, key=lambda run: (len(run.ranks), run.newest, max(map(_worth, (dump for _, dump in run.files)))))
    dumps, unread = _of_ranks(best)
    used = {dump.rank.rank: path for path, dump in reversed(best.files)}
    others = set[str]()
    for run in runs:
        if run is best:
            continue
        if run.is_surely_another(best):
            others.update(_trees(run, best))
        for path, dump in run.files:
            number = dump.rank.rank
            own = PurePosixPath(used.get(number, best.files[0].path))
            place = own if own.parent == PurePosixPath(path).parent else own.parent
            why = f"{place} is read: this is of another job or time"
            unread.append(Unread(path, why if run.has_groups_of(best) else _OTHER_GROUPS, partly=False))
    return _of_one_time(dumps, unread), unread, others


def older(files: Iterable[Spied]) -> Iterator[tuple[str, frozenset[int], str]]:
    """Yield the files with stacks of ranks of which newer ones were taken, or in the same minute those of more ranks:
    each with the ranks whose stacks do not count, and why.

    What is taken later of a few ranks alone does not replace what was taken of all at one time.
    """
    series: dict[str, list[Spied]] = defaultdict(list)
    for one in files:
        series[one.taken.series].append(one)
    ranks = {name: frozenset[int]().union(*(one.ranks for one in same)) for name, same in series.items()}
    of_rank: dict[int, set[str]] = defaultdict(set)
    for name, own in ranks.items():
        for rank in own:
            of_rank[rank].add(name)
    rivals = {name: {it for rank in own for it in of_rank[rank]} for name, own in ranks.items()}
    is_stamped = all(one.taken.stamp for name, same in series.items() if len(rivals[name]) > 1 for one in same)
    when = {name: max(one.taken.stamp if is_stamped else one.taken.at for one in same) for name, same in series.items()}
    gap = 1.0 if is_stamped else _MINUTE
    times = sorted(when.values())
    moments = [at for at, before in zip(times, [-gap, *times]) if at - before >= gap]

    def worth(name: str) -> tuple[object, ...]:
        is_most = 2 * len(ranks[name]) > max(len(ranks[it]) for it in rivals[name])
        numbers = [int(part) if part.isdecimal() else part for part in _NUMBER.split(name)]
        return is_most, bisect(moments, when[name]), len(ranks[name]), int(when[name]), numbers

    kept: dict[int, str] = {}
    for name in sorted(series, key=worth, reverse=True):
        if not (twice := ranks[name] & kept.keys()):
            kept.update(dict.fromkeys(ranks[name], name))
            continue
        best = kept[min(twice)]
        later_by = when[best] - when[name]
        is_older = later_by >= gap
        out = ranks[name] if is_older else twice
        kept.update(dict.fromkeys(ranks[name] - out, name))
        why = f"{best} is read for the same ranks{': it is newer' if is_older else ''}"
        if not is_stamped and later_by < 60 * _MINUTE:
            why += "; if these are other ranks of one job, put the rank in the job into each name"
        for one in series[name]:
            if one.ranks & out:
                yield one.file, one.ranks & out, why


def _runs(files: Iterable[File]) -> list[_Run]:
    """Return the files of each job: those that lie near each other come together first."""
    series: dict[tuple[str, ...], list[File]] = defaultdict(list)
    for file in sorted(files, key=lambda one: one.path):
        series[_place(file)].append(file)
    runs: list[tuple[tuple[str, ...], _Run]] = []
    for place, same in series.items():
        whole = _Run(same)
        is_one = all(_is_one_process(dumps[0], dump) for dumps in whole.ranks.values() for dump in dumps)
        parts = [whole] if is_one and whole.has_groups_of(whole) else _joined([_Run([file]) for file in same])
        runs += [(place, part) for part in parts]
    for depth in range(max(len(place) for place, _ in runs), -1, -1):
        near: dict[tuple[str, ...], list[_Run]] = defaultdict(list)
        for place, run in runs:
            near[place[:depth]].append(run)
        runs = [(place, run) for place, several in near.items() for run in _joined(several)]
    return [run for _, run in runs]


def _joined(runs: Iterable[_Run]) -> list[_Run]:
    """Return runs, those together that may be of one job; the largest is asked first."""
    found: list[_Run] = []
    for run in sorted(runs, key=lambda one: -len(one.ranks)):
        at = next((at for at, other in enumerate(found) if other.goes_with(run)), None)
        if at is None:
            found.append(run)
        else:
            found[at].take(run.files)
    return found


def _place(file: File) -> tuple[str, ...]:
    """Return what the paths of a job's dumps have in common: the path without the rank, else the folder."""
    own = [found for found in _NUMBER.finditer(file.path) if int(found[0]) == file.dump.rank.rank]
    if not own:
        return PurePosixPath(file.path).parent.parts
    return PurePosixPath(f"{file.path[: own[-1].start()]}#{file.path[own[-1].end() :]}").parts


def _is_one_process(one: Dump, other: Dump) -> bool:
    """Return whether two dumps of a rank may be of one process: an entry of the one is in the other, with its time.

    One without entries, such as that of a rank with no active operation, may be of any.
    """
    is_empty = min(one.newest, other.newest) <= 0
    return is_empty or one.newest == other.newest or not one.marks.isdisjoint(other.marks)


def _trees(run: _Run, best: _Run) -> Iterable[str]:
    """Yield the highest folders that have files of a job, and none of the one that is read."""
    own = {folder for path, _ in best.files for folder in PurePosixPath(path).parents}
    for path, _ in run.files:
        if above := [folder for folder in PurePosixPath(path).parents if folder not in own]:
            yield str(above[-1])


def _of_ranks(run: _Run) -> tuple[dict[int, Dump], list[Unread]]:
    """Return the best dump of each rank, and the files that say less."""
    found: dict[int, Dump] = {}
    unread = []
    by_rank: dict[int, list[File]] = defaultdict(list)
    for file in run.files:
        by_rank[file.dump.rank.rank].append(file)
    for rank, same in sorted(by_rank.items()):
        (used, best), *others = sorted(same, key=lambda one: (_worth(one.dump), one.path), reverse=True)
        why = f"{used} is read for rank {rank}: it is newer, or says more"
        unread += [Unread(file, why, partly=False) for file, _ in others]
        for _, dump in others:
            best = _filled(best, dump) if dump.newest == best.newest else best
        found[rank] = best
    return found, unread


def _gap(dumps: Iterable[Dump]) -> int:
    """Return how far apart in time the dumps of one hang may be."""
    patience = max((dump.patience for dump in dumps), default=0)
    return max(patience, _CLOCKS) if patience else _HOUR


def _of_one_time(dumps: Mapping[int, Dump], unread: list[Unread]) -> dict[int, Dump]:
    """Return the dumps of the time that most of them are of; tell of the others."""
    left = dict(dumps)
    for why, apart in (
        ("of another time: its newest entry is further from those of most than a collective may take", _by_time),
        ("of another time: it and its peers have done what the other had not begun", _by_count),
    ):
        sides = apart(left)
        most = max(sides, key=lambda side: (len(side), max(left[rank].newest for rank in side)), default=())
        out = sorted(left.keys() - set(most)) if len(sides) > 1 else []
        unread += [Unread(f"the dump of rank {rank}", f"it is {why}", partly=False) for rank in out]
        left = {rank: dump for rank, dump in left.items() if rank not in out}
    return left


def _may_be_beside(groups: Collection[Group]) -> bool:
    """Return whether groups of one name are for one thing, and no rank is in two of them."""
    members = [rank for group in groups for rank in group.members]
    return len({group.description for group in groups}) == 1 and len(members) == len({*members})


def _by_time(dumps: Mapping[int, Dump]) -> list[tuple[int, ...]]:
    gap = _gap(dumps.values())
    sides: list[tuple[int, ...]] = []
    timed = sorted((dump.newest, rank) for rank, dump in dumps.items() if dump.newest > 0)
    for (newest, rank), (before, _) in zip(timed, [(0, 0), *timed]):
        if not sides or newest - before > gap:
            sides.append(())
        sides[-1] = (*sides[-1], rank)
    unknown = tuple(rank for rank, dump in dumps.items() if dump.newest <= 0)
    return [(*side, *unknown) for side in sides]


def _by_count(dumps: Mapping[int, Dump]) -> list[tuple[int, ...]]:
    """Tell ranks apart that cannot be of one time: no collective is done before all ranks of its group have begun it.

    The source of some broadcasts is done before, so a few more are no evidence.
    """
    counts: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for rank, dump in dumps.items():
        for name, count in dump.rank.counts.items():
            if count.shared and count.device and count.enqueued >= 0:
                counts[name].append((count.enqueued, count.completed, rank))
    out: set[int] = set()
    for several in counts.values():
        sides: list[list[int]] = []
        before = 0
        for enqueued, completed, rank in sorted(several):
            if not sides or completed - before > _SOURCE_AHEAD:
                sides.append([])
            sides[-1].append(rank)
            before = enqueued
        most = max(sides, key=lambda side: (len(side), max(dumps[rank].newest for rank in side)))
        out.update(rank for side in sides if side is not most for rank in side)
    return [side for side in (tuple(dumps.keys() - out), tuple(out)) if side]


def _filled(best: Dump, other: Dump) -> Dump:
    """Return a dump with what another one of that time says beside it, such as one of the active operations only."""
    rank, more = best.rank, other.rank
    whole = rank._replace(
        last=rank.last or more.last, trails={**more.trails, **rank.trails}, counts={**more.counts, **rank.counts}
    )
    return best._replace(rank=whole, groups=best.groups or other.groups)


def _worth(dump: Dump) -> tuple[int, bool, bool, int]:
    """Return a larger value for a newer dump; of two as new, for a whole one, one with groups, or one with frames."""
    frames = sum(len(one.frames) for one in (*dump.rank.waiting, *dump.rank.last))
    return dump.newest, not dump.broken, bool(dump.groups), frames
