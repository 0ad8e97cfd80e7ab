"""Sends and receives: which meets which, and for whom the first operation of each rank waits."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from unhang.diagnose.evidence import Job, Move, Operation, Rank

OPPOSITE = {"send": "recv", "recv": "send"}
PAIRED = frozenset({*OPPOSITE, "coalesced"})
"""Operations between two ranks, which have no number that all ranks of a group agree on."""
_Edges = Mapping[int, Collection[int]]


class End(NamedTuple):
    """The other end of a send or receive that is not done."""

    rank: int
    operation: Operation | None = None
    """What that rank has issued, if that is not done there either."""
    done: bool = False
    """Whether it is done there: the two devices have begun it then, and something else of the batch is not done."""
    is_known: bool = True
    """Whether a collective in which both were tells how many there were."""

    @property
    def lacks(self) -> bool:
        """Whether that rank has not issued it."""
        return self.operation is None and not self.done


Ends = Mapping[int, tuple[End | None, ...]]
"""For each rank, one for each operation in which it waits; None of a collective, or where nobody can know."""


class Head(NamedTuple):
    """What a device is to do first: a collective, or the sends and receives of a batch, which begin at once."""

    operations: tuple[Operation, ...]
    pairs: tuple[tuple[Operation, End], ...]
    """Its sends and receives, with their other ends."""

    @property
    def begun(self) -> bool:
        """Whether the device is known to be in it."""
        return any(one.begun for one in self.operations) or any(end.done for _, end in self.pairs)


def ends(job: Job) -> Ends:
    """Return the other ends of all that is not done: the k-th send to a rank meets its k-th receive from there."""
    places = {number: _places(rank) for number, rank in job.ranks.items() if rank.moves}
    found: dict[int, tuple[End | None, ...]] = {}
    for number, rank in job.ranks.items():
        before: Counter[tuple[str, str, int]] = Counter()
        own: list[End | None] = []
        for one in rank.waiting:
            end = None
            if one.kind in OPPOSITE and one.peer is not None:
                key = one.group.name, one.kind, one.peer
                ahead = _ahead(job, one, places)
                end = _end(job, one, before[key] + (ahead or 0), is_known=ahead is not None)
                before[key] += 1
            own.append(end)
        found[number] = tuple(own)
    return found


def _end(job: Job, one: Operation, at: int, *, is_known: bool) -> End | None:
    """Return the other end of an operation, of the place that it has among what is not done there."""
    peer = one.peer or 0
    waiting = [it for it in job.ranks[peer].waiting if it.group.name == one.group.name] if peer in job.ranks else []
    if any(it.peer is None and it.kind in PAIRED and it.kind != one.kind for it in waiting):
        return None  # a log does not say with whom
    theirs = [it for it in waiting if it.peer == one.rank and it.kind == OPPOSITE[one.kind]]
    is_known = is_known or peer not in job.ranks or not job.ranks[peer].recorded
    return End(peer, theirs[at] if 0 <= at < len(theirs) else None, at < 0, is_known)


def _places(rank: Rank) -> dict[tuple[str, int, int], int]:
    """Return where in what a rank did its collectives stand, by group and number; and the end of each batch."""
    return {(move.group, move.batch or move.number, move.order): at for at, move in enumerate(rank.moves)}


def _ahead(job: Job, one: Operation, places: Mapping[int, Mapping[tuple[str, int, int], int]]) -> int | None:
    """Return how many more such operations a rank has done than the other, since both were in one collective.

    A recorder keeps the newest entries alone. Where both have no such collective in theirs, ranks whose batches are all
    as large have been in step since the oldest batch of both; else nothing is known, and the answer is None.
    """
    peer, group = one.peer or 0, one.group.name
    mine, theirs = places.get(one.rank, {}), places.get(peer, {})
    since = next((key for key in mine if not key[2] and key in theirs), None) or _in_step(mine, theirs, group)
    if since is None:
        return None
    done = _done(job.ranks[one.rank].moves[mine[since] + 1 :], group, one.kind, peer)
    return done - _done(job.ranks[peer].moves[theirs[since] + 1 :], group, OPPOSITE[one.kind], one.rank)


def _in_step(
    mine: Collection[tuple[str, int, int]], theirs: Collection[tuple[str, int, int]], group: str
) -> tuple[str, int, int] | None:
    """Return the first batch that two ranks have in common, if each of these ends with the same operation of both."""
    ours, others = ({key[1]: key for key in keys if key[0] == group and key[2]} for keys in (mine, theirs))
    common = [key for batch, key in ours.items() if batch in others]
    is_equal = all(others[key[1]] == key for key in common)
    return common[0] if is_equal and any(key[1] != key[2] for key in common) and len(common) > 1 else None


def _done(moves: Sequence[Move], *what: object) -> int:
    return sum(move.done and move[:3] == what for move in moves)


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
    at: dict[object, set[int]] = defaultdict(set)
    for number, head in own.items():
        at[_place(head)].add(number)
    made: dict[object, tuple[frozenset[int], frozenset[int]]] = {}
    found = {}
    for number, head in own.items():
        place = _place(head)
        if head.operations[0].kind in PAIRED:
            ends = [end for _, end in head.pairs]
            met = {end.rank for end in ends if end.rank in own and end.operation in own[end.rank].operations}
            missing = {end.rank for end in ends if end.lacks or (end.operation and end.rank not in met)}
            found[number] = frozenset(missing), frozenset(met)
            continue
        if place not in made:
            members = frozenset(head.operations[0].group.members)
            past = {it for it in members - at[place] if it in job.ranks and _is_past(job.ranks[it], head.operations[0])}
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


def _place(head: Head) -> object:
    return *_key(head.operations[0]), head.operations[0].kind


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
