"""From a job's evidence to answers: known hangs, else where its ranks have come apart, wait for one, or are at work."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import starmap
from typing import NamedTuple

from unhang.diagnose import causes, desync, facts, match, suspects, whereabouts
from unhang.diagnose.answer import ANSWERS, Answer, Place
from unhang.diagnose.causes import Cause
from unhang.diagnose.evidence import Job, Rank
from unhang.diagnose.facts import Facts
from unhang.diagnose.match import Match
from unhang.diagnose.pairs import PAIRED
from unhang.diagnose.signature import Signature
from unhang.diagnose.suspects import Suspects

_SHOWN = 8
"""So many ranks are named of those of which something is missing."""
_MOST = 3
"""So many groups that have come apart are told of: in a large job, one defect stops many groups."""
_NOT_NEEDED = "how it can be this: in this environment, the fix is not needed, or its defect hangs in another way"
_MISSING = {
    "groups": "the descriptions of the groups: dumps of torch 2.4 or newer",
    "operations": "which collective the ranks wait in: a dump of the flight recorder",
    "elements": "the sizes: a dump of the flight recorder",
    "dtypes": "the types of the tensors: a dump of the flight recorder",
    "first": "whether it is the first collective of its group",
    "waiting": "which ranks wait",
    "frames": "where in the source the ranks wait: py-spy, or dumps with frames",
    "differ": "what the other ranks have issued: their dumps",
    "by_source": "what each rank of the group issued: dumps that list its members",
    "by_place": "which stage each rank is in: dumps that list the members of the groups",
    "reordered": "the sizes that come next: dumps of all operations",
    "others": "where in the source the other ranks are: py-spy, or dumps with frames",
    "outside": "where in the source the other ranks are: py-spy",
    "empty": "the sizes of what the other ranks issued last: their dumps",
    "ended": "what the other ranks wait in: their dumps and stacks",
    "goes_on": "what the other ranks wait in: their dumps",
    "alternating": "which ranks of the group wait: the dumps of all of them",
    "errors": "the line in the logs with which a rank fails",
    "parts": "what each rank of the group does, and which ranks these are: dumps and stacks of all of them",
}
"""What to look for, by the clause that is not known."""
_OF_COMMUNICATORS = ("what NCCL waits for: `py-spy dump --native`, or NCCL_DEBUG=INFO before the next run",)
_OF_DEVICES = {
    suspects.DEVICE: "Nothing disagrees: the device of some ranks has not done what that of their peers has.",
    suspects.TOGETHER: "Nothing disagrees: some ranks have all come to an operation, and none of them is done with it.",
}


class Diagnosis(NamedTuple):
    """What is known of a hung job."""

    facts: Facts
    suspects: Suspects
    answers: tuple[Answer, ...]
    """The best first; at least one."""
    open: tuple[Signature, ...] = ()
    """Of a log alone: the fixes that it does not exclude."""
    causes: tuple[Cause, ...] = ()
    """The best first."""


def diagnose(job: Job, signatures: Collection[Signature]) -> Diagnosis:
    """Return what is known of a hung job, given the signatures of the fixes."""
    found = facts.of(job)
    first = suspects.of(found)
    matches = match.matches(found, first, signatures)
    known = [one for one in matches if one.is_known]
    answers = _of_fixes(found.job, known or matches)
    if not known:
        answers += _apart(found, first)
    left = () if known else match.not_excluded(found, signatures)
    answers.sort(key=lambda one: ANSWERS.index(one.answer))
    return Diagnosis(found, first, tuple(answers), left, causes.of(found, first))


def without(found: Diagnosis, refuted: Collection[str]) -> Diagnosis:
    """Return a diagnosis in which the fixes that the environment refutes are possible at most."""
    answers = [
        one._replace(answer="possible", missing=(*one.missing, _NOT_NEEDED)) if one.fix in refuted else one
        for one in found.answers
    ]
    return found._replace(answers=tuple(sorted(answers, key=lambda one: ANSWERS.index(one.answer))))


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
            answers.append(Answer("known", fix, best.hang.summary, places, (), best.hang.elsewhere))
        else:
            answers.append(Answer("possible", fix, best.hang.summary, places, _lacks(best), best.hang.elsewhere))
    return answers


def _lacks(one: Match) -> tuple[str, ...]:
    """Return what would make it known, in the way that lacks least; else what the evidence leaves open."""
    if not one.hang.certain:
        return (*one.doubts, one.hang.open)
    ways = [(*names, "parts") if "frames" in names else names for names in one.hang.certain]
    unknown = [[name for name in names if not one.clauses[name]] for names in ways]
    lacks = [_MISSING[name] for name in min(unknown, key=len)]
    return (*one.doubts, *lacks) if one.doubts or lacks else ("a line that no other defect prints, or the stacks",)


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


def _apart(found: Facts, first: Suspects) -> list[Answer]:
    """Return where ranks have come apart; else whose device is behind, whom they wait for, or that nobody waits."""
    job = found.job
    if found.goes_on:
        places = whereabouts.merged(whereabouts.in_stack(rank, ()) for rank in job.ranks.values())
        return [Answer("slow", "", "Every rank has moved between its two stacks: the job goes on.", places)]
    answers = [*_disagreements(found), *_histories(found)][:_MOST] or _said(job)
    if answers:
        return answers
    if stuck := found.stuck:
        groups = [one for one in found.meetings if stuck.intersection(one.waiting) and stuck.intersection(one.absent)]
        where = f" ({whereabouts.label(groups[0].group)})" if len(groups) == 1 else ""
        places = whereabouts.merged(whereabouts.waits(job.ranks[rank]) for rank in sorted(stuck))
        return [Answer("desync", "", f"Ranks wait for each other in different collectives{where}.", places)]
    if found.errors:
        places = whereabouts.merged([*starmap(whereabouts.failing, found.errors.items()), *whereabouts.of_waiting(job)])
        return [Answer("desync", "", "A rank has failed, and the others wait for it.", places)]
    if first.rule in _OF_DEVICES:
        behind, summary = [*first.why], _OF_DEVICES[first.rule]
        places = whereabouts.merged(
            map(whereabouts.waits, (job.ranks[rank] for rank in behind if job.ranks[rank].waiting))
        )
        return [Answer("slow", "", summary, places, _of_late(job, behind))]
    waited = {other for others in found.waits_for.values() for other in others if not found.waits_for.get(other)}
    if waited and first.rule == suspects.HOST:
        waited = {*first.why}
    late = [number for number in sorted(waited) if number in job.ranks and not _may_have_come(found, number)]
    if not late:
        return _best(*_quiet(found), *_of_another_call(job, first))
    places = whereabouts.merged(
        [*(whereabouts.elsewhere(job.ranks[rank]) for rank in late), *whereabouts.of_waiting(job)]
    )
    # such as gloo's send and receive, which no dump has; or one that left out a call, and waits in a later one
    if all(_is_elsewhere(found, rank) for rank in late):
        return [Answer("desync", "", "Ranks wait in different collectives.", places)]
    summary = "Nothing disagrees: some ranks have not come to the collective in which the others wait."
    slow = Answer("slow", "", summary, places, _of_late(job, late))
    return _best(slow, *_of_stacks(found), *_of_another_call(job, first))


def _of_another_call(job: Job, first: Suspects) -> Iterable[Answer]:
    """Yield that a rank issued another call than its peers, if that is what makes it suspect."""
    if first.rule == suspects.DISAGREES:
        places = whereabouts.merged(whereabouts.of_waiting(job))
        yield Answer("desync", "", "A rank has issued another call than its peers.", places)


def _best(*answers: Answer) -> list[Answer]:
    return [min(answers, key=lambda one: ANSWERS.index(one.answer))]


def _is_elsewhere(found: Facts, number: int) -> bool:
    """Return whether a rank is known to be in another call than it should: a stage may send or receive meanwhile."""
    rank = found.job.ranks[number]
    if rank.waiting:
        return not any(one.kind in PAIRED for one in rank.waiting) and _waits_for_nobody(found, number)
    return bool(found.calls.get(number)) and (rank.recorded or not whereabouts.is_paired(rank))


def _may_have_come(found: Facts, number: int) -> bool:
    """Return whether a rank of which no dump tells may have sent what others receive, and waits in something else."""
    rank = found.job.ranks[number]
    is_paired = any(one.kind in PAIRED for other in found.job.ranks.values() for one in other.waiting)
    return is_paired and not rank.recorded and bool(rank.waiting or found.calls.get(number))


def _waits_for_nobody(found: Facts, number: int) -> bool:
    """Return whether all ranks for which a rank that waits may do so are known not to be late."""
    job = found.job
    members = [{*one.group.members} or desync.everybody(job) for one in job.ranks[number].waiting]
    known = {rank for rank, one in job.ranks.items() if one.recorded or one.waiting or found.calls.get(rank)}
    return all(map(known.issuperset, members))


def _said(job: Job) -> list[Answer]:
    """Return that a line says that ranks disagree, if one does."""
    lines = {number: found for number, rank in job.ranks.items() if (found := whereabouts.disagreements(rank))}
    places = whereabouts.merged(whereabouts.failing(number, found) for number, found in lines.items())
    summary = "A log says that ranks disagree on a collective or its size."
    return [Answer("desync", "", summary, places)] if lines else []


def _quiet(found: Facts) -> list[Answer]:
    """Return what is to be said where no rank is known to be late: the best of what dumps, logs and stacks tell."""
    told = [*_of_waiting(found), *_of_stacks(found), *_of_free(found)]
    nothing = Answer("not-enough", "", "No file says where a rank waits.", (), _of_all(found.job, "dumps", "stacks"))
    return _best(*told, nothing)


def _of_free(found: Facts) -> Iterable[Answer]:
    """Yield that ranks wait in nothing, by their dumps, if some do."""
    ranks = found.job.ranks.values()
    free = [rank for rank in ranks if rank.recorded and not rank.waiting and not found.calls.get(rank.rank)]
    if free and found.job.size is not None and not found.unseen:
        whose = "Some ranks wait in no collective." if len(free) < len(ranks) else "No rank waits in a collective."
        places = whereabouts.merged(map(whereabouts.elsewhere, ranks))
        yield Answer("slow", "", whose, places, ("py-spy on each rank",))


def _of_waiting(found: Facts) -> Iterable[Answer]:
    """Yield what those ranks show that wait by their dumps or logs, if some do."""
    job = found.job
    places = whereabouts.of_waiting(job)
    unseen = found.unseen
    if places and unseen:
        yield Answer("not-enough", "", "Ranks wait for others that left no dump.", places, _of_unseen(unseen))
    elif places:
        lacks = _of_all(job, "dumps", "stacks")
        heads = [rank.waiting[0] for rank in job.ranks.values() if rank.waiting]
        rooted = [f"{one.kind} {one.sequence}" for one in heads if one.kind in desync.ONE_SIDED]
        if not any(one.recorded and one.waiting for one in job.ranks.values()):
            summary = "The logs say where ranks wait, and not what the others do."
        elif len({(one.group.name, one.sequence, one.kind) for one in heads}) == 1:
            summary = "Ranks wait in collectives, and all that is known of these agrees."
        elif rooted:
            summary = f"Ranks wait in different collectives: they may name different roots in {rooted[0]}."
            lacks = ("the root that each rank names: no file has it",)
        else:
            summary = "Ranks wait in different collectives, and no file says which of these is wrong."
        yield Answer("not-enough", "", summary, places, lacks)


def _of_stacks(found: Facts) -> Iterable[Answer]:
    """Yield what stacks say, if there are some: which ranks are in a collective."""
    if not found.calls:
        return
    ranks, calls = found.job.ranks, found.calls
    places = whereabouts.merged(whereabouts.in_stack(ranks[rank], ()) for rank in calls)
    free = [number for number, rank in ranks.items() if (not calls[number] if number in calls else _is_free(rank))]
    if free:
        some = any(calls.values()) or any(rank.waiting for rank in ranks.values())
        whose = "No rank" if found.job.size == len(calls) else f"None of the {len(calls)} ranks that have stacks"
        summary = "Some ranks are in no collective." if some else f"{whose} is in a collective."
        yield Answer("slow", "", summary, places, _of_late(found.job, free))
    elif suspects.have_peers(found):
        what, lacks = "only dumps show", _of_all(found.job, "dumps")
        if any(whereabouts.is_of_gloo(rank) for rank in ranks.values()):
            what, lacks = (
                "gloo's dumps do not show",
                ("with whom each rank sends or receives: no dump of gloo's has it",),
            )
        summary = f"Ranks send and receive, as the stages of a pipeline do: whether they agree, {what}."
        yield Answer("not-enough", "", summary, places, lacks)
    elif len(set(calls.values())) > 1 and found.unseen:
        summary = "Ranks wait in different collectives, as they do where one is late to the first of these."
        yield Answer("not-enough", "", summary, places, _of_unseen(found.unseen))
    elif all(ranks[number].waiting for number in calls):
        return  # what they have issued says more than by which calls they came to it
    elif len(set(calls.values())) > 1:
        yield Answer("desync", "", "Ranks wait in different collectives.", places)
    elif len({*found.paths.values()}) > 1:
        yield Answer("desync", "", "Ranks wait in one collective, to which they came by different calls.", places)
    else:
        whose = "All ranks" if found.job.size == len(calls) else f"All {len(calls)} ranks that have stacks"
        alike = "The only stack is of a rank that waits" if len(calls) == 1 else f"{whose} wait in the same call"
        if found.unseen:
            summary, lacks = f"{alike}, and nothing came from the others.", _of_unseen(found.unseen)
        elif all(ranks[number].recorded for number in calls):
            why = "which their dumps do not have: these are older, or its group has no communicator yet"
            summary, lacks = f"{alike}, {why}.", _OF_COMMUNICATORS
        else:
            summary = f"{alike}: only dumps of the flight recorder show what differs."
            lacks = _of_all(found.job, "dumps")
        yield Answer("not-enough", "", summary, places, lacks)


def _of_all(job: Job, *kinds: str) -> tuple[str]:
    """Return which of these kinds of evidence to take of all ranks: those that are not at hand, or else all anew."""
    ranks = [job.ranks.get(number) for number in desync.everybody(job)] or [None]
    lacking = {
        "dumps": not all(one and one.recorded for one in ranks),
        "stacks": not all(one and one.stacks for one in ranks),
    }
    left = [kind for kind in kinds if lacking[kind]]
    return (f"{' and '.join(left or kinds)} of all ranks{'' if left else ' once more'}, taken at one time",)


def _of_unseen(unseen: Collection[int]) -> tuple[str]:
    return (f"dumps and stacks of rank {_some(sorted(unseen))}",)


def _is_free(rank: Rank) -> bool:
    """Return whether a rank waits in nothing by its dump. gloo's has neither send nor receive, so it does not tell."""
    return rank.recorded and not rank.waiting and any(count.device for count in rank.counts.values())


def _disagreements(found: Facts) -> Iterable[Answer]:
    ranks = found.job.ranks
    for one in sorted(found.meetings, key=lambda one: (one.sequence or 0, one.group.name)):
        if one.differ:
            what = {"operation": "kind", "size": "size", "dtype": "type"}
            named = " and ".join(what[name] for name in what if name in one.differ)
            places = [
                whereabouts.issued(ranks[rank], operation, ())
                for rank, operation in one.operations.items()
                if operation.kind
            ]
            places += [whereabouts.elsewhere(ranks[rank]) for rank in one.absent]
            summary = f"Ranks disagree on the {named} of collective {one.sequence} of {whereabouts.label(one.group)}."
            yield Answer("desync", "", summary, whereabouts.merged(places))


def _histories(found: Facts) -> Iterable[Answer]:
    """Tell of groups whose ranks have issued different collectives of which no more than that is kept."""
    told = {one.group.name for one in found.meetings if one.differ}
    for one in sorted(found.splits, key=lambda one: one.sequence):
        if one.group.name not in told:
            number = f"collective {one.sequence} of {whereabouts.label(one.group)}"
            places = tuple(Place(side, f"one side of {number}", ()) for side in one.sides)
            yield Answer("desync", "", f"Ranks have issued different collectives as {number}.", places)


def _of_late(job: Job, late: Sequence[int]) -> tuple[str, ...]:
    without = [rank for rank in late if not job.ranks[rank].stacks]
    return (f"py-spy on rank {_some(without)}",) if without else ()


def _some(numbers: Sequence[int]) -> str:
    return f"{', '.join(map(str, numbers[:_SHOWN]))}{', ...' if len(numbers) > _SHOWN else ''}"
