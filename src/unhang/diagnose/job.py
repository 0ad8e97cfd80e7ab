"""Put together what all files say of one job."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, TypeVar

from unhang.diagnose.evidence import Group, Job, Message, Operation, Rank, Unread
from unhang.diagnose.recorder import Dump

T = TypeVar("T")
_HOUR = 3600 * 10**9
_CLOCKS = 600 * 10**9
"""So far apart the clocks of two nodes, and a straggler and its peers, may be where collectives may take less."""
_SOURCE_AHEAD = 64


class Told(NamedTuple):
    """What one file says."""

    file: str
    dumps: tuple[Dump, ...] = ()
    """None, or one."""
    parts: tuple[Rank, ...] = ()
    """What its stacks or lines say of ranks. A number of -1 stands for `named`."""
    named: int | None = None
    """The rank in the file's name."""
    why: str = ""
    """Why it could not be read, or not whole; else empty."""
    size: int | None = None
    """How many ranks the job has, if it says so."""


def merged(told: Iterable[Told]) -> Job:
    """Return all that the files say, those of one rank together."""
    told = sorted(told)
    dumps, unread, unranked = _newest(told)
    dumps = _of_one_job(dumps, unread)
    twice = _twice_spied(told, unread)
    told = [_without(one, twice.get(one.file, ())) for one in told]
    renamed = _distinct(dumps)
    parts: dict[int, list[Rank]] = defaultdict(list)
    for dump in dumps.values():
        parts[dump.rank.rank].append(_grouped(dump.rank, renamed[dump.rank.rank]))
    nameless = [part for one in told for part in one.parts if part.rank < 0 and one.named is None]
    is_all = len(nameless) > 1 and not parts and all(part in nameless for one in told for part in one.parts)
    strangers: list[Message] = []
    spoken = {one.named for one in told if one.named is not None and not (one.dumps or one.parts or one.why)}
    for one in told:
        for part in one.parts:
            number = part.rank if part.rank >= 0 else one.named
            if number is None:
                if all(it.rank < 0 for it in one.parts):  # a name would help; what several ranks share has none
                    unranked.append(one.file)
                if is_all:  # what a few processes do is of use, whichever ranks they are
                    number = nameless.index(part)
            if number is None:
                strangers += part.messages
            elif part == Rank(part.rank):
                spoken.add(number)
            else:
                parts[number].append(_numbered(part, number))
    groups = {group.name: group for names in renamed.values() for group in names.values()}
    for same in parts.values():
        for operation in (operation for part in same for operation in (*part.waiting, *part.last)):
            if operation.group.name:
                groups.setdefault(operation.group.name, operation.group)
    worlds = {len(group.members) for group in groups.values() if group.description == "default_pg" and group.members}
    worlds = worlds or {one.size for one in told if one.size is not None}
    return Job(
        {rank: _one(parts[rank]) for rank in sorted(parts)},
        groups,
        worlds.pop() if len(worlds) == 1 else None,
        sum(bool(one.dumps or one.parts or one.size or not one.why) for one in told),
        tuple(unread),
        tuple(dict.fromkeys(unranked)),
        tuple(strangers),
        frozenset(spoken - parts.keys()),
    )


def _newest(told: Iterable[Told]) -> tuple[dict[int, Dump], list[Unread], list[str]]:
    """Return the best dump of each rank, the files that were not read or not whole, and those without a rank."""
    dumps: dict[int, list[tuple[tuple[int, bool, bool, int], str, Dump]]] = defaultdict(list)
    newest: dict[str, int] = defaultdict(int)
    unread: list[Unread] = []
    unranked: list[str] = []
    for one in told:
        if one.why:
            unread.append(Unread(one.file, one.why, bool(one.dumps or one.parts)))
        for dump in one.dumps:
            if dump.rank.rank < 0:
                unranked.append(one.file)
            else:
                folder = _folder(one.file)
                newest[folder] = max(dump.newest, newest[folder])
                dumps[dump.rank.rank].append((_worth(dump), one.file, dump))
    found: dict[int, Dump] = {}
    for rank, same in sorted(dumps.items()):
        # of two jobs that ran side by side, each in a folder of its own, one is read: the one that went on longer
        ends: dict[int, int] = defaultdict(int)
        for _, file, dump in same:
            ends[dump.newest] = max(newest[_folder(file)], ends[dump.newest])
        same.sort(key=lambda one: (ends[one[2].newest], one[0]), reverse=True)
        (_, used, best), *others = same
        why = f"{used} is read for rank {rank}: it is newer, or says more"
        unread += [Unread(file, why, partly=False) for _, file, _ in others]
        for _, _, dump in others:
            best = _filled(best, dump) if dump.newest == best.newest else best
        found[rank] = best
    return found, unread, unranked


def _twice_spied(told: Iterable[Told], unread: list[Unread]) -> dict[str, set[int]]:
    """Return, by file, the ranks whose stacks another folder has too: of two jobs, that with most ranks is read."""
    files: dict[int, set[str]] = defaultdict(set)
    for one in told:
        for part in one.parts:
            number = part.rank if part.rank >= 0 else one.named
            if number is not None and any(stack.idle is not None for stack in part.stacks):
                files[number].add(one.file)
    ranks = Counter(folder for same in files.values() for folder in {*map(_folder, same)})
    left: dict[str, set[int]] = defaultdict(set)
    for number, same in files.items():
        best = max(map(_folder, same), key=lambda folder: (ranks[folder], folder))
        for file in sorted(file for file in same if _folder(file) != best):
            left[file].add(number)
            unread.append(Unread(file, f"the stacks of rank {number} are those in {best}", partly=True))
    return left


def _folder(file: str) -> str:
    return file.rpartition("/")[0]


def _without(one: Told, numbers: Collection[int]) -> Told:
    """Return what a file says, but for the stacks of these ranks."""
    parts = (
        part._replace(stacks=()) if numbers and (part.rank if part.rank >= 0 else one.named) in numbers else part
        for part in one.parts
    )
    return one._replace(parts=tuple(parts))


def _of_one_job(dumps: Mapping[int, Dump], unread: list[Unread]) -> dict[int, Dump]:
    """Return the dumps of the job, and of the time, that most of them are of; tell of the others."""
    left = dict(dumps)
    for why, apart in (
        ("of another job: its groups have other members than in most dumps", _by_groups),
        ("of another time: its newest entry is further from those of most than a collective may take", _by_time),
        ("of another time: it and its peers have done what the other had not begun", _by_count),
    ):
        sides = apart(left)
        most = max(sides, key=lambda side: (len(side), max(left[rank].newest for rank in side)), default=())
        out = sorted(left.keys() - set(most)) if len(sides) > 1 else []
        unread += [Unread(f"the dump of rank {rank}", f"it is {why}", partly=False) for rank in out]
        left = {rank: dump for rank, dump in left.items() if rank not in out}
    return left


def _by_groups(dumps: Mapping[int, Dump]) -> list[tuple[int, ...]]:
    """Tell ranks apart for which a group of one name is for something else, or of some of the same members only."""
    sides: list[tuple[list[int], dict[str, set[Group]]]] = []
    unknown = tuple(rank for rank, dump in dumps.items() if not any(group.members for group in dump.groups))
    for rank in sorted(dumps.keys() - {*unknown}):
        named = [group for group in dumps[rank].groups if group.members]
        beside = (side for side in sides if all(_may_be_beside(one, it) for one in named for it in side[1][one.name]))
        side = next(beside, None)
        if side is None:
            sides.append(side := (list[int](), defaultdict[str, set[Group]](set)))
        side[0].append(rank)
        for group in named:
            side[1][group.name].add(group)
    return [(*ranks, *unknown) for ranks, _ in sides]


def _may_be_beside(one: Group, other: Group) -> bool:
    """Return whether a job may have both groups, which have one name: ``split_group`` gives it to several."""
    same = one.members == other.members or {*one.members}.isdisjoint(other.members)
    return same and one.description == other.description


def _by_time(dumps: Mapping[int, Dump]) -> list[tuple[int, ...]]:
    patience = max((dump.patience for dump in dumps.values()), default=0)
    gap = max(patience, _CLOCKS) if patience else _HOUR
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


def _distinct(dumps: Mapping[int, Dump]) -> dict[int, dict[str, Group]]:
    """Return each rank's groups by the names in its dump, under names that only one group has.

    ``split_group`` gives the same name to several groups, each of other members.
    """
    members: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    for dump in dumps.values():
        for group in dump.groups:
            members[group.name].add(group.members)
    made: dict[Group, Group] = {}

    def distinct(group: Group) -> Group:
        if len(members[group.name]) > 1 and group.members:
            return group._replace(name=f"{group.name}/{group.members[0]}")
        return group

    return {
        rank: {group.name: made.setdefault(group, distinct(group)) for group in dump.groups}
        for rank, dump in dumps.items()
    }


def _grouped(rank: Rank, groups: Mapping[str, Group]) -> Rank:
    """Return a rank whose operations and trails have these groups."""

    def grouped(operations: tuple[Operation, ...]) -> tuple[Operation, ...]:
        return tuple(one._replace(group=groups.get(one.group.name, one.group)) for one in operations)

    def renamed(by_name: Mapping[str, T]) -> dict[str, T]:
        return {groups[name].name if name in groups else name: one for name, one in by_name.items()}

    trails, counts = renamed(rank.trails), renamed(rank.counts)
    return rank._replace(waiting=grouped(rank.waiting), last=grouped(rank.last), trails=trails, counts=counts)


def _numbered(part: Rank, number: int) -> Rank:
    """Return a part of a file as of that rank."""
    if part.rank == number:
        return part
    waiting, last = (tuple(one._replace(rank=number) for one in same) for same in (part.waiting, part.last))
    return part._replace(rank=number, waiting=waiting, last=last)


def _one(parts: list[Rank]) -> Rank:
    """Return one rank: what its dump says of operations, else what its logs say; and all its stacks and lines."""
    waiting, last = ([part for part in parts if getattr(part, field)] for field in ("waiting", "last"))
    dumped = [part for part in parts if part.recorded]
    first = dumped[0] if dumped else parts[0]
    return first._replace(
        waiting=first.waiting or tuple(one for part in waiting for one in part.waiting),
        last=first.last or tuple(one for part in last for one in part.last),
        counts=first.counts or {name: count for part in parts for name, count in part.counts.items()},
        stacks=tuple(stack for part in parts for stack in part.stacks),
        process=next((part.process for part in parts if part.process), ""),
        messages=tuple(message for part in parts for message in part.messages),
    )
