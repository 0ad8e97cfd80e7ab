"""What a job's files come to, computed once: everything that answers reads this."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from unhang.diagnose import collectives, pairs, statements, where
from unhang.diagnose.collectives import Meeting
from unhang.diagnose.evidence import GONE, Count, Job, Message
from unhang.diagnose.pairs import Head


class Facts(NamedTuple):
    """What is known of a hung job."""

    job: Job  # without the operations that a later one shows to be done
    counts: Mapping[str, Mapping[int, Count]]  # by group and rank, for the groups whose ranks count alike
    meetings: tuple[Meeting, ...]
    waits_for: Mapping[int, frozenset[int]]  # whom each rank waits for
    heads: Mapping[int, Head]  # by rank with a dump of its device: what that is to do first
    met: Mapping[int, frozenset[int]]  # by rank: who has come to that, and is to do it first, too
    missing: Mapping[int, frozenset[int]]  # by rank: whom it waits for in that
    roots: tuple[frozenset[int], ...]  # ranks that wait for each other alone in what they do first; or one alone
    cycles: tuple[frozenset[int], ...]  # those of these that are several, all of which wait in something
    errors: Mapping[int, tuple[Message, ...]]  # what each rank failed with by itself, and did not survive
    caught: Mapping[int, tuple[Message, ...]]  # what it failed with, and went on to wait
    strangers: tuple[Message, ...]  # what processes of unknown rank failed with by themselves
    calls: Mapping[int, str]  # by rank with a stack: the call of a collective in which it is; empty if it is in none
    paths: Mapping[int, tuple[tuple[str, str, int], ...]]  # by rank: its whole stack; beside such, no traceback
    as_waiting: frozenset[int]  # ranks whose whole stack is that of another rank that is known to wait
    is_over: bool  # whether the job has ended, or logs say that ranks gave up or failed, and no stack shows one alive
    unseen: frozenset[int]  # ranks of which nothing came, of those for which somebody may wait
    goes_on: bool  # whether every rank has moved between two stacks, so that the job does not hang
    has_ended: bool  # whether every process that was seen is gone


def of(job: Job) -> Facts:
    """Return the facts of a job."""
    job = collectives.settled(job)
    meetings = collectives.meetings(job)
    ends = pairs.ends(job)
    heads = pairs.heads(job, ends)
    meet = pairs.meet(job, heads)
    missing = {number: others for number, (others, _) in meet.items()}
    waits_for = {rank: frozenset(others) for rank, others in collectives.waits_for(job, meetings, ends).items()}
    calls = {number: where.call(rank) for number, rank in job.ranks.items() if rank.stacks}
    spied = {number for number in calls if any(one.idle is not None for one in job.ranks[number].stacks)}
    awaited = {rank for one in meetings if one.waiting for rank in one.group.members}
    awaited |= {one.peer for rank in job.ranks.values() for one in rank.waiting if one.peer is not None}
    lacking = (awaited or collectives.everybody(job)) - job.ranks.keys()
    unseen = frozenset() if job.names else frozenset(lacking)  # each of the named may be one of them
    moving = bool(job.ranks) and all(where.moved(rank) and not rank.process for rank in job.ranks.values())
    has_ended = bool(job.ranks) and not job.running and all(rank.process == GONE for rank in job.ranks.values())
    roots = tuple(pairs.sinks({**waits_for, **missing}))
    waits = {number for number, rank in job.ranks.items() if rank.waiting}
    whole = {number: (where.main(job.ranks[number]).idle, where.path_to(job.ranks[number])) for number in calls}
    known = {stack for number, stack in whole.items() if number in waits}
    failures = {number: lines for number, rank in job.ranks.items() if (lines := tuple(where.failures(rank)))}
    together = _together(job)
    went_on = {
        number
        for number, lines in failures.items()
        if (all(one.survived for one in lines) and where.is_waiting(calls, job.ranks[number]))
        or (
            not any(one.uncaught for one in lines)
            and (calls.get(number) or (number in together and not where.has_ended(job.ranks[number], lines)))
        )
    }
    return Facts(
        job,
        _counts(job),
        meetings,
        waits_for,
        heads,
        {number: met for number, (_, met) in meet.items()},
        missing,
        roots,
        tuple(root for root in roots if len(root) > 1 and root <= waits),
        {
            number: tuple(one for one in lines if not one.survived) or lines
            for number, lines in failures.items()
            if number not in went_on
        },
        {number: failures[number] for number in sorted(went_on)},
        _strangers(job),
        calls,
        {number: where.path_to(job.ranks[number]) for number in sorted(spied or calls)},
        frozenset(number for number in whole.keys() - waits if whole[number] in known),
        has_ended
        or (not calls and any(rank.messages or (rank.waiting and not rank.recorded) for rank in job.ranks.values())),
        unseen,
        moving and not unseen,
        has_ended,
    )


def _strangers(job: Job) -> tuple[Message, ...]:
    """Return the errors of processes of unknown rank, but those below a line of their file that blames another."""
    first = dict(map(statements.place, reversed(statements.blamed(job.statements))))
    told = [(one, *statements.place(one)) for one in where.failures_of_strangers(job.strangers)]
    return tuple(one for one, file, line in told if line <= first.get(file, line))


def _counts(job: Job) -> dict[str, dict[int, Count]]:
    counts: dict[str, dict[int, Count]] = defaultdict(dict)
    for number, rank in job.ranks.items():
        for group, count in rank.counts.items():
            counts[group][number] = count
    paired = {one.group.name for rank in job.ranks.values() for one in rank.waiting if one.kind in pairs.PAIRED}
    return {
        group: ranks
        for group, ranks in counts.items()
        if group not in paired and all(count.shared for count in ranks.values())
    }


def _together(job: Job) -> set[int]:
    """Return the ranks that wait, where all that wait have come to one collective: none of these lacks there."""
    waiting = {number: rank.waiting for number, rank in job.ranks.items() if rank.waiting}
    places = {
        (one.group.description or one.group.name, one.sequence, one.kind) for ones in waiting.values() for one in ones
    }
    is_one = len(places) == 1 and all(name and kind not in pairs.PAIRED for name, _, kind in places)
    return {*waiting} if is_one and len(waiting) > 1 else set()
