"""From a job's evidence to answers: known hangs, else where its ranks have come apart, wait for one, or are at work."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from unhang.diagnose import desync, match
from unhang.diagnose.answer import ANSWERS, Answer, Place
from unhang.diagnose.desync import Meeting
from unhang.diagnose.evidence import Frame, Group, Job, Message, Operation, Rank
from unhang.diagnose.match import Match
from unhang.diagnose.signature import Chain, Signature

_MOST = 3
"""So many groups that have come apart are told of: in a large job, one defect stops many groups."""
_SHOWN = 2
"""So many ranks of a place are shown with their lines."""
_LINES = 3
_TORCH = "torch/distributed/"
_FOLLOWS = (
    "timed out", "timeout", "connection reset", "connection closed", "watchdog", "broken pipe", "dump signal",
    "exitcode  : -6", "fatal python error: aborted", "terminate called", "monitoredbarrier", "communicator was aborted",
    "keyboardinterrupt", "cancelled", "ncclremoteerror", "sigabrt",
)  # fmt: skip
"""What a rank says, in lower case, whose peers are late or gone."""
_DISAGREES = ("op.preamble", "detected mismatch between")
"""What gloo, or torch with TORCH_DISTRIBUTED_DEBUG=DETAIL, says where ranks disagree on a size or a collective."""
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
        places = _merged(place for one in same for place in _places_of_match(job, one))
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
            yield _issued(job, rank, scene.meeting.operations[rank], chain)
        else:
            yield _in_stack(job.ranks[rank], chain)
    for rank in scene.rest:
        if scene.meeting and rank in scene.meeting.operations:
            yield _issued(job, rank, scene.meeting.operations[rank], chain)
        else:
            yield _elsewhere(job.ranks[rank])
    for rank, message in one.errors:
        yield Place((rank,), "failing", (_line(message),))


def _apart(job: Job, meetings: Sequence[Meeting]) -> list[Answer]:
    """Return where ranks have come apart; else whom they wait for, or that nobody waits."""
    answers = [*_disagreements(meetings, job), *_histories(job, meetings)][:_MOST] or _said(job)
    if answers:
        return answers
    edges = desync.waits_for(job, meetings)
    if stuck := desync.circle(edges):
        groups = [one for one in meetings if stuck.intersection(one.waiting) and stuck.intersection(one.absent)]
        where = f" ({_label(groups[0].group)})" if len(groups) == 1 else ""
        places = _merged(_waits(job.ranks[rank]) for rank in sorted(stuck))
        return [Answer("desync", "", f"Ranks wait for each other in different collectives{where}.", places)]
    late = sorted({other for others in edges.values() for other in others if not edges.get(other)})
    # one with a stack is alive
    if failed := [
        rank for rank, one in job.ranks.items() if (not edges or rank in late) and _failures(one) and not one.stacks
    ]:
        places = _merged(Place((rank,), "failing", _failure_lines(job.ranks[rank])) for rank in failed)
        return [
            Answer("desync", "", "A rank has failed, and the others wait for it.", (*places, *_waiting_places(job)))
        ]
    seen = [rank for rank in late if rank in job.ranks]
    if seen and all(_call(job.ranks[rank]) for rank in seen):  # such as gloo's send and receive, which no dump has
        places = (*_merged(_elsewhere(job.ranks[rank]) for rank in seen), *_waiting_places(job))
        return [Answer("desync", "", "Ranks wait in different collectives.", places)]
    if seen:
        places = (*_merged(_elsewhere(job.ranks[rank]) for rank in seen), *_waiting_places(job))
        summary = "Nothing disagrees: some ranks have not come to the collective in which the others wait."
        return [Answer("slow", "", summary, places, _of_late(job, seen))]
    return _quiet(job, meetings)


def _said(job: Job) -> list[Answer]:
    """Return that a line says that ranks disagree, if one does."""
    lines = [
        (number, _line(one))
        for number, rank in job.ranks.items()
        for one in rank.messages
        if any(word in one.text.lower() for word in _DISAGREES)
    ]
    places = _merged(Place((number,), "failing", (line,)) for number, line in lines)
    return (
        [Answer("desync", "", "A log says that ranks disagree on a collective or its size.", places)] if lines else []
    )


def _quiet(job: Job, meetings: Sequence[Meeting]) -> list[Answer]:
    """Return what is to be said where no rank is known to be late."""
    places = _waiting_places(job)
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
        places = _merged(_elsewhere(rank) for rank in job.ranks.values())
        return [Answer("slow", "", "No rank waits in a collective.", places, ("py-spy on each rank",))]
    return [Answer("not-enough", "", "No file says where a rank waits.", (), ("dumps and stacks of all ranks",))]


def _of_stacks(job: Job) -> list[Answer]:
    """Return what stacks alone say: which ranks are in a collective."""
    calls = {rank: _call(one) for rank, one in job.ranks.items() if one.stacks}
    places = _merged(_in_stack(job.ranks[rank], ()) for rank in calls)
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
            places = [_issued(job, rank, operation, ()) for rank, operation in one.operations.items() if operation.kind]
            places += [_elsewhere(job.ranks[rank]) for rank in one.absent]
            summary = f"Ranks disagree on the {named} of collective {one.sequence} of {_label(one.group)}."
            yield Answer("desync", "", summary, _merged(places))


def _histories(job: Job, meetings: Sequence[Meeting]) -> Iterable[Answer]:
    """Tell of groups whose ranks have issued different collectives of which no more than that is kept."""
    told = {one.group.name for one in meetings if desync.differences(one.operations.values())}
    for one in sorted(desync.splits(job), key=lambda one: one.sequence):
        if one.group.name not in told:
            number = f"collective {one.sequence} of {_label(one.group)}"
            places = tuple(Place(side, f"one side of {number}", ()) for side in one.sides)
            yield Answer("desync", "", f"Ranks have issued different collectives as {number}.", places)


def _unseen(job: Job, meetings: Sequence[Meeting]) -> set[int]:
    """Return the ranks of which nothing is known, of those for which somebody may wait."""
    members = {rank for one in meetings if one.waiting for rank in one.group.members}
    return (members or desync.everybody(job)) - job.ranks.keys()


def _of_late(job: Job, late: Sequence[int]) -> tuple[str, ...]:
    without = [str(rank) for rank in late if not job.ranks[rank].stacks]
    return (f"py-spy on rank {', '.join(without[:8])}{', ...' if len(without) > 8 else ''}",) if without else ()


def _failures(rank: Rank) -> list[Message]:
    """Return the lines with which a rank fails by itself, and not since its peers are late or gone."""
    return [one for one in rank.messages if not any(word in one.text.lower() for word in (*_FOLLOWS, *_DISAGREES))]


# --- places


def _merged(places: Iterable[Place]) -> tuple[Place, ...]:
    """Return places with the ranks that do the same together; the lines are those of the first ones."""
    ranks: dict[str, list[int]] = defaultdict(list)
    lines: dict[str, list[str]] = defaultdict(list)
    for place in places:
        if len(ranks[place.doing]) < _SHOWN:
            lines[place.doing] += place.evidence
        ranks[place.doing] += place.ranks
    return tuple(
        Place(tuple(sorted({*same})), doing, tuple(dict.fromkeys(lines[doing]))) for doing, same in ranks.items()
    )


def _waiting_places(job: Job) -> tuple[Place, ...]:
    return _merged(_waits(rank) for rank in job.ranks.values() if rank.waiting)


def _waits(rank: Rank) -> Place:
    """Return where a rank waits: in the first of its operations."""
    return Place((rank.rank,), f"waiting in {_named(rank.waiting[0])}", _lines(rank, rank.waiting[0], ()))


def _elsewhere(rank: Rank) -> Place:
    """Return where a rank is that others wait for."""
    if rank.waiting:
        return _waits(rank)
    if rank.stacks:
        place = _in_stack(rank, ())
        return place._replace(evidence=(*place.evidence, *_failure_lines(rank)))
    last = [one for one in rank.last if one.kind]
    if not rank.recorded:
        return Place((rank.rank,), "in no collective that a file tells of", ())
    if not last:
        return Place((rank.rank,), "waiting in no collective, and none is recorded", ())
    return Place((rank.rank,), "waiting in no collective", (f"{last[-1].source}: last {_named(last[-1])}",))


def _issued(job: Job, rank: int, operation: Operation, chain: Chain) -> Place:
    verb = "past" if operation.done else "waiting in"
    return Place((rank,), f"{verb} {_named(operation)}", _lines(job.ranks[rank], operation, chain))


def _in_stack(rank: Rank, chain: Chain) -> Place:
    """Return where a rank is by its stacks: by the one with these frames, else by one in a collective."""
    stacks = sorted(rank.stacks, key=lambda one: (not match.has_frames(one.frames, chain), not _is_call(one.frames)))
    stack = stacks[0]
    frames = _shown(stack.frames, chain)
    call = next((frame.function for frame in stack.frames if _is_torch(frame)), "") if _is_call(stack.frames) else ""
    inner = frames[0].function if frames else "no frame of Python"
    doing = f"in {call}, called by {inner}" if call and call != inner else f"in {inner}"
    return Place((rank.rank,), doing, (f"{stack.source}: {_path(frames)}",))


def _lines(rank: Rank, operation: Operation, chain: Chain) -> tuple[str, ...]:
    """Return the entry of an operation, with its frames, else with those of the rank's stack."""
    frames = operation.frames
    lines = [f"{operation.source}: {_path(_shown(frames, chain))}" if frames else operation.source]
    if not frames and rank.stacks:
        lines += _in_stack(rank, chain).evidence
    return tuple(line for line in lines if line)


def _failure_lines(rank: Rank) -> tuple[str, ...]:
    return tuple(map(_line, _failures(rank)[:_LINES]))


def _line(message: Message) -> str:
    return f"{message.source}: {message.text}"


def _shown(frames: Sequence[Frame], chain: Chain) -> list[Frame]:
    """Return the frames of a signature, else the innermost ones outside of torch."""
    named = [
        frame for frame in frames if any(match.has_frames([frame], ((place,),)) for step in chain for place in step)
    ]
    outside = [frame for frame in frames if not _is_torch(frame)] or list(frames)
    return (named or outside)[:_LINES]


def _path(frames: Sequence[Frame]) -> str:
    return " < ".join(f"{frame.function} ({_short(frame.file)}:{frame.line})" for frame in frames)


def _short(file: str) -> str:
    """Return a path from its package on, else the end of it."""
    installed = re.search(r"(?:site|dist)-packages/(.+)", file)
    return installed[1] if installed else "/".join(file.split("/")[-3:])


def _is_torch(frame: Frame) -> bool:
    return "/torch/" in f"/{frame.file}"


def _is_call(frames: Sequence[Frame]) -> bool:
    """Return whether a stack is in a collective of torch."""
    return any(f"/{_TORCH}" in f"/{frame.file}" for frame in frames[:8])


def _call(rank: Rank) -> str:
    """Return the call of a collective in which a rank is by its stacks; empty if it is in none."""
    for stack in rank.stacks:
        if _is_call(stack.frames):
            return _path(_shown(stack.frames, ())[:1]) or "?"
    return ""


def _named(operation: Operation) -> str:
    """Return an operation in words: `all_reduce 12 of default_pg, [2] Float`."""
    number = "" if operation.sequence is None else f" {operation.sequence}"
    group = f" of {_label(operation.group)}" if operation.group.name or operation.group.description else ""
    if operation.inputs:
        sizes = ", ".join(str(list(one)) for one in operation.inputs[:2])
        size = (
            f", {sizes}{', ...' if len(operation.inputs) > 2 else ''} {operation.dtypes[0] if operation.dtypes else ''}"
        )
    else:
        size = "" if operation.elements is None else f", {operation.elements} elements"
    return f"{operation.kind}{number}{group}{size}".rstrip()


def _label(group: Group) -> str:
    return group.description or f"group {group.name}"
