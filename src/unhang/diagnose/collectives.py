"""Where the ranks of a job diverge: which one waits in which operation, which issued another, and which none."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from unhang.diagnose.evidence import Group, Job, Operation
from unhang.diagnose.pairs import PAIRED, Ends

_LARGEST = 1 << 17
_EVEN = frozenset({"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"})
"""Collectives whose inputs have one number of elements and one type on all ranks."""

ONE_SIDED = frozenset({"broadcast", "reduce", "gather", "scatter"})
"""Collectives that some ranks are done with before others have come."""


class Meeting(NamedTuple):
    """One collective of a group: what each rank issued under its number, and who has not come to it."""

    group: Group
    sequence: int | None
    operations: Mapping[int, Operation]  # by rank, also those that are done
    absent: tuple[int, ...] = ()  # ranks of the group, with a dump, that have issued fewer collectives in it
    is_open: bool = True  # whether some rank of the group may have issued another one than is known, or none
    differ: frozenset[str] = frozenset()  # in what the operations differ that must not: `operation`, `size`, `dtype`

    @property
    def waiting(self) -> tuple[int, ...]:
        """The ranks that wait in it."""
        return tuple(rank for rank, one in self.operations.items() if not one.done)

    @property
    def agrees(self) -> bool:
        """Whether all ranks of the group are in it, and none in another one."""
        return not (self.is_open or self.absent or self.differ)


def differences(operations: Iterable[Operation]) -> frozenset[str]:
    """Return in what collectives of one number differ that must not: `operation`, `size`, `dtype`."""
    known = [one for one in operations if one.kind]
    if len({one.kind for one in known}) > 1:
        return frozenset({"operation"})
    if not known or known[0].kind not in _EVEN:
        return frozenset()
    sizes = {one.elements for one in known if one.elements is not None}
    dtypes = {one.dtypes for one in known if one.dtypes}
    return frozenset(name for name, values in (("size", sizes), ("dtype", dtypes)) if len(values) > 1)


def sides(operations: Iterable[Operation]) -> list[tuple[int, ...]]:
    """Return the ranks that issued one call, size and type, for each of these.

    What a source does not say may be anything: a rank that may be on several sides is on none.
    """
    found: dict[tuple[object, ...], list[int]] = {}
    told = [((one.kind or None, one.elements, one.dtypes or None), one.rank) for one in operations]
    for key, rank in sorted(told, key=lambda one: one[0].count(None)):
        alike = [it for it in found if all(a is None or b is None or a == b for a, b in zip(key, it))]
        if len(alike) < 2:
            found.setdefault(alike[0] if alike else key, []).append(rank)
    return [tuple(sorted(side)) for side in found.values()]


def settled(job: Job) -> Job:
    """Return a job without the operations that are done since a later one of the group is: gloo tells it late."""
    ranks = {}
    for number, rank in job.ranks.items():
        done = {one.group.name: one.sequence or 0 for one in rank.last if one.kind not in PAIRED}
        waiting = [
            one for one in rank.waiting if one.kind in PAIRED or (one.sequence or 0) >= done.get(one.group.name, 0)
        ]
        ranks[number] = rank._replace(waiting=tuple(waiting))
    return job._replace(ranks=ranks)


def everybody(job: Job) -> set[int]:
    """Return all ranks of a job, as far as they are known. A number far off must not fill the memory."""
    size = job.size or max((*job.ranks, *job.spoken), default=-1) + 1
    return {*range(min(size, _LARGEST)), *job.ranks}


def members(job: Job, group: Group) -> set[int]:
    """Return the members of a group. A log names the group of all ranks, and does not list these."""
    return {*group.members} or (everybody(job) if group.description == "default_pg" else set())


def meetings(job: Job) -> tuple[Meeting, ...]:
    """Return, for each group, the first collective on which ranks disagree, and the first one in which a rank waits."""
    known: dict[str, dict[int, dict[int, Operation]]] = defaultdict(lambda: defaultdict(dict))
    single = []
    for number, rank in job.ranks.items():
        for one in (*rank.last, *rank.waiting):
            if one.kind in PAIRED:
                continue
            # some logs give no group, or a description that several have
            name = "0" if one.group.description == "default_pg" else one.group.name
            if name and one.sequence is not None:
                known[name][one.sequence][number] = one
            elif not one.done:
                single.append(Meeting(one.group, one.sequence, {number: one}))
    found = []
    for numbers in known.values():
        differ = {number: differences(issued.values()) for number, issued in numbers.items()}
        apart = [number for number, names in differ.items() if names]
        waits = [number for number, issued in numbers.items() if any(not one.done for one in issued.values())]
        for number in sorted({min(it) for it in (apart, waits) if it}):
            found.append(_meeting(job, number, numbers, differ[number]))
    return (*found, *single)


def _meeting(job: Job, number: int, numbers: Mapping[int, Mapping[int, Operation]], differ: frozenset[str]) -> Meeting:
    issued = numbers[number]
    group = max((one.group for one in issued.values()), key=lambda one: (len(one.members), one.name, one.description))
    group = job.groups.get(group.name) or group
    newest: dict[int, int] = {}
    for sequence, operations in numbers.items():
        for rank in operations:
            newest[rank] = max(sequence, newest.get(rank, 0))
    for rank, one in job.ranks.items():
        if (count := one.counts.get(group.name)) and count.shared and count.enqueued > 0:
            newest[rank] = max(count.enqueued, newest.get(rank, 0))
    recorded = {rank for rank, one in job.ranks.items() if one.recorded}
    own = members(job, group)
    behind = {rank for rank in (own or newest) if rank in recorded and newest.get(rank, 0) < number}
    if not (own or behind or differ):
        behind = _candidates(job, group, recorded - newest.keys())
    unseen = bool((own or everybody(job)) - recorded) or not (group.members or job.size)
    passed = any(sequence >= number and rank not in issued for rank, sequence in newest.items())
    # nobody is done with an all-reduce before all have come to the same: gloo tells late who else is done
    is_met = not differ and any(one.done and one.kind in _EVEN - ONE_SIDED for one in issued.values())
    is_open = (unseen or passed) and not is_met
    return Meeting(group, number, dict(sorted(issued.items())), tuple(sorted(behind)), is_open, differ)


def _candidates(job: Job, group: Group, unused: Collection[int]) -> set[int]:
    """Return who may be missing from a group of which no dump lists the members, as with gloo.

    It is somebody who has not used the group, nor another one of this description; a rank that waits nowhere, if any.
    Where logs alone tell of the group, it is nobody whose dump lists groups: that lists all groups of its rank. Of a
    group without a description, it is somebody only if gloo's dumps of all ranks are there: it would be done if all
    members had come, and who waits in another such group may belong here as well.
    """
    users = [one for one in job.ranks.values() if any(group.name == it.group.name for it in (*one.waiting, *one.last))]
    if not group.description:
        kinds = {one.kind for rank in users for one in rank.waiting if one.group.name == group.name}
        has_device = any(rank.counts[group.name].device for rank in users if group.name in rank.counts)
        is_whole = all(number in job.ranks and job.ranks[number].recorded for number in everybody(job))
        if has_device or not is_whole or kinds & ONE_SIDED:
            return set()
    is_logged = not any(one.recorded for one in users)
    listed = {rank for one in job.groups.values() for rank in one.members if is_logged}
    others = {number: job.ranks[number] for number in {*unused} - listed}
    own = {it: (*rank.last, *(rank.waiting if group.description else ())) for it, rank in others.items()}
    found = {it for it, same in own.items() if all(one.group.description != group.description for one in same)}
    return {number for number in found if not others[number].waiting} or found


def waits_for(job: Job, found: Sequence[Meeting], ends: Ends) -> dict[int, set[int]]:
    """Return whom each rank waits for, as far as that is known, given the other ends of its sends and receives."""
    edges: dict[int, set[int]] = defaultdict(set)
    for meeting in found:
        for number in meeting.waiting:
            edges[number].update(meeting.absent)
    for number, own in ends.items():
        for end in own:
            if end and end.lacks:
                edges[number].add(end.rank)
    return edges
