"""How far the evidence of a job meets a signature. Each clause of it is true, false or not known."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache, partial
from typing import NamedTuple

from unhang.diagnose import desync, whereabouts
from unhang.diagnose.desync import Meeting
from unhang.diagnose.evidence import Frame, Group, Job, Message, Operation, Rank
from unhang.diagnose.facts import Facts
from unhang.diagnose.pairs import PAIRED
from unhang.diagnose.signature import (
    Chain,
    Error,
    Hang,
    Signature,
    has_frames,
    is_of_framework,
    is_of_part,
    is_of_user,
    may_be_in,
    may_be_of,
)
from unhang.diagnose.suspects import DEVICE, HOST, TOGETHER, Suspects

_OF_ISSUED = ("elements", "dtypes", "first", "met", "again", "by_place", "by_source", "alternating")
"""The clauses that stacks tell nothing of."""
_LOGGER = "torch/distributed/c10d_logger.py"
"""What stands around each of torch's collectives; in between may be a decorator's frame."""
_SHIMS = "unhang/prove/"
"""What stands for torch, or for the rest of a framework, where we record hangs."""


class Scene(NamedTuple):
    """Where some ranks are together: in a collective, or in the same functions by their stacks."""

    inside: tuple[int, ...]
    """The ranks that are there, and wait."""
    meeting: Meeting | None
    """The collective; None if only stacks tell of it."""
    rest: tuple[int, ...]
    """The ranks that issued another operation, are past it, or have not come to it."""
    peers: frozenset[int] | None
    """All ranks that have a part in it, also those of which nothing came; None if no file says which these are."""


class Match(NamedTuple):
    """A hang that nothing contradicts, and for which something speaks."""

    fix: str
    hang: Hang
    scene: Scene
    clauses: Mapping[str, bool | None]
    """Those that the signature has, by their key in the manifest."""
    errors: tuple[tuple[int, Message], ...]
    """The lines that it names, with their ranks."""
    doubts: tuple[str, ...]
    """What makes it possible at most, whatever speaks for it."""
    is_known: bool
    """Whether the evidence leaves no other reading."""


def matches(facts: Facts, suspects: Suspects, signatures: Iterable[Signature]) -> tuple[Match, ...]:
    """Return what matches, for each scene: the certain ones first, and those of which most is shown.

    Of two alike, the one is first whose signature can be certain: it is the more specific one.
    """
    found = []
    for signature in signatures:
        by_hang = [_errors(facts, hang) for hang in signature.hangs]
        named = {message.text for errors in by_hang for _, message, _ in errors}
        named |= {one.text for one in facts.strangers for hang in signature.hangs if _names(hang, one)}
        for hang, errors in zip(signature.hangs, by_hang):
            lines = tuple((number, message) for number, message, _ in errors)
            refuted = set[int]()
            come = cache(partial(_come, facts.job, hang))  # for there may be a scene in each group of a large job
            for scene in _scenes(facts.job, facts.meetings, hang, failed=bool(errors)):
                clauses = _clauses(facts, hang, scene, errors, come)
                if scene.meeting and any(clauses.get(name) is False for name in _OF_ISSUED):
                    refuted.update(scene.inside)
                if scene.meeting is None and not refuted.isdisjoint(scene.inside):
                    continue  # what they issued says more than where they are
                only = any(error.only for *_, error in errors)
                doubts = tuple(_doubts(facts, suspects, hang, scene, named, {number for number, _ in lines}))
                if facts.errors and clauses.get("differ", True) is None and not errors:
                    continue  # who failed has not come, and nothing shows that the others differ
                shown = clauses.get("frames") is None and _is_seen(facts.job, hang, scene)
                told = {**clauses, "frames": True} if shown else clauses
                if False not in clauses.values() and _speaks(hang, told, is_doubted=bool(doubts)):
                    ways = (names for names in hang.certain if _shown(names, clauses, only=only))
                    certain = not doubts and any(clauses["parts"] or "frames" not in names for names in ways)
                    found.append(Match(signature.fix, hang, scene, clauses, lines, doubts, certain))
    return tuple(sorted((_beside_late(facts, suspects, one, found) for one in found), key=_order))


def _beside_late(facts: Facts, suspects: Suspects, match: Match, found: Iterable[Match]) -> Match:
    """Return a match, in doubt where a rank is late that has no part in any of its fix: the hang may begin there."""
    own = {rank for one in found if one.fix == match.fix for rank in (*one.scene.inside, *one.scene.rest)}
    late = {number: why for number, why in suspects.why.items() if number not in own and suspects.rule == HOST}
    if not late or not own:
        return match
    doubts = tuple(f"rank {number} {why}" for number, why in late.items() if number in facts.job.ranks)
    return match._replace(doubts=(*match.doubts, *doubts), is_known=match.is_known and not doubts)


def not_excluded(facts: Facts, signatures: Iterable[Signature]) -> tuple[Signature, ...]:
    """Return the fixes left open by the operations in which ranks wait by their logs, where there is nothing else.

    Each has the hangs that are left of it.
    """
    ranks = facts.job.ranks.values()
    if facts.errors or facts.strangers or any(rank.recorded or rank.stacks for rank in ranks):
        return ()
    left = (
        one._replace(hangs=tuple(it for it in one.hangs if any(_may_be(it, at) for at in facts.waiting)))
        for one in signatures
    )
    return tuple(one for one in left if one.hangs)


def _may_be(hang: Hang, operation: Operation) -> bool:
    """Return whether the ranks of a hang may wait in an operation of this group, kind and size."""
    size = desync.elements(operation)
    return (
        bool(hang.groups or hang.operations)
        and (not hang.groups or _is_group(operation.group, hang.groups) is not False)
        and (not hang.operations or operation.kind in hang.operations)
        and (hang.elements is None or size is None or hang.elements[0] <= size <= hang.elements[1])
    )


def _order(match: Match) -> tuple[bool, bool, bool, int]:
    shown = match.clauses.get("frames") or match.clauses.get("errors")
    return not match.is_known, not shown, not match.hang.certain, -sum(map(bool, match.clauses.values()))


def _shown(names: Sequence[str], clauses: Mapping[str, bool | None], *, only: bool) -> bool:
    """Return whether these clauses are met, a frame of the function or a line of this very defect among them."""
    return all(clauses[name] for name in names) and ("frames" in names or only)


def _speaks(hang: Hang, clauses: Mapping[str, bool | None], *, is_doubted: bool) -> bool:
    """Return whether enough speaks for a hang to name it: its frames, its lines, or all of what was issued.

    A group that Megatron has named stands for what the others did, where that is not known.
    """
    if clauses.get("errors"):
        return True
    if clauses.get("frames"):  # what nothing makes certain is told from other hangs by its group alone
        return bool(hang.certain or not hang.groups or clauses["groups"])
    issued = [clauses[name] for name in ("groups", "operations", "elements", "waiting") if name in clauses]
    is_named = "default_pg" not in hang.groups
    # that a rank is missing from the default group tells hardly a job from another
    differs = bool(clauses.get("differ")) and ("elements" in clauses or "missing" not in hang.differ)
    return bool(issued) and all(issued) and (is_named or differs) and not is_doubted


def _doubts(
    facts: Facts, suspects: Suspects, hang: Hang, scene: Scene, named: Collection[str], failed: Collection[int]
) -> Iterator[str]:
    """Yield what speaks against any known hang: errors that it does not name, a stuck device, a rank held up."""
    yield from _failures(facts, hang, named)
    ranks = facts.job.ranks
    if hang.certain or not _is_to_be_made(facts.job, hang, scene):
        yield from (f"rank {number} has a dump and {what} of two times" for number, what in facts.mixed.items())
    if {*hang.differ} & {"size", "dtype"} and len(_ways(facts.job, hang, scene)) > 1:
        yield "these ranks came to the function by different calls"
    if not _has_waiting(facts, hang, failed):
        yield "no rank waits in what its peers would wait in"
    if suspects.rule in (DEVICE, TOGETHER):
        yield from (f"rank {number} {why}" for number, why in suspects.why.items())
    for number in sorted(failed):
        if any(one.kind not in PAIRED and not _may_be(hang, one) for one in ranks[number].waiting):
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
    groups = [one for one in facts.job.groups.values() if hang.groups and _is_group(one, hang.groups)]
    peers = {number for one in groups if not {*failed}.isdisjoint(one.members) for number in one.members} - {*failed}
    of_peers = [one for number in sorted(peers & facts.job.ranks.keys()) for one in facts.job.ranks[number].waiting]
    waiting = of_peers or (() if facts.unseen else facts.waiting)
    return not (hang.groups and waiting) or any(_may_be(hang, one) for one in waiting)


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
        foreign = {rank for rank, one in issued.items() if not _is_issued_in(one.frames, hang.frames)}
        for number in sorted(foreign & {*scene.rest}) if foreign != issued.keys() else ():
            label = whereabouts.label(meeting.group)
            yield f"rank {number} came to {meeting.sequence} of {label} by other code than its peers"


def _by_user(frames: Sequence[Frame]) -> Frame | None:
    """Return the frame that issued an operation, if it is of a user's code."""
    own = next((one for one in frames if not whereabouts.is_torch(one)), None)
    return own if own and _SHIMS not in own.file and is_of_user(own) else None


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
        return not any(map(_is_empty, meeting.operations.values()))
    named = {*hang.differ} - {"size" if hang.empty else ""}  # where the others are empty, those inside are alike
    if not hang.groups or not _is_group(meeting.group, hang.groups):
        return True
    inside, rest = (
        desync.differences(meeting.operations[rank] for rank in side if rank in meeting.operations)
        for side in (scene.inside, scene.rest)
    )
    return bool(rest or inside - named)


def _scenes(job: Job, meetings: Sequence[Meeting], hang: Hang, *, failed: bool) -> Iterable[Scene]:
    """Yield where the hang may be: in a collective, in its frames, and in the lines of the logs alone."""
    for meeting in meetings if hang.groups or hang.operations else ():
        if scene := _of_meeting(job, hang, meeting):
            yield scene
    inside = [
        number
        for number, rank in job.ranks.items()
        if hang.frames and any(has_frames(stack.frames, hang.frames) for stack in rank.stacks)
        if not (hang.others and _has(rank, None, hang.others))
        if not (rank.recorded and rank.waiting and (hang.groups or hang.operations))
        or any(_may_be(hang, one) for one in rank.waiting)
    ]
    if inside:
        peers = _beside(job, hang, inside)
        around = job.ranks if peers is None else sorted(peers & job.ranks.keys())
        rest = [number for number in around if job.ranks[number].stacks and number not in inside]
        yield Scene(tuple(inside), None, tuple(rest), peers)
    if failed:
        yield Scene((), None, (), None)


def _beside(job: Job, hang: Hang, inside: Collection[int]) -> frozenset[int] | None:
    """Return the ranks of the groups in which ranks may wait; all, where no dump lists the members of such groups.

    None if no file says how many these are.
    """
    waiting = [one.group.name for number in inside for one in job.ranks[number].waiting if _may_be(hang, one)]
    named = [one for one in job.groups.values() if hang.groups and _is_group(one, hang.groups)]
    groups = [job.groups[name] for name in waiting if name in job.groups] or named
    own = [one.members for one in groups if not set(inside).isdisjoint(one.members)]
    if any(one.members for one in groups):
        return frozenset(number for one in own for number in one)
    return frozenset(desync.everybody(job)) if job.size else None


def _of_meeting(job: Job, hang: Hang, meeting: Meeting) -> Scene | None:
    """Return the scene in a collective of the hang's group: those ranks are inside whose operation is the hang's."""
    if hang.groups and _is_group(meeting.group, hang.groups) is False:
        return None
    rest = {rank for rank, one in meeting.operations.items() if _is_other(job, hang, one)}
    inside = tuple(rank for rank in meeting.operations if rank not in rest)
    if not inside:
        return None
    if "missing" in hang.differ and hang.frames:  # a stack tells as well that a rank is elsewhere
        rest.update(
            number
            for number, rank in job.ranks.items()
            if (rank.stacks or whereabouts.is_done(rank)) and not rank.recorded and number not in meeting.operations
            if number in meeting.group.members or (meeting.group.description == "default_pg")
            if not any(may_be_in(stack.frames, hang.frames) for stack in rank.stacks)
        )
    is_of_all = meeting.group.description == "default_pg" and job.size
    peers = frozenset(meeting.group.members or (desync.everybody(job) if is_of_all else ())) or None
    return Scene(inside, meeting, tuple(sorted({*rest, *meeting.absent})), peers)


def _is_other(job: Job, hang: Hang, operation: Operation) -> bool:
    """Return whether a rank issued something else than the ranks that hang, where that makes them hang."""
    if hang.others and _has(job.ranks[operation.rank], operation, hang.others):
        return True
    if "operation" in hang.differ and operation.kind and operation.kind not in hang.operations:
        return True
    return hang.empty and (operation.done or "size" in hang.differ) and _is_empty(operation)


def _has(rank: Rank, operation: Operation | None, chain: Chain) -> bool | None:
    """Return whether a rank is in these frames, by its operation, else by its stacks; None if neither tells.

    A rank whose stack is elsewhere may have issued the operation before, and gone on. Of one in other code that these
    functions call, such as a user's, it is not known what it waits for.
    """
    shown = [stack.frames for stack in rank.stacks]
    if operation is not None and operation.frames:
        shown = [operation.frames]
    there = [frames for frames in shown if has_frames(frames, chain)]
    if there:
        return any(_is_issued_in(frames, chain) for frames in there) or None
    return False if shown and (operation is None or operation.frames) else None


def _is_issued_in(frames: Sequence[Frame], chain: Chain) -> bool:
    """Return whether the package of these functions, or torch's FSDP for them, waits by a stack."""
    logged = [at for at, frame in enumerate(frames) if frame.file.endswith(_LOGGER)]
    frames = frames[logged[-1] :] if logged else frames
    others = (frame for frame in frames if not whereabouts.is_torch(frame) and _SHIMS not in frame.file)
    own = next((frame for frame in frames if "/fsdp/" in frame.file), next(others, None))
    return own is not None and any(may_be_of(own, place.file) for step in chain for place in step)


def _clauses(
    facts: Facts, hang: Hang, scene: Scene, errors: Sequence[object], come: Callable[[], set[int]]
) -> dict[str, bool | None]:
    """Return whether each clause that the hang has is true; None if it is not known."""
    job = facts.job
    tests: dict[str, Callable[[], bool | None]] = {
        "groups": lambda: (
            _is_group(scene.meeting.group, hang.groups) if scene.meeting else _is_to_be_made(job, hang, scene)
        ),
        "operations": lambda: _each(scene, lambda one: one.kind in hang.operations if one.kind else None),
        "elements": lambda: _each(scene, lambda one: _within(desync.elements(one), hang.elements)),
        "dtypes": lambda: _each(scene, lambda one: {*one.dtypes} <= {*hang.dtypes} if one.dtypes else None),
        "first": lambda: _is_first(job, hang, scene),
        "step": lambda: _has_stepped(job, hang, scene),
        "scripts": lambda: _is_of_script(job, hang, scene),
        "waiting": lambda: _waiting(scene) == hang.waiting if scene.inside else None,
        "frames": lambda: _frames(facts, hang, scene),
        "differ": lambda: _differ(facts, hang, scene),
        "by_place": lambda: _is_by_place(facts, scene),
        "by_source": lambda: _is_by_source(job, scene),
        "reordered": lambda: _is_reordered(job, hang, scene),
        "others": lambda: _every(scene, (_here(job, scene, rank, hang.others) for rank in scene.rest)),
        "outside": lambda: _every(scene, (_is_outside(job, scene, rank, hang.outside) for rank in scene.rest)) or None,
        "empty": lambda: _every(scene, (_last_is_empty(job, scene, rank) for rank in scene.rest)),
        "goes_on": lambda: _every(scene, (_goes_on(facts, rank) for rank in scene.rest)),
        "before": lambda: not any(_is_before(job.ranks[rank], hang.before) for rank in scene.rest),
        "again": lambda: _each(scene, lambda one: _is_again(job.ranks[one.rank], one)),
        "met": lambda: _have_met(job, hang, scene),
        "ended": lambda: _every(scene, (_is_free(facts, rank) for rank in scene.rest)),
        "alternating": lambda: _alternates(scene),
        "errors": lambda: bool(errors) or None,
    }
    clauses = {name: test() for name, test in tests.items() if getattr(hang, name)}
    return {**clauses, "parts": _parts(job, hang, scene, clauses, come)}


def _parts(
    job: Job, hang: Hang, scene: Scene, clauses: Mapping[str, bool | None], come: Callable[[], set[int]]
) -> bool | None:
    """Return whether each rank of the group is known to do its part: to wait, or what the others do.

    Each rank of the job must have left something, for others may wait for it. Where no file lists the ranks of the
    group, as with gloo, it must be a dump.
    """
    if desync.everybody(job).union(*(one.members for one in job.groups.values())) - job.ranks.keys():
        return None
    if scene.rest and not any(clauses.get(name) for name in ("others", "outside", "empty")):
        return None
    if any(_is_held(job.ranks[rank], hang.frames) for rank in scene.rest):
        return None
    if any(_has(job.ranks[rank], None, hang.frames) is not True for rank in _logged(job, scene)):
        return None
    if scene.meeting and "dtype" in hang.differ and any(not one.dtypes for one in scene.meeting.operations.values()):
        return None
    if scene.meeting is None and "alternating" in clauses and not clauses["alternating"]:
        return None
    if scene.peers is None:
        return bool(job.size and all(rank.recorded for rank in job.ranks.values())) or None
    if scene.meeting and scene.meeting.group.members and (hang.by_place or hang.by_source):
        alike = [one for one in job.groups.values() if one.description == scene.meeting.group.description]
        done = _sized(job, scene.meeting) if hang.by_place else _with_some(come(), alike)
        return job.ranks.keys() <= done or None
    return scene.peers <= {*scene.inside, *scene.rest, *_past(job, scene)} or None


def _past(job: Job, scene: Scene) -> list[int]:
    """Return the ranks that have come to the collective as well, of which their dumps tell no more than that."""
    if scene.meeting is None:
        return []
    name, number = scene.meeting.group.name, scene.meeting.sequence or 0
    return [it for it, rank in job.ranks.items() if name in rank.counts and rank.counts[name].enqueued >= number > 0]


def _each(scene: Scene, test: Callable[[Operation], bool | None]) -> bool | None:
    return _all(test(scene.meeting.operations[rank]) for rank in scene.inside) if scene.meeting else None


def _all(values: Iterable[bool | None]) -> bool | None:
    found = set(values)
    return False if False in found else None if None in found or not found else True


def _every(scene: Scene, values: Iterable[bool | None]) -> bool | None:
    """Return whether it is true of all ranks; where no file lists these, nothing is asked of one that is not known."""
    found = set(values)
    return _all(found if scene.peers is not None else found - {None})


def _any(values: Iterable[bool | None]) -> bool | None:
    found = set(values)
    return True if True in found else None if None in found or not found else False


def _is_group(group: Group, descriptions: Sequence[str]) -> bool | None:
    described = "default_pg" if group.name == "0" and not group.description else group.description
    return any(fnmatchcase(described, one) for one in descriptions) if described else None


def _is_to_be_made(job: Job, hang: Hang, scene: Scene) -> bool | None:
    """Return whether ranks may wait for the communicator of such a group: in a call that no dump of theirs has, where
    nobody has used the group yet.
    """
    ranks = [job.ranks[number] for number in scene.inside]
    used = {name for rank in job.ranks.values() for name in rank.counts}
    unused = [it for it in job.groups.values() if it.name not in used and not {*scene.inside}.isdisjoint(it.members)]
    is_unrecorded = all(rank.recorded and not rank.waiting for rank in ranks)
    return (
        hang.first and is_unrecorded and not scene.rest and any(_is_group(one, hang.groups) for one in unused)
    ) or None


def _within(size: int | None, bounds: tuple[int, int] | None) -> bool | None:
    return None if size is None or bounds is None else bounds[0] <= size <= bounds[1]


def _waiting(scene: Scene) -> tuple[int, ...]:
    waiting = scene.inside if scene.meeting is None else {*scene.meeting.waiting}
    return tuple(rank for rank in scene.inside if rank in waiting)


def _is_first(job: Job, hang: Hang, scene: Scene) -> bool | None:
    """Return whether it is the group's first collective. It is not the function's first if a rank is past one of it."""
    number = scene.meeting.sequence or 0 if scene.meeting else float("inf")
    done = (one for rank in (*scene.inside, *scene.rest) for one in (*job.ranks[rank].last, *job.ranks[rank].earlier))
    for one in done if number else ():
        is_same = one.group.name == scene.meeting.group.name if scene.meeting else _is_group(one.group, hang.groups)
        if is_same and (one.sequence or 0) < number and has_frames(one.frames, hang.frames):
            return False
    return number == 1 or None


def _have_met(job: Job, hang: Hang, scene: Scene) -> bool | None:
    """Return whether the ranks inside issued the collective before it in the function, and the others where they do."""
    if scene.meeting is None or scene.meeting.sequence is None:
        return None
    name, number = scene.meeting.group.name, scene.meeting.sequence - 1
    told: list[bool | None] = [None if number else False]
    for ranks, chain in ((scene.inside, hang.frames), (scene.rest, hang.met)):
        for rank in map(job.ranks.__getitem__, ranks):
            issued = (*rank.last, *rank.earlier, *rank.waiting)
            one = next((it for it in issued if (it.group.name, it.sequence) == (name, number) and it.kind), None)
            is_known = one and (one.frames or one.kind not in hang.operations)
            told.append(has_frames(one.frames, chain) and one.kind in hang.operations if one and is_known else None)
            if name in rank.counts and 0 <= rank.counts[name].enqueued < number:
                told.append(False)
    return _all(told[bool(number) :])


def _is_again(rank: Rank, operation: Operation) -> bool | None:
    """Return whether a rank has issued the same before, of that kind, size and type, as far as its dump goes back."""
    trail = rank.trails.get(operation.group.name)
    place = (operation.sequence or 0) - trail.first if trail else -1
    if not trail or not 0 <= place < len(trail.digests) or not trail.digests[place]:
        return None
    before = {*trail.digests[:place]}
    return trail.digests[place] in before or (None if trail.first > 1 or 0 in before else False)


def _has_stepped(job: Job, hang: Hang, scene: Scene) -> bool | None:
    """Return False if a rank inside is done with a step, in the first of which the defect shows."""
    done = (one for rank in scene.inside for one in job.ranks[rank].last)
    return False if any(has_frames(one.frames, hang.step) for one in done) else None


def _is_of_script(job: Job, hang: Hang, scene: Scene) -> bool | None:
    """Return False if a rank inside runs a script that has another defect, and not this one."""
    files = {
        f"/{frame.file}"
        for rank in scene.inside
        for shown in (job.ranks[rank].stacks, job.ranks[rank].waiting)
        for one in shown
        for frame in one.frames
    }
    ends = tuple(f"/{one}" for one in hang.scripts)
    return False if any(file.endswith(ends) for file in files) else None


def _frames(facts: Facts, hang: Hang, scene: Scene) -> bool | None:
    """Return whether the ranks inside are in the hang's frames.

    It is not known of a rank whose stack is in another collective: it may have gone on, or be there instead.
    """
    issued = scene.meeting.operations if scene.meeting else {}
    by_rank = {rank: _has(facts.job.ranks[rank], issued.get(rank), hang.frames) for rank in scene.inside}
    if scene.meeting is None:
        calls = {whereabouts.collective(facts.job.ranks[rank]) for rank in scene.inside}
        return _every(scene, by_rank.values()) if len(calls - {""}) < 2 else None
    unsure = {rank for rank in scene.inside if facts.calls.get(rank) and not _has_gone_on(facts, issued[rank])}
    if any(by_rank[rank] is None for rank in unsure):
        return None
    logged = _logged(facts.job, scene)
    return _every(scene, (value for rank, value in by_rank.items() if value is not None or rank not in logged))


def _is_seen(job: Job, hang: Hang, scene: Scene) -> bool:
    """Return whether a rank in the collective is in the hang's frames: one whose dump has none leaves that as it is."""
    issued = scene.meeting.operations if scene.meeting and hang.frames else {}
    return any(_has(job.ranks[rank], issued[rank], hang.frames) for rank in scene.inside if rank in issued)


def _logged(job: Job, scene: Scene) -> set[int]:
    """Return the ranks inside of which a log alone tells what they wait in: it does not say where that was issued."""
    issued = scene.meeting.operations if scene.meeting else {}
    return {
        rank for rank in scene.inside if rank in issued and not issued[rank].frames and not job.ranks[rank].recorded
    }


def _has_gone_on(facts: Facts, operation: Operation) -> bool:
    """Return whether a rank is done with an operation, or has issued a later one of its group."""
    rank, name = facts.job.ranks[operation.rank], operation.group.name
    later = [one.sequence or 0 for one in rank.waiting if one.group.name == name]
    newest = max([*later, *(count.enqueued for group, count in rank.counts.items() if group == name)], default=0)
    return operation.done or newest > (operation.sequence or 0)


def _differ(facts: Facts, hang: Hang, scene: Scene) -> bool | None:
    """Return whether the ranks differ as the signature says."""
    if scene.meeting is None:
        if any(_has_come(facts.job, hang, scene, one) for one in facts.meetings):
            return False
        # that others are elsewhere shows that they issued something else only if the signature says where they are
        return bool(scene.rest and ("missing" in hang.differ or ("operation" in hang.differ and hang.others))) or None
    meeting = scene.meeting
    seen = set(meeting.differ)
    if any(rank not in meeting.operations for rank in scene.rest):
        seen.add("missing")
    if not seen & {*hang.differ}:
        return None if meeting.is_open and not seen else False
    if hang.difference and "size" in seen:
        sizes = sorted({size for one in meeting.operations.values() if (size := desync.elements(one)) is not None})
        is_alike = len(sizes) == 2 and _within(sizes[1] - sizes[0], hang.difference)
        return is_alike and (not hang.share or hang.share[0] <= sizes[0] / sizes[1] <= hang.share[1] or None)
    return True


def _sized(job: Job, meeting: Meeting) -> set[int]:
    """Return the ranks of which it is known how much they issue as this collective, in any group of its description."""
    place = meeting.group.description, meeting.sequence
    return {
        number
        for number, rank in job.ranks.items()
        for one in (*rank.last, *rank.waiting)
        if (one.group.description, one.sequence) == place and desync.elements(one) is not None
    }


def _come(job: Job, hang: Hang) -> set[int]:
    """Return the ranks that wait in the hang's function, or for another stage of a pipeline."""
    return {
        number
        for number, rank in job.ranks.items()
        if any(one.kind in PAIRED or _has(rank, one, hang.frames) for one in rank.waiting)
    }


def _with_some(ranks: set[int], groups: Iterable[Group]) -> set[int]:
    """Return the members of the groups of which some are among these ranks."""
    return {number for group in groups if not ranks.isdisjoint(group.members) for number in group.members}


def _is_by_place(facts: Facts, scene: Scene) -> bool | None:
    """Return whether ranks of one place in their groups issued one size: what a stage computes, all pipelines do."""
    if scene.meeting is None or not scene.meeting.group.members:
        return None
    sizes: dict[int, int] = {}
    place = scene.meeting.group.description, scene.meeting.sequence
    for one in (
        one for rank in facts.job.ranks.values() for one in (*rank.last, *rank.waiting)
    ):  # some pipelines go on
        members, size = _members(facts.job, one), desync.elements(one)
        if (one.group.description, one.sequence) == place and members and size is not None:
            if sizes.setdefault(members.index(one.rank), size) != size:
                return False
    return True


def _members(job: Job, operation: Operation) -> tuple[int, ...]:
    """Return the members of an operation's group, which a log does not list, and dumps of other ranks may."""
    alike = (one.members for one in job.groups.values() if one.description == operation.group.description)
    return operation.group.members or next((own for own in alike if operation.rank in own), ())


def _is_by_source(job: Job, scene: Scene) -> bool | None:
    """Return whether the source is inside, and the ranks that receive issued one and the same, and no more than it."""
    if scene.meeting is None or not scene.meeting.group.members:
        return None
    if scene.meeting.group.members[0] not in scene.inside or scene.meeting.absent:
        return False
    source, name = scene.meeting.group.members[0], scene.meeting.group.name
    issued = {rank: job.ranks[rank].counts[name].enqueued for rank in scene.inside if name in job.ranks[rank].counts}
    if source in issued and max(issued.values()) > issued[source]:
        return False
    receivers = (one for rank, one in scene.meeting.operations.items() if rank != source)
    return len(desync.sides(one for one in receivers if one.kind)) < 2


def _is_reordered(job: Job, hang: Hang, scene: Scene) -> bool | None:
    """Return whether one rank's dump has, from there on, all sizes that the others have: they are the same in another
    order. Of the first size alone, that is not known.
    """
    if scene.meeting is None:
        return None
    name, number = scene.meeting.group.name, scene.meeting.sequence or 0
    sizes, ended = [], []
    for rank in map(job.ranks.__getitem__, scene.inside):
        own = [one for one in (*rank.last, *rank.waiting) if one.group.name == name and (one.sequence or 0) >= number]
        of_hang = [one for one in own if _has(rank, one, hang.frames)]
        sizes.append(Counter(map(desync.elements, of_hang)))
        if of_hang and len(of_hang) < len(own) and own.index(of_hang[-1]) == len(of_hang) - 1:  # it has gone on
            ended.append(sizes[-1])
    if any(one != ended[0] for one in ended) or any(not one <= whole for one in sizes for whole in ended[:1]):
        return False
    return any(all(one <= most for one in sizes) for most in sizes) or None


def _has_come(job: Job, hang: Hang, scene: Scene, meeting: Meeting) -> bool:
    """Return whether those inside wait in a collective to which all have come, or one that is said to be elsewhere."""
    issued = (meeting.operations[rank] for rank in scene.rest if rank in meeting.operations)
    is_here = not {*scene.inside}.isdisjoint(meeting.waiting)
    return is_here and (_agrees(meeting) or any(not _is_other(job, hang, one) for one in issued))


def _agrees(meeting: Meeting) -> bool:
    """Return whether all ranks of a group are in a collective, and none in another one."""
    return not (meeting.is_open or meeting.absent or meeting.differ)


def _alternates(scene: Scene) -> bool | None:
    """Return whether an absent rank follows each rank that waits, at least two of these: as where one rank of each
    context-parallel group waits. A single rank that waits, or that is late, tells nothing.
    """
    ends = (*scene.inside[1:], float("inf"))
    if all(any(rank < other < end for other in scene.rest) for rank, end in zip(scene.inside, ends)):
        return True if len(scene.inside) > 1 else None
    members = scene.meeting.group.members if scene.meeting else ()
    if any(not any(rank < other < end for other in members) for rank, end in zip(scene.inside, ends)):
        return False if members else None
    return False if scene.meeting and members and not scene.meeting.is_open else None


def _here(job: Job, scene: Scene, rank: int, chain: Chain) -> bool | None:
    """Return whether another rank is in these frames: by its operation in the scene, else by where it waits now."""
    if scene.meeting and rank in scene.meeting.operations:
        return _has(job.ranks[rank], scene.meeting.operations[rank], chain)
    told = [_has(job.ranks[rank], one, chain) for one in job.ranks[rank].waiting or (None,)]
    return _any(told)


def _is_held(rank: Rank, chain: Chain) -> bool:
    """Return whether a rank waits in other code that these functions call."""
    shown = [*(one.frames for one in rank.stacks), *(one.frames for one in rank.waiting)]
    return any(has_frames(frames, chain) and not _is_issued_in(frames, chain) for frames in shown)


def _is_outside(job: Job, scene: Scene, rank: int, chain: Chain) -> bool | None:
    """Return whether another rank is surely in none of these functions: a path may be cut to the module's name."""
    if whereabouts.is_done(job.ranks[rank]):
        return True
    one, issued = job.ranks[rank], scene.meeting.operations.get(rank) if scene.meeting else None
    shown = [it.frames for it in (*one.stacks, *([issued] if issued else one.waiting)) if it.frames]
    return not any(may_be_in(frames, chain) for frames in shown) if shown else None


def _goes_on(facts: Facts, number: int) -> bool | None:
    """Return whether a rank waits in something; None if its files do not tell."""
    rank = facts.job.ranks[number]
    if rank.waiting or facts.calls.get(number):
        return True
    return False if rank.recorded or rank.stacks or whereabouts.is_done(rank) else None


def _is_before(rank: Rank, chain: Chain) -> bool:
    """Return whether a rank waits in these functions, but for what the part of the package that has them issues."""
    issued = [one.frames for one in rank.waiting[:1] if one.frames]
    for frames in issued or [one.frames for one in rank.stacks]:
        own = next((one for one in frames if not whereabouts.is_torch(one)), None)
        parts = (place.file for step in chain for place in step)
        if own and has_frames(frames, chain) and not any(is_of_part(own, file) for file in parts):
            return True
    return False


def _is_free(facts: Facts, number: int) -> bool | None:
    """Return whether a rank waits in nothing; None if its files do not tell."""
    goes_on = _goes_on(facts, number)
    return None if goes_on is None else not goes_on


def _is_empty(operation: Operation) -> bool:
    return any(0 in sizes for sizes in (*(operation.inputs or ()), *(operation.outputs or ())))


def _last_is_empty(job: Job, scene: Scene, rank: int) -> bool | None:
    """Return whether a rank's newest collective in the group has a tensor without elements."""
    if scene.meeting is None:
        return None
    group = scene.meeting.group
    own = [one for one in (*job.ranks[rank].last, *job.ranks[rank].waiting) if one.group.name == group.name]
    newest = max(own, key=lambda one: one.sequence or 0, default=None)
    return None if newest is None or newest.inputs is None else _is_empty(newest)


def _errors(facts: Facts, hang: Hang) -> tuple[tuple[int, Message, Error], ...]:
    """Return the lines that the hang names, with their ranks; a rank that went on after one did not fail with it."""
    return tuple(
        (number, message, error)
        for number, rank in facts.job.ranks.items()
        for message in rank.messages
        if message not in facts.caught.get(number, ()) and not whereabouts.has_caught(rank, message)
        for error in _names(hang, message)
    )


def _names(hang: Hang, message: Message) -> list[Error]:
    """Return the errors of the hang that a line is: its words are whole, so a size of 0 is no other that begins so."""
    return [
        error
        for error in hang.errors
        if re.search(rf"(?<!\w){re.escape(error.text)}(?!\w|\.\d)", message.text)
        and (not error.frames or _is_raised_by(message.frames, error))
    ]


def _is_raised_by(frames: Sequence[Frame], error: Error) -> bool:
    """Return whether an error was raised where it says: in the file of the first place, and not in what that calls."""
    files = {frame.file for frame in frames if has_frames([frame], error.frames[:1])}
    own = [frame.file for frame in frames if not whereabouts.is_torch(frame)]
    return has_frames(frames, error.frames) and (error.called or own[0] in files)
