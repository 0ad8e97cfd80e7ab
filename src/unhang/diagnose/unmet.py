"""Sends and receives that do not meet, and which ends did otherwise than their like."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import cast

from unhang.diagnose import desync, where
from unhang.diagnose.evidence import Job, Operation
from unhang.diagnose.facts import Facts
from unhang.diagnose.pairs import OPPOSITE, PAIRED, Head

_IN_STEP, _SEVERAL, _ENOUGH = 3, 2, 64
"""So many operations alike show that two ranks are of one kind; so many such ranks of its own group, that one is odd; and
so many are asked.
"""
_Place = tuple[str, int]
"""A collective, by its group's description and number; or an operation between two ranks, by its number alone."""


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
    found = {}
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


def _done(job: Job, number: int, description: str, members: Sequence[int]) -> dict[_Place, object]:
    """Return what a rank did in a group: each operation, and how many there were before each collective."""
    found: dict[_Place, object] = {}
    last = 0
    for one in job.ranks[number].moves:
        name = job.groups[one.group].description if one.group in job.groups else ""
        if not one.kind and last:
            found[name, one.number] = last
        elif one.kind and name == description and one.number in members:
            last = one.order
            found["", last] = one.kind, (members.index(one.number) - members.index(number)) % len(members)
    return found


def _began_alike(mine: Mapping[_Place, object], others: Mapping[_Place, object]) -> bool:
    """Return whether two ranks are of one kind: their first operations that the records of both have are alike."""
    common = [*islice((at for at in mine if at in others and not at[0]), _IN_STEP)]
    return len(common) == _IN_STEP and all(mine[at] == others[at] for at in common)


def _otherwise(mine: Mapping[_Place, object], others: Sequence[Mapping[_Place, object]], head: Head | None) -> int:
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
