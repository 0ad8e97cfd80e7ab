"""Put together what all files say of one job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from unhang.diagnose.evidence import Group, Job, Operation, Rank, Unread
from unhang.diagnose.recorder import Dump


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


def merged(told: Iterable[Told]) -> Job:
    """Return all that the files say, those of one rank together."""
    told = sorted(told)
    dumps, unread, unranked = _newest(told)
    renamed = _distinct(dumps)
    parts: dict[int, list[Rank]] = defaultdict(list)
    for dump in dumps.values():
        parts[dump.rank.rank].append(_grouped(dump.rank, renamed[dump.rank.rank]))
    for one in told:
        for part in one.parts:
            number = part.rank if part.rank >= 0 else one.named
            if number is None:
                unranked.append(one.file)
            else:
                parts[number].append(_numbered(part, number))
    groups = {group.name: group for names in renamed.values() for group in names.values()}
    for same in parts.values():
        for operation in (operation for part in same for operation in (*part.waiting, *part.last)):
            if operation.group.name:
                groups.setdefault(operation.group.name, operation.group)
    worlds = {len(group.members) for group in groups.values() if group.description == "default_pg" and group.members}
    return Job(
        {rank: _one(parts[rank]) for rank in sorted(parts)},
        groups,
        worlds.pop() if len(worlds) == 1 else None,
        sum(bool(one.dumps or one.parts or not one.why) for one in told),
        tuple(unread),
        tuple(dict.fromkeys(unranked)),
    )


def _newest(told: Iterable[Told]) -> tuple[dict[int, Dump], list[Unread], list[str]]:
    """Return the best dump of each rank, the files that were not read or not whole, and those without a rank."""
    dumps: dict[int, list[tuple[tuple[int, bool, int], str, Dump]]] = defaultdict(list)
    unread: list[Unread] = []
    unranked: list[str] = []
    for one in told:
        if one.why:
            unread.append(Unread(one.file, one.why, bool(one.dumps or one.parts)))
        for dump in one.dumps:
            if dump.rank.rank < 0:
                unranked.append(one.file)
            else:
                dumps[dump.rank.rank].append((_worth(dump), one.file, dump))
    found: dict[int, Dump] = {}
    for rank, same in dumps.items():
        (_, used, found[rank]), *others = sorted(same, key=lambda one: one[0], reverse=True)
        why = f"{used} is read for rank {rank}: it is newer, or says more"
        unread += [Unread(file, why, partly=False) for _, file, _ in others]
    return found, unread, unranked


def _worth(dump: Dump) -> tuple[int, bool, int]:
    """Return a larger value for a newer dump; of two as new, for a whole one, or one with frames."""
    return dump.newest, not dump.broken, sum(len(one.frames) for one in (*dump.rank.waiting, *dump.rank.last))


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

    trails = {groups[name].name if name in groups else name: trail for name, trail in rank.trails.items()}
    return rank._replace(waiting=grouped(rank.waiting), last=grouped(rank.last), trails=trails)


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
        stacks=tuple(stack for part in parts for stack in part.stacks),
        messages=tuple(message for part in parts for message in part.messages),
    )
