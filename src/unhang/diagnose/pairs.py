"""Sends and receives: which meet, for whom each rank's first operation waits, and which rank differs from its peers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import NamedTuple, cast

from unhang.diagnose.evidence import Job, Move, Operation, Rank

OPPOSITE = {"send": "recv", "recv": "send"}
PAIRED = frozenset({*OPPOSITE, "coalesced"})
"""Operations between two ranks, which have no number that all ranks of a group agree on."""
_Edges = Mapping[int, Collection[int]]
_IN_STEP, _SEVERAL, _ENOUGH = 3, 2, 64
"""So many operations alike show that two ranks are of one kind, and so many such ranks of its own group that one is
odd; and so many are asked."""
_Step = tuple[str, int]
"""A collective, by its group's description and number; or an operation between two ranks, by its number alone."""
_Way = tuple[int, str, str, int]  # a rank, a group, what the rank does there, and with whom


class End(NamedTuple):
    """The other end of a send or receive that is not done."""

    rank: int
    operation: Operation | None = None  # what that rank has issued, if that is not done there either
    done: bool = False  # whether it is done there: the devices have begun it then, but not all of the batch is
    is_known: bool = True  # whether a collective in which both were tells how many there were

    @property
    def lacks(self) -> bool:
        """Whether that rank has not issued it."""
        return self.operation is None and not self.done


Ends = Mapping[int, tuple[End | None, ...]]
"""For each rank, one for each operation in which it waits; None of a collective, or where nobody can know."""


class Head(NamedTuple):
    """What a device is to do first: a collective, or the sends and receives of a batch, which begin at once."""

    operations: tuple[Operation, ...]
    pairs: tuple[tuple[Operation, End], ...]  # its sends and receives, with their other ends

    @property
    def begun(self) -> bool:
        """Whether the device is known to be in it."""
        return any(one.begun for one in self.operations) or any(end.done for _, end in self.pairs)


class _Past:
    """What a rank has done, as far as its recorder has it."""

    def __init__(self, moves: Sequence[Move]) -> None:
        self._moves = moves
        self.places = {(move.group, move.number): at for at, move in enumerate(moves) if not move.kind}
        """Where its collectives stand."""
        self.done = cache(self._done)

    def _done(self, since: tuple[str, int]) -> Counter[tuple[str, str, int]]:
        """Return how many sends to and receives from each other rank are done since then, by group."""
        after = self._moves[self.places[since] + 1 :]
        return Counter((move.group, move.kind, move.number) for move in after if move.done)


def ends(job: Job) -> Ends:
    """Return the other ends of all that is not done: the k-th send to a rank meets its k-th receive from there."""
    past = {number: _Past(rank.moves) for number, rank in job.ranks.items() if rank.moves}
    waiting: dict[_Way, list[Operation]] = defaultdict(list)
    untold: dict[tuple[int, str], set[str]] = defaultdict(set)
    for number, rank in job.ranks.items():
        for one in rank.waiting:
            if one.peer is not None:
                waiting[number, one.group.name, one.kind, one.peer].append(one)
            elif one.kind in PAIRED:  # a log does not say with whom
                untold[number, one.group.name].add(one.kind)
    found: dict[int, tuple[End | None, ...]] = {}
    for number, rank in job.ranks.items():
        before: Counter[_Way] = Counter()
        ahead: dict[_Way, int | None] = {}
        own: list[End | None] = []
        for one in rank.waiting:
            if one.kind not in OPPOSITE or one.peer is None:
                own.append(None)
                continue
            group, peer = one.group.name, one.peer
            way, back = (number, group, one.kind, peer), (peer, group, OPPOSITE[one.kind], number)
            if way not in ahead:
                ahead[way] = _ahead(past, way, back)
            at, is_known = before[way] + (ahead[way] or 0), ahead[way] is not None
            before[way] += 1
            if untold[peer, group] - {one.kind}:
                own.append(None)
                continue
            theirs = waiting.get(back, ())
            is_known = is_known or peer not in job.ranks or not job.ranks[peer].recorded
            own.append(End(peer, theirs[at] if 0 <= at < len(theirs) else None, at < 0, is_known))
        found[number] = tuple(own)
    return found


def _ahead(past: Mapping[int, _Past], way: _Way, back: _Way) -> int | None:
    """Return how many more such operations a rank has done than the other, since both were in one collective.

    A recorder keeps the newest entries alone. Where both have no such collective in theirs, the answer is None.
    """
    mine, theirs = past.get(way[0]), past.get(back[0])
    if mine is None or theirs is None:
        return None
    since = next((key for key in mine.places if key in theirs.places), None)
    return since and mine.done(since)[way[1:]] - theirs.done(since)[back[1:]]


def heads(job: Job, found: Ends) -> dict[int, Head]:
    """Return what the device of each rank is to do first; gloo has none, and a log tells of none."""
    made = {}
    for number, rank in job.ranks.items():
        if rank.recorded and rank.waiting and all(count.device for count in rank.counts.values()):
            first = rank.waiting[0]
            own = [
                (one, end)
                for one, end in zip(rank.waiting, found[number])
                if one is first or (first.kind in PAIRED and one.kind in PAIRED and _key(one) == _key(first))
            ]
            made[number] = Head(tuple(one for one, _ in own), tuple((one, end) for one, end in own if end))
    return made


def _key(operation: Operation) -> tuple[str, int | None]:
    return operation.group.name, operation.sequence


def meet(job: Job, own: Mapping[int, Head]) -> dict[int, tuple[frozenset[int], frozenset[int]]]:
    """Return by rank whom its first operation waits for, and who has come to it and is to do it first, too."""
    firsts = {number: head.operations[0] for number, head in own.items()}
    paired = {number: _key(one) for number, one in firsts.items() if one.kind in PAIRED}
    at: dict[object, set[int]] = defaultdict(set)
    for number, first in firsts.items():
        place = *_key(first), first.kind
        at[place].add(number)
    made: dict[object, tuple[frozenset[int], frozenset[int]]] = {}
    found = {}
    for number, first in firsts.items():
        place = *_key(first), first.kind
        if number in paired:
            ends = [end for _, end in own[number].pairs]
            met = {end.rank for end in ends if end.operation and paired.get(end.rank) == _key(end.operation)}
            missing = {end.rank for end in ends if end.lacks or (end.operation and end.rank not in met)}
            found[number] = frozenset(missing), frozenset(met)
            continue
        if place not in made:
            members = frozenset(first.group.members)
            past = {it for it in members - at[place] if it in job.ranks and _is_past(job.ranks[it], first)}
            made[place] = members - at[place] - past, members & at[place]
        found[number] = made[place]
    return found


def _is_past(rank: Rank, collective: Operation) -> bool:
    """Return whether a rank has done a collective that others have not: it is in a later one of the group, or done."""
    own = [one for one in (*rank.last, *rank.waiting) if one.group.name == collective.group.name]
    ends = [(one.sequence or 0) + one.done for one in own if one.kind not in PAIRED]
    # one that it has issued as well is not done, whatever it has issued since
    is_due = any(not one.done and one.sequence == collective.sequence for one in own if one.kind not in PAIRED)
    return not is_due and max(ends, default=0) > (collective.sequence or 0)


def sinks(edges: _Edges) -> Iterator[frozenset[int]]:
    """Yield the ranks that wait for each other and for nobody else, and each one alone that waits for nobody."""
    waited: dict[int, list[int]] = defaultdict(list)
    for rank, ahead in edges.items():
        for other in ahead:
            waited[other].append(rank)
    left = {*edges, *waited}
    while left:
        one = min(left)
        while further := (ahead := _reached(edges, one)) - (behind := _reached(waited, one)):
            one = min(further)
        yield frozenset(ahead)
        left -= behind


def _reached(edges: _Edges, start: int) -> set[int]:
    found, new = {start}, {start}
    while new:
        new = {other for rank in new for other in edges.get(rank, ())} - found
        found |= new
    return found


def unlike(job: Job, heads: Mapping[int, Head], names: Mapping[int, str]) -> dict[int, int]:
    """Return how many ranks did alike, and otherwise than each of some ranks, in the groups that its description names.

    They are at its place in other groups, else in its own group, where they began as it did. A rank that does as they
    do is left out.
    """
    groups: dict[int, dict[str, tuple[int, ...]]] = defaultdict(dict)
    mates: dict[tuple[str, int, int], list[int]] = defaultdict(list)
    for one in job.groups.values():
        for at, number in enumerate(one.members if one.description in names.values() else ()):
            groups[number].setdefault(one.description, one.members)
            mates[one.description, len(one.members), at].append(number)
    done = cache(lambda number, name: _done(job, number, name, groups[number][name]))
    found: dict[int, int] = {}
    for number, name in names.items():
        if number in job.ranks and (members := groups[number].get(name, ())):
            place = mates[name, len(members), members.index(number)]
            mine, head = done(number, name), heads.get(number)
            for several, least in ((place, 1), (members, _SEVERAL)):
                others = [done(it, name) for it in several[:_ENOUGH] if it != number and it in job.ranks]
                many = _otherwise(mine, [one for one in others if _began_alike(mine, one)], head)
                if many >= least:
                    found.setdefault(number, many)
    return found


def _done(job: Job, number: int, description: str, members: Sequence[int]) -> dict[_Step, object]:
    """Return what a rank did in a group: each operation, and how many there were before each collective."""
    found: dict[_Step, object] = {}
    last = 0
    for one in job.ranks[number].moves:
        name = job.groups[one.group].description if one.group in job.groups else ""
        if not one.kind and name and last:
            found[name, one.number] = last
        elif one.kind and name == description and one.number in members:
            last = one.order
            found["", last] = one.kind, (members.index(one.number) - members.index(number)) % len(members)
    return found


def _began_alike(mine: Mapping[_Step, object], others: Mapping[_Step, object]) -> bool:
    """Return whether two ranks are of one kind: their first operations that the records of both have are alike."""
    common = [*islice((at for at in mine if at in others and not at[0]), _IN_STEP)]
    return len(common) == _IN_STEP and all(mine[at] == others[at] for at in common)


def _otherwise(mine: Mapping[_Step, object], others: Sequence[Mapping[_Step, object]], head: Head | None) -> int:
    """Return how many ranks did alike, and otherwise than one; 0 if it does as they do, or they do not do alike.

    One that waits in a collective has left out what others did that have not come to that.
    """
    collective = head.operations[0] if head and head.operations[0].kind not in PAIRED else None
    waits = (collective.group.description, collective.sequence or 0) if collective else None
    for at, what in mine.items():
        theirs = [one[at] for one in others if at in one]
        ahead = [one for one in others if at == waits and at not in one and ("", cast("int", what) + 1) in one]
        if len({*theirs}) > 1:
            return 0
        if what not in theirs and (theirs or ahead):
            return len(theirs) + len(ahead)
    return 0
