"""Which ranks have sent and received otherwise than their like: with another rank, or more or less often."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from unhang.diagnose.evidence import Job, Operation
from unhang.diagnose.pairs import PAIRED, Head

_IN_STEP, _SEVERAL = 3, 2
"""So many batches alike, of so many other ranks, show that the ranks of a group are in step."""
Batch = tuple[int, tuple[tuple[str, int], ...]]
"""How many operations a rank had issued with a batch, and what is in that: how far off the other ranks are."""


def unlike(job: Job, heads: Mapping[int, Head], number: int, description: str) -> int:
    """Return how many ranks did alike, and otherwise than one, in the groups of a description; 0 if it does as they do.

    These are the others of its own group if they are in step, as in a ring; else those of its place in other groups.
    """
    groups = [one.members for one in job.groups.values() if one.description == description]
    own = next((members for members in groups if number in members), ())
    mine = _batches(job, number, own)
    beside = {members[own.index(number)]: members for members in groups if len(members) == len(own) and members != own}
    for like in ({it: own for it in own if it != number}, beside):
        theirs = [_batches(job, it, members) for it, members in like.items() if it in job.ranks]
        common = [(batch, what) for at, batch in mine.items() if (what := {one[at] for one in theirs if at in one})]
        first = next((at for at, (batch, what) in enumerate(common) if batch not in what), None)
        if not theirs or any(len(what) > 1 for _, what in common):
            continue
        if like is not beside:
            is_other = first == 0 and common[0][0][1] not in {what for _, what in common[0][1]}
            shared = sum(sum(at in one for one in theirs) >= _SEVERAL for at in mine)
            if shared < _IN_STEP or is_other:
                continue
        if first is not None:
            return len(theirs)
        many = _apart(job, heads, number, like, description)
        return many if like is beside or many >= _SEVERAL else 0
    return 0


def _apart(job: Job, heads: Mapping[int, Head], number: int, like: Collection[int], description: str) -> int:
    """Return how many of its like did more or fewer sends and receives before a collective to which a rank has come.

    It is 0 where one did as many.
    """
    head = heads[number].operations[0] if number in heads else None
    if head is None or head.kind in PAIRED:
        return 0
    mine, has_come = _before(job, number, description, head)
    theirs = [_before(job, it, description, head) for it in like]
    if not mine or not has_come or (mine, True) in theirs:
        return 0
    return sum(often > mine or (bool(often) and came) for often, came in theirs)


def _before(job: Job, number: int, description: str, collective: Operation) -> tuple[int, bool]:
    """Return the number of a rank's last operation in a group before a collective, and whether it has come to that."""
    last = 0
    for one in job.ranks[number].moves if number in job.ranks else ():
        name = job.groups[one.group].description if one.group in job.groups else ""
        if one.kind and name == description:
            last = max(last, one.order)
        elif not one.kind and name == collective.group.description and one.number >= (collective.sequence or 0):
            is_known = one.number == collective.sequence  # else its record begins later
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
