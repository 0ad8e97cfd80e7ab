"""Sends and receives that do not meet, and which ends did otherwise than their like."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence

from unhang.diagnose import desync, where
from unhang.diagnose.evidence import Job, Operation
from unhang.diagnose.facts import Facts
from unhang.diagnose.pairs import OPPOSITE, PAIRED, Head

_IN_STEP, _SEVERAL = 3, 2
"""So many batches alike, of so many other ranks, show that the ranks of a group are in step."""
Batch = tuple[int, tuple[tuple[str, int], ...]]
"""How many operations a rank had issued with a batch, and what is in that: how far off the other ranks are."""


def mismatched(facts: Facts) -> dict[int, str]:
    """Name the ends of sends and receives that meet in another size or type: such as did otherwise than their like.

    Else these are the ends of most such pairs, or those with the rarer size or type.
    """
    pairs = {
        (number, end.rank): (one, end.operation)
        for number, head in facts.heads.items()
        for one, end in head.pairs
        if one.kind == "send" and end.operation and end.rank in facts.met[number]
        if _load(one) != _load(end.operation)
    }
    why = {
        pair: f"in {where.label(one.group)}, rank {pair[0]} sends {_load(one)}, and rank {pair[1]} receives "
        f"{_load(other)}"
        for pair, (one, other) in pairs.items()
    }
    usual = Counter(
        (one.group.description, _load(one))
        for rank in facts.job.ranks.values()
        for one in (*rank.waiting, *rank.last)
        if pairs and one.kind in OPPOSITE
    )
    rarer: set[int] = set()
    for pair, ends in pairs.items():
        times = [usual[one.group.description, _load(one)] for one in ends]
        rarer.update(number for number, many in zip(pair, times) if many == min(times))
    return _of_pairs(why, _odd(facts, {pair: one for pair, (one, _) in pairs.items()}), _most_of(pairs), rarer)


def unmatched(facts: Facts) -> dict[int, str]:
    """Name the ends of sends and receives that nobody meets: such as did otherwise than their like.

    Else these are the ends of most such pairs, among ranks that wait for each other.
    """
    lacking = {
        (number, end.rank): (one, end)
        for number, head in facts.heads.items()
        for one, end in head.pairs
        if not end.done and end.rank not in facts.met[number]
    }
    why = {
        pair: f"in {where.label(one.group)}, rank {pair[0]} waits in a {one.kind} for rank {pair[1]}, which is "
        "elsewhere"
        for pair, (one, _) in lacking.items()
    }
    # who is in another send or receive may come to it yet
    past = {pair: lacking[pair][0] for pair in lacking if pair[1] in facts.heads and not facts.heads[pair[1]].pairs}
    found: dict[int, str] = {}
    for core in facts.cycles:
        within = {pair: one for pair, (one, _) in lacking.items() if core.issuperset(pair)}
        known = {pair: one for pair, one in within.items() if lacking[pair][1].is_known}
        pairs = known or within
        pairs = {pair: one for pair, one in pairs.items() if pair in past} or pairs
        is_of_one = len({other for _, other in pairs}) == 1  # all others only wait for it
        most = _most_of(pairs) if known or is_of_one else set()
        found.update(_of_pairs({pair: why[pair] for pair in pairs}, _odd(facts, pairs), most))
    return found


def _odd(facts: Facts, pairs: Mapping[tuple[int, int], Operation]) -> dict[int, int]:
    """Return the ends that did otherwise than their like, and how many these are."""
    names = {number: one.group.description for pair, one in pairs.items() for number in pair}
    return unlike(facts.job, facts.heads, names)


def _of_pairs(why: dict[tuple[int, int], str], odd: Mapping[int, int], *choices: set[int]) -> dict[int, str]:
    """Return the ends that are odd, or the next choice that is some of the ends and not all; else all of them."""
    ends = {number: why[pair] for pair in reversed(why) for number in pair}
    named = next((choice for choice in ({*odd}, *choices) if choice and choice != ends.keys()), ends.keys())
    return {
        number: (f"sent and received otherwise than {odd[number]} ranks of its like: " if number in odd else "")
        + ends[number]
        for number in named
    }


def _most_of(pairs: Iterable[tuple[int, int]]) -> set[int]:
    times = Counter(number for pair in pairs for number in pair)
    return {number for number, many in times.items() if many == max(times.values())}


def _load(operation: Operation) -> str:
    return f"{desync.elements(operation)} {', '.join(operation.dtypes or ())}".rstrip()


def unlike(job: Job, heads: Mapping[int, Head], names: Mapping[int, str]) -> dict[int, int]:
    """Return how many ranks did alike, and otherwise than each of some ranks, in the groups that its description names.

    A rank that does as they do is left out.
    """
    groups = {description: _Groups(job, description) for description in {*names.values()}}
    found = {number: groups[name].unlike(number, heads.get(number)) for number, name in names.items()}
    return {number: many for number, many in found.items() if many}


class _Groups:
    """The groups of a description. What a rank did in them is looked at once, however many are compared with it."""

    def __init__(self, job: Job, description: str) -> None:
        self._job, self._description = job, description
        self._members: dict[int, tuple[int, ...]] = {}
        self._alike: dict[Hashable, list[int]] = defaultdict(list)
        self._seen: dict[Hashable, dict[int, Counter[Batch]]] = {}
        self._before: dict[tuple[int, str, int | None], tuple[int, bool]] = {}
        for members in dict.fromkeys(one.members for one in job.groups.values() if one.description == description):
            for number in job.ranks.keys() & members:
                if self._members.setdefault(number, members) is members:
                    for like in self._likes(number):
                        self._alike[like].append(number)

    def _likes(self, number: int) -> tuple[Hashable, ...]:
        """Return what a rank has in common with the others of its group, and with those of its place in others."""
        members = self._members.get(number, ())
        return (members, (len(members), "ranks", members.index(number))) if members else ()

    def unlike(self, number: int, head: Head | None) -> int:
        """Return how many ranks did alike, and otherwise than one; 0 if it does as they do.

        These are the others of its group if they are in step, as in a ring; else those of its place in other groups.
        """
        mine = _batches(self._job, number, self._members.get(number, ()))
        for is_own, like in zip((True, False), self._likes(number)):
            others, theirs = [it for it in self._alike[like] if it != number], self._batches(like)
            common = [(batch, what) for at, batch in mine.items() if (what := theirs[at] - Counter([batch]))]
            first = next((at for at, (batch, what) in enumerate(common) if batch not in what), None)
            if not others or any(len(what) > 1 for _, what in common):
                continue
            if is_own:
                is_other = first == 0 and common[0][0][1] not in {what for _, what in common[0][1]}
                shared = sum(what.total() >= _SEVERAL for _, what in common)
                if shared < _IN_STEP or is_other:
                    continue
            if first is not None:
                return len(others)
            many = self._apart(number, others, head)
            return many if not is_own or many >= _SEVERAL else 0
        return 0

    def _batches(self, like: Hashable) -> dict[int, Counter[Batch]]:
        """Return how often each batch, by its number, is among what these ranks did."""
        if like not in self._seen:
            seen = self._seen[like] = defaultdict(Counter)
            for number in self._alike[like]:
                for at, batch in _batches(self._job, number, self._members[number]).items():
                    seen[at][batch] += 1
        return self._seen[like]

    def _apart(self, number: int, others: Iterable[int], head: Head | None) -> int:
        """Return how many of its like did more or fewer sends and receives before a collective to which a rank has
        come; 0 where one did as many.
        """
        collective = head.operations[0] if head else None
        if collective is None or collective.kind in PAIRED:
            return 0
        mine, has_come = self._sent(number, collective)
        theirs = [self._sent(it, collective) for it in others]
        if not mine or not has_come or (mine, True) in theirs:
            return 0
        return sum(often > mine or (bool(often) and came) for often, came in theirs)

    def _sent(self, number: int, collective: Operation) -> tuple[int, bool]:
        """Return the number of a rank's last operation here before a collective, and whether it has come to that."""
        key = number, collective.group.description, collective.sequence
        if key not in self._before:
            self._before[key] = self._looked_up(*key)
        return self._before[key]

    def _looked_up(self, rank: int, description: str, sequence: int | None) -> tuple[int, bool]:
        last = 0
        for one in self._job.ranks[rank].moves:
            name = self._job.groups[one.group].description if one.group in self._job.groups else ""
            if one.kind and name == self._description:
                last = max(last, one.order)
            elif not one.kind and name == description and one.number >= (sequence or 0):
                is_known = one.number == sequence  # else its record begins later
                return (last, True) if is_known else (0, False)
        return last, False


def _batches(job: Job, number: int, members: Sequence[int]) -> dict[int, Batch]:
    """Return the batches of a rank in a group, by number. Of the oldest one, a recorder may have lost a part."""
    found: dict[int, list[tuple[str, int]]] = defaultdict(list)
    orders = {}
    moves = job.ranks[number].moves
    for one in moves:
        if one.kind and one.number in members and one.group in job.groups:
            found[one.batch].append((one.kind, (members.index(one.number) - members.index(number)) % len(members)))
            orders[one.batch] = one.order
    if found and moves[0].group:
        del found[min(found)]
    return {batch: (orders[batch], tuple(sorted(whats))) for batch, whats in found.items()}
