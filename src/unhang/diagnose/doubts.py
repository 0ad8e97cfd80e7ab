"""What speaks against any known hang: errors that it does not name, a stuck device, a rank held up."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from unhang.diagnose import desync, whereabouts
from unhang.diagnose.desync import Meeting
from unhang.diagnose.evidence import Frame, Job, Rank
from unhang.diagnose.facts import Facts
from unhang.diagnose.pairs import PAIRED
from unhang.diagnose.scenes import SHIMS, Scene, is_empty, is_group, is_issued_in, is_to_be_made, may_wait_in
from unhang.diagnose.signature import Chain, Hang, has_frames, is_of_framework, is_of_user, may_be_in
from unhang.diagnose.suspects import DEVICE, TOGETHER, Suspects


def doubts_of(
    facts: Facts, suspects: Suspects, hang: Hang, scene: Scene, named: Collection[str], failed: Collection[int]
) -> Iterator[str]:
    """Yield what speaks against any known hang: errors that it does not name, a stuck device, a rank held up."""
    yield from _failures(facts, hang, named)
    ranks = facts.job.ranks
    if hang.certain or not is_to_be_made(facts.job, hang, scene):
        yield from (f"rank {number} has a dump and {what} of two times" for number, what in facts.mixed.items())
    if {*hang.differ} & {"size", "dtype"} and len(_ways(facts.job, hang, scene)) > 1:
        yield "these ranks came to the function by different calls"
    if not _has_waiting(facts, hang, failed):
        yield "no rank waits in what its peers would wait in"
    if suspects.rule in (DEVICE, TOGETHER):
        yield from (f"rank {number} {why}" for number, why in suspects.why.items())
    for number in sorted(failed):
        if any(one.kind not in PAIRED and not may_wait_in(hang, one) for one in ranks[number].waiting):
            yield f"rank {number} waits in another call than the one in which it would have failed"
    for number in sorted(ranks.keys() & (scene.peers or ranks)):
        if ranks[number].process:
            yield f"rank {number}: its process is {ranks[number].process}"
    for one in facts.meetings:
        if one.differ and _is_beside(hang, scene, one):
            yield f"ranks disagree in {whereabouts.label(one.group)} as well"
    yield from _by_other_code(facts, hang, scene)
    for number in scene.inside if hang.waiting else ():
        if caller := _called_back(ranks[number], hang.frames):
            yield f"rank {number} came to the function by a user's code: {_at(caller)}"
    for number in scene.rest if hang.before else ():
        if caller := next((_by_user(one.frames) for one in ranks[number].waiting[:1]), None):
            yield f"rank {number} waits in a call of a user's code: {_at(caller)}"
    for number in sorted(ranks.keys() - failed) if failed else scene.rest:
        rank = ranks[number]
        if rank.stacks and not rank.waiting and not facts.calls[number] and not whereabouts.is_done(rank):
            if whereabouts.is_idle(rank):
                yield f"rank {number} waits for its next call: only its driver knows whether one failed"
            else:
                yield f"rank {number} is held up {whereabouts.in_stack(rank, ()).doing}"
    if scene.meeting is None and not all(facts.calls.get(number) for number in scene.inside):
        yield "whether these ranks wait: no stack of theirs is in a collective"


def _failures(facts: Facts, hang: Hang, named: Collection[str]) -> Iterator[str]:
    """Yield the first error of each rank, and of the others, that no hang of the fix names."""
    places = (*hang.frames, *hang.others)
    for who, messages in (*facts.errors.items(), (None, facts.strangers)):
        rank = "a process of unknown rank" if who is None else f"rank {who}"
        yield from [f"{rank} failed by itself: {one.text}" for one in messages if one.text not in named][:1]
    for who, messages in facts.caught.items():
        others = (one for one in messages if one.text not in named and may_be_in(one.frames, places))
        yield from (f"rank {who} failed, and went on: {one.text}" for one in others)


def _has_waiting(facts: Facts, hang: Hang, failed: Collection[int]) -> bool:
    """Return whether some rank may wait where the peers of the one that failed would; of which, a dump may tell."""
    groups = [one for one in facts.job.groups.values() if hang.groups and is_group(one, hang.groups)]
    peers = {number for one in groups if not {*failed}.isdisjoint(one.members) for number in one.members} - {*failed}
    of_peers = [one for number in sorted(peers & facts.job.ranks.keys()) for one in facts.job.ranks[number].waiting]
    waiting = of_peers or (() if facts.unseen else facts.waiting)
    return not (hang.groups and waiting) or any(may_wait_in(hang, one) for one in waiting)


def _ways(job: Job, hang: Hang, scene: Scene) -> set[tuple[tuple[str, str], ...]]:
    """Return the calls by which ranks are known to have come to the hang's function."""
    found = set()
    for rank in scene.inside:
        issued = [scene.meeting.operations[rank].frames] if scene.meeting else []
        for frames in (*issued, *(one.frames for one in job.ranks[rank].stacks if one.idle is not None)):
            if has_frames(frames, hang.frames):
                first = next(at for at, frame in enumerate(frames) if may_be_in([frame], hang.frames))
                path = (whereabouts.alike(frame)[:2] for frame in frames[first:] if not whereabouts.is_torch(frame))
                found.add(tuple(path))
    return found


def _by_other_code(facts: Facts, hang: Hang, scene: Scene) -> Iterator[str]:
    """Yield which of the others wait in what the framework issued on their peers, and a user's code on them."""
    for meeting in facts.meetings if scene.meeting else ():
        if meeting is scene.meeting or meeting.operations.keys().isdisjoint(scene.rest):
            continue
        issued = {rank: one for rank, one in meeting.operations.items() if one.frames}
        foreign = {rank for rank, one in issued.items() if not is_issued_in(one.frames, hang.frames)}
        for number in sorted(foreign & {*scene.rest}) if foreign != issued.keys() else ():
            label = whereabouts.label(meeting.group)
            yield f"rank {number} came to {meeting.sequence} of {label} by other code than its peers"


def _by_user(frames: Sequence[Frame]) -> Frame | None:
    """Return the frame that issued an operation, if it is of a user's code."""
    own = whereabouts.issuer(frames)
    return own if own and SHIMS not in own.file and is_of_user(own) else None


def _at(frame: Frame) -> str:
    return f"{frame.function} ({frame.file}:{frame.line})"


def _called_back(rank: Rank, chain: Chain) -> Frame | None:
    """Return the frame of a user's code, called by a framework, by which a rank came to these functions."""
    for frames in [*(one.frames for one in rank.waiting[:1]), *(one.frames for one in rank.stacks)]:
        at = next((at for at in range(len(frames)) if has_frames(frames[: at + 1], chain)), len(frames))
        for number, frame in enumerate(frames[at:], at):
            if is_of_user(frame) and any(is_of_framework(one) for one in frames[number + 1 :]):
                return frame
    return None


def _is_beside(hang: Hang, scene: Scene, meeting: Meeting) -> bool:
    """Return whether ranks that disagree do so as the hang does not have it: those inside too, or the others."""
    if scene.meeting is None and hang.differ == ("missing",):  # who fails for want of rows has issued none
        return not any(map(is_empty, meeting.operations.values()))
    named = {*hang.differ} - {"size" if hang.empty else ""}  # where the others are empty, those inside are alike
    if not hang.groups or not is_group(meeting.group, hang.groups):
        return True
    inside, rest = (
        desync.differences(meeting.operations[rank] for rank in side if rank in meeting.operations)
        for side in (scene.inside, scene.rest)
    )
    return bool(rest or inside - named)
