"""From a job's evidence to answers: known hangs, else where its ranks have come apart, wait for one, or are at work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import starmap

from unhang.diagnose import desync, match, whereabouts
from unhang.diagnose.answer import ANSWERS, Answer, Place
from unhang.diagnose.desync import Meeting
from unhang.diagnose.evidence import Job
from unhang.diagnose.match import Match
from unhang.diagnose.signature import Signature

_MOST = 3
"""So many groups that have come apart are told of: in a large job, one defect stops many groups."""
_MISSING = {
    "groups": "the descriptions of the groups: dumps of torch 2.4 or newer",
    "operations": "which collective the ranks wait in: a dump of the flight recorder",
    "elements": "the sizes: a dump of the flight recorder",
    "dtypes": "the types of the tensors: a dump of the flight recorder",
    "first": "whether it is the first collective of its group",
    "waiting": "which ranks wait",
    "frames": "where in the source the ranks wait: py-spy, or dumps with frames",
    "differ": "what the other ranks have issued: their dumps",
    "others": "where in the source the other ranks are: py-spy, or dumps with frames",
    "outside": "where in the source the other ranks are: py-spy",
    "empty": "the sizes of what the other ranks issued last: their dumps",
    "circle": "what the other ranks wait in: their dumps",
    "alternating": "which ranks of the group wait: the dumps of all of them",
    "errors": "the line in the logs with which a rank fails",
}
"""What to look for, by the clause that is not known."""


def diagnose(job: Job, signatures: Iterable[Signature]) -> tuple[Answer, ...]:
    """Return what is known of a hung job, the best answer first; at least one."""
    job = desync.settled(job)
    meetings = desync.meetings(job)
    found = match.matches(job, meetings, signatures)
    known = [one for one in found if one.is_known]
    answers = _of_fixes(job, known or found)
    if not known:
        answers += _apart(job, meetings)
    return tuple(sorted(answers, key=lambda one: ANSWERS.index(one.answer)))


def _of_fixes(job: Job, found: Sequence[Match]) -> list[Answer]:
    """Return an answer for each fix, with all its places."""
    by_fix: dict[str, list[Match]] = {}
    for one in found:
        same = by_fix.setdefault(one.fix, [one])
        if one.hang is same[0].hang and one is not same[0]:
            same.append(one)
    answers = []
    for fix, same in by_fix.items():
        best = same[0]
        places = whereabouts.merged(place for one in same for place in _places_of_match(job, one))
        if best.is_known:
            answers.append(Answer("known", fix, best.hang.summary, places))
        else:
            answers.append(Answer("possible", fix, best.hang.summary, places, _lacks(best)))
    return answers


def _lacks(one: Match) -> tuple[str, ...]:
    """Return what would make it known, in the way that lacks least; else what the evidence leaves open."""
    if not one.hang.certain:
        return (one.hang.open,)
    unknown = [[name for name in names if not one.clauses[name]] for names in one.hang.certain]
    return tuple(_MISSING[name] for name in min(unknown, key=len))


def _places_of_match(job: Job, one: Match) -> Iterable[Place]:
    scene = one.scene
    chain = one.hang.frames
    for rank in scene.inside:
        if scene.meeting:
            yield whereabouts.issued(job.ranks[rank], scene.meeting.operations[rank], chain)
        else:
            yield whereabouts.in_stack(job.ranks[rank], chain)
    for rank in scene.rest:
        if scene.meeting and rank in scene.meeting.operations:
            yield whereabouts.issued(job.ranks[rank], scene.meeting.operations[rank], chain)
        else:
            yield whereabouts.elsewhere(job.ranks[rank])
    for rank, message in one.errors:
        yield whereabouts.failing(rank, [message])


def _apart(job: Job, meetings: Sequence[Meeting]) -> list[Answer]:
    """Return where ranks have come apart; else whom they wait for, or that nobody waits."""
    answers = [*_disagreements(meetings, job), *_histories(job, meetings)][:_MOST] or _said(job)
    if answers:
        return answers
    edges = desync.waits_for(job, meetings)
    if stuck := desync.circle(edges):
        groups = [one for one in meetings if stuck.intersection(one.waiting) and stuck.intersection(one.absent)]
        where = f" ({whereabouts.label(groups[0].group)})" if len(groups) == 1 else ""
        places = whereabouts.merged(whereabouts.waits(job.ranks[rank]) for rank in sorted(stuck))
        return [Answer("desync", "", f"Ranks wait for each other in different collectives{where}.", places)]
    waited = {other for others in edges.values() for other in others if not edges.get(other)}
    late = {number: job.ranks[number] for number in sorted(waited & job.ranks.keys())}
    suspects = late if edges else job.ranks
    # one with a stack is alive
    if failed := {
        number: lines for number, rank in suspects.items() if (lines := whereabouts.failures(rank)) and not rank.stacks
    }:
        places = whereabouts.merged([*starmap(whereabouts.failing, failed.items()), *whereabouts.of_waiting(job)])
        return [Answer("desync", "", "A rank has failed, and the others wait for it.", places)]
    if not late:
        return _quiet(job, meetings)
    places = whereabouts.merged([*map(whereabouts.elsewhere, late.values()), *whereabouts.of_waiting(job)])
    if all(map(whereabouts.call, late.values())):  # such as gloo's send and receive, which no dump has
        return [Answer("desync", "", "Ranks wait in different collectives.", places)]
    summary = "Nothing disagrees: some ranks have not come to the collective in which the others wait."
    return [Answer("slow", "", summary, places, _of_late(job, [*late]))]


def _said(job: Job) -> list[Answer]:
    """Return that a line says that ranks disagree, if one does."""
    lines = {number: found for number, rank in job.ranks.items() if (found := whereabouts.disagreements(rank))}
    places = whereabouts.merged(whereabouts.failing(number, found) for number, found in lines.items())
    summary = "A log says that ranks disagree on a collective or its size."
    return [Answer("desync", "", summary, places)] if lines else []


def _quiet(job: Job, meetings: Sequence[Meeting]) -> list[Answer]:
    """Return what is to be said where no rank is known to be late."""
    places = whereabouts.of_waiting(job)
    unseen = sorted(_unseen(job, meetings))
    if places and unseen:
        summary = "Ranks wait for others of which there is no dump."
        lacks = (f"dumps and stacks of rank {', '.join(map(str, unseen[:8]))}{', ...' if len(unseen) > 8 else ''}",)
        return [Answer("not-enough", "", summary, places, lacks)]
    if places:
        if any(one.recorded and one.waiting for one in job.ranks.values()):
            summary = "Ranks wait in collectives, and all that is known of these agrees."
        else:
            summary = "The logs say where ranks wait, and not what the others do."
        return [Answer("not-enough", "", summary, places, ("dumps and stacks of all ranks, taken at one time",))]
    if any(rank.stacks for rank in job.ranks.values()):
        return _of_stacks(job)
    if any(rank.recorded for rank in job.ranks.values()):
        places = whereabouts.merged(whereabouts.elsewhere(rank) for rank in job.ranks.values())
        return [Answer("slow", "", "No rank waits in a collective.", places, ("py-spy on each rank",))]
    return [Answer("not-enough", "", "No file says where a rank waits.", (), ("dumps and stacks of all ranks",))]


def _of_stacks(job: Job) -> list[Answer]:
    """Return what stacks alone say: which ranks are in a collective."""
    calls = {rank: whereabouts.call(one) for rank, one in job.ranks.items() if one.stacks}
    places = whereabouts.merged(whereabouts.in_stack(job.ranks[rank], ()) for rank in calls)
    free = [rank for rank, call in calls.items() if not call]
    if free:
        summary = "Some ranks are in no collective." if any(calls.values()) else "No rank is in a collective."
        return [Answer("slow", "", summary, places, _of_late(job, free))]
    if len(set(calls.values())) > 1:
        return [Answer("desync", "", "Ranks wait in different collectives.", places)]
    summary = "All ranks wait in the same call: what differs, only dumps of the flight recorder show."
    return [Answer("not-enough", "", summary, places, ("dumps of all ranks",))]


def _disagreements(meetings: Sequence[Meeting], job: Job) -> Iterable[Answer]:
    for one in sorted(meetings, key=lambda one: (one.sequence or 0, one.group.name)):
        differ = desync.differences(one.operations.values())
        if differ:
            what = {"operation": "kind", "size": "size", "dtype": "type"}
            named = " and ".join(what[name] for name in what if name in differ)
            places = [
                whereabouts.issued(job.ranks[rank], operation, ())
                for rank, operation in one.operations.items()
                if operation.kind
            ]
            places += [whereabouts.elsewhere(job.ranks[rank]) for rank in one.absent]
            summary = f"Ranks disagree on the {named} of collective {one.sequence} of {whereabouts.label(one.group)}."
            yield Answer("desync", "", summary, whereabouts.merged(places))


def _histories(job: Job, meetings: Sequence[Meeting]) -> Iterable[Answer]:
    """Tell of groups whose ranks have issued different collectives of which no more than that is kept."""
    told = {one.group.name for one in meetings if desync.differences(one.operations.values())}
    for one in sorted(desync.splits(job), key=lambda one: one.sequence):
        if one.group.name not in told:
            number = f"collective {one.sequence} of {whereabouts.label(one.group)}"
            places = tuple(Place(side, f"one side of {number}", ()) for side in one.sides)
            yield Answer("desync", "", f"Ranks have issued different collectives as {number}.", places)


def _unseen(job: Job, meetings: Sequence[Meeting]) -> set[int]:
    """Return the ranks of which nothing is known, of those for which somebody may wait."""
    members = {rank for one in meetings if one.waiting for rank in one.group.members}
    return (members or desync.everybody(job)) - job.ranks.keys()


def _of_late(job: Job, late: Sequence[int]) -> tuple[str, ...]:
    without = [str(rank) for rank in late if not job.ranks[rank].stacks]
    return (f"py-spy on rank {', '.join(without[:8])}{', ...' if len(without) > 8 else ''}",) if without else ()
