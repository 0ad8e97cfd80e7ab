"""Put together what all files say of one job."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from unhang import gate
from unhang.diagnose import one_job, statements
from unhang.diagnose.evidence import GONE, RUNNING, Group, Job, Message, Operation, Rank, Unread
from unhang.diagnose.recorder import Dump


class Told(NamedTuple):
    """What one file says."""

    file: str
    dumps: tuple[Dump, ...] = ()  # none, or one
    parts: tuple[Rank, ...] = ()  # what its stacks or lines say of ranks. A number of -1 stands for `named`.
    named: int | None = None  # the rank in the file's name
    why: str = ""  # why it could not be read, or not whole; else empty
    size: int | None = None  # how many ranks the job has, if it says so
    at: float = 0.0  # when it was taken, in seconds, if it has stacks


def merged(told: Iterable[Told]) -> Job:
    """Return all that the files say, those of one rank together."""
    told = sorted(told)
    mute = [it.file for it in told if it.at and it.named is None and not (it.dumps or it.parts or it.size or it.why)]
    said = statements.agreed(
        [
            statements.known(it, -1 if one.named is None else one.named)
            for one in told
            for part in one.parts
            for it in part.statements
        ]
    )
    speak = {one.file for one in told if any(part.statements for part in one.parts)}
    told = [one._replace(parts=tuple(_of(one.named, it) for it in one.parts if not it.statements)) for one in told]
    unread = [Unread(one.file, one.why, bool(one.dumps or one.parts)) for one in told if one.why]
    unread += [Unread(file, "nothing in it is of a form that is read", partly=False) for file in mute]
    unranked = [one.file for one in told if any(dump.rank.rank < 0 for dump in one.dumps)]
    dumps, left, others = one_job.chosen((one.file, dump) for one in told for dump in one.dumps if dump.rank.rank >= 0)
    unread += left
    astray = [it for it in told if it.parts and any(it.file.startswith(f"{folder}/") for folder in others)]
    unread += [Unread(one.file, "it lies beside the dumps of another job or time", partly=False) for one in astray]
    told = [one._replace(parts=(), named=None) if one in astray else one for one in told]
    running = frozenset(part.rank for one in told for part in one.parts if part.process == RUNNING)
    cpu = {part.rank: part.cpu for one in told for part in one.parts if part.cpu is not None}
    # that a rank runs is no more than that; and one that a node has seen to run is not gone on another
    is_told = {(rank, process) for rank in running for process in (RUNNING, GONE)}
    told = [one._replace(parts=tuple(it for it in one.parts if (it.rank, it.process) not in is_told)) for one in told]
    told = _newest(told, unread)
    renamed = _distinct(dumps)
    parts: dict[int, list[Rank]] = defaultdict(list)
    for dump in dumps.values():
        parts[dump.rank.rank].append(_grouped(dump.rank, renamed[dump.rank.rank]))
    strangers: list[Message] = []
    names: dict[int, str] = {}
    files = Counter(part.name for one in told for part in one.parts)
    spoken = {one.named for one in told if one.named is not None and not (one.dumps or one.parts or one.why)}
    for one in told:
        for part in one.parts:
            if part.rank < 0:
                is_alone = all(it.rank < 0 for it in one.parts) and (one.file not in speak or bool(part.name))
                if is_alone and not dumps and _taken_by(part) is not None:
                    is_known = files[part.name] == 1 and not part.name.startswith("process ")
                    named = (part.name if is_known else f"{part.name} ({one.file})") if part.name else one.file
                    names[-2 - len(names)] = gate.line(named)  # how a user would recognise it
                    parts[min(names)].append(_of(min(names), part))
                elif is_alone:  # a name would help; what several ranks share has none
                    unranked.append(one.file)
                strangers += part.messages
            elif part == Rank(part.rank):
                spoken.add(part.rank)
            else:
                parts[part.rank].append(part)
    groups = {group.name: group for names in renamed.values() for group in names.values()}
    for same in parts.values():
        for operation in (operation for part in same for operation in (*part.waiting, *part.last)):
            if operation.group.name:
                groups.setdefault(operation.group.name, operation.group)
    worlds = {len(group.members) for group in groups.values() if group.description == "default_pg" and group.members}
    worlds = worlds or {one.size for one in told if one.size is not None}
    return Job(
        {rank: _one(parts[rank])._replace(cpu=cpu.get(rank)) for rank in sorted(parts)},
        groups,
        worlds.pop() if len(worlds) == 1 else None,
        sum(bool(one.dumps or one.parts or one.size or not one.why) for one in told),
        tuple(unread),
        tuple(dict.fromkeys(unranked)),
        tuple(strangers),
        frozenset(spoken - parts.keys()),
        running,
        said,
        names,
    )


def _newest(told: Iterable[Told], unread: list[Unread]) -> list[Told]:
    """Return what files say, but for stacks (py-spy's, or faulthandler's) of which newer ones are; tell of these."""
    older = {
        (file.path, is_spied): why
        for is_spied in (True, False)
        for file, why in one_job.left_out(_spied(told, is_spied=is_spied))
    }
    left = []
    for one in told:
        out = [(one.file, _taken_by(part)) in older for part in one.parts]
        rests = [part._replace(stacks=(), name="") if is_out else part for part, is_out in zip(one.parts, out)]
        parts = tuple(rest for rest, is_out in zip(rests, out) if not is_out or rest != Rank(rest.rank))
        left.append(one._replace(parts=parts, named=one.named if parts or not any(out) else None))
        whys = (older.get((one.file, is_spied)) for is_spied in (True, False))
        unread += [Unread(one.file, why, bool(parts)) for why in whys if why]
    return left


def _spied(told: Iterable[Told], *, is_spied: bool) -> Iterator[one_job.File]:
    """Yield the files with stacks of ranks: py-spy's, or faulthandler's."""
    for one in told:
        if ranks := frozenset(part.rank for part in one.parts if part.rank >= 0 and _taken_by(part) == is_spied):
            yield one_job.File(one.file, ranks, one.at)


def _taken_by(part: Rank) -> bool | None:
    """Return whether the stacks of a part are py-spy's, or of a file of faulthandler's; None if they are of a log."""
    if any(stack.idle is not None for stack in part.stacks):
        return True
    return False if part.stacks and part == Rank(part.rank, stacks=part.stacks, name=part.name) else None


def _distinct(dumps: Mapping[int, Dump]) -> dict[int, dict[str, Group]]:
    """Return each rank's groups by their names, under names of one group each: ``split_group`` repeats some."""
    groups = {group for dump in dumps.values() for group in dump.groups}
    times = Counter(name for name, _ in {(one.name, one.members) for one in groups})
    made = {
        one: one._replace(name=f"{one.name}/{one.members[0]}") if times[one.name] > 1 and one.members else one
        for one in groups
    }
    return {rank: {group.name: made[group] for group in dump.groups} for rank, dump in dumps.items()}


def _grouped(rank: Rank, groups: Mapping[str, Group]) -> Rank:
    """Return a rank whose operations and counts have these groups."""

    def grouped(operations: tuple[Operation, ...]) -> tuple[Operation, ...]:
        return tuple(one._replace(group=groups.get(one.group.name, one.group)) for one in operations)

    counts = {groups[name].name if name in groups else name: one for name, one in rank.counts.items()}
    names = {name: group.name for name, group in groups.items() if group.name != name}
    moves = tuple(one._replace(group=names.get(one.group, one.group)) for one in rank.moves) if names else rank.moves
    waiting, last = map(grouped, (rank.waiting, rank.last))
    return rank._replace(waiting=waiting, last=last, counts=counts, moves=moves)


def _of(number: int | None, part: Rank) -> Rank:
    """Return a part of a file as of that rank, unless it says its own."""
    if part.rank >= 0 or number is None:
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
        ended=any(part.ended for part in parts),
        timed_out=any(part.waiting for part in parts if not part.recorded),
        messages=tuple(message for part in parts for message in part.messages),
    )
