"""Tell apart the jobs, and the times, whose dumps and stacks lie in one folder tree."""

from __future__ import annotations

import re
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
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

    def __init__(self, file: File) -> None:
        self.files: list[File] = []
        self.ranks: dict[int, list[File]] = defaultdict(list)
        self.groups: dict[str, set[Group]] = defaultdict(set)
        self.newest = 0
        self.take([file])

    def take(self, files: Iterable[File]) -> None:
        for file in files:
            self.files.append(file)
            self.ranks[file.dump.rank.rank].append(file)
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
        """Return whether a job may have the groups of both: those of one name are for one thing, and no rank is in two
        of them, as with ``split_group``, which gives several one name.
        """
        for name in self.groups.keys() & other.groups:
            if not other.groups[name] <= self.groups[name]:
                groups = self.groups[name] | other.groups[name]
                members = [rank for group in groups for rank in group.members]
                if len({group.description for group in groups}) > 1 or len(members) > len({*members}):
                    return False
        return True


def chosen(files: Sequence[File]) -> tuple[dict[int, Dump], list[Unread], set[str]]:
    """Return the best dump of each rank of one job: of those that ran side by side, the one with most ranks, else the
    latest one. Beside them, the dumps that are left out, and the folders that have nothing but another job's files.
    """
    if not files:
        return {}, [], set()
    runs = _runs(files)
    latest, gap = max(run.newest for run in runs), _gap(dump for _, dump in files)
    beside = [run for run in runs if run.newest <= 0 or latest - run.newest <= gap]
    best = max(beside, key=lambda run: (len(run.ranks), run.newest, max(_worth(dump) for _, dump in run.files)))
    dumps, unread, others = {}, list[Unread](), set[str]()
    for rank, same in sorted(best.ranks.items()):
        (used, dump), *left = sorted(same, key=lambda one: (_worth(one.dump), one.path), reverse=True)
        why = f"{used} is read for rank {rank}: it is newer, or says more"
        for path, other in left:
            unread.append(Unread(path, why, partly=False))
            dump = _filled(dump, other) if other.newest == dump.newest else dump
        dumps[rank] = dump
    folders = {folder for path, _ in best.files for folder in PurePosixPath(path).parents}
    for run in runs:
        for path, dump in run.files if run is not best else ():
            own = PurePosixPath(best.ranks.get(dump.rank.rank, best.files)[0].path)
            place = own if own.parent == PurePosixPath(path).parent else own.parent
            why = f"{place} is read: this is of another job or time"
            if run.has_groups_of(best):
                others.update(str(one) for one in PurePosixPath(path).parents if one not in folders)
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
    runs = [(_place(file), _Run(file)) for file in sorted(files, key=lambda one: one.path)]
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


def _is_one_process(one: File, other: File) -> bool:
    """Return whether two dumps of a rank may be of one process: an entry of the one is in the other, with its time.

    One without entries, such as that of a rank with no active operation, may be of any.
    """
    a, b = one.dump, other.dump
    return min(a.newest, b.newest) <= 0 or a.newest == b.newest or not a.marks.isdisjoint(b.marks)


def _gap(dumps: Iterable[Dump]) -> int:
    """Return how far apart in time the dumps of one hang may be."""
    patience = max((dump.patience for dump in dumps), default=0)
    return max(patience, _CLOCKS) if patience else _HOUR


def _of_one_time(dumps: Mapping[int, Dump], unread: list[Unread]) -> dict[int, Dump]:
    """Return the dumps of the time that most of them are of; tell of the others.

    No collective is done before all ranks of its group have begun it. The source of some broadcasts is done before, so
    a few more are no evidence.
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
    keep(times, _gap(dumps.values()), "its newest entry is further from those of most than a collective may take")
    for name in dict.fromkeys(name for dump in dumps.values() for name in dump.rank.counts):
        counts = [(rank, dump.rank.counts[name]) for rank, dump in left.items() if name in dump.rank.counts]
        spans = [
            (it.enqueued, it.completed, rank) for rank, it in counts if it.shared and it.device and it.enqueued >= 0
        ]
        keep(spans, _SOURCE_AHEAD, "it and its peers have done what the other had not begun")
    return left


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
