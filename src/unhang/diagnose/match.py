"""How far the evidence of a job meets a signature. Each clause of it is true, false or not known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from unhang.diagnose import desync
from unhang.diagnose.desync import Meeting
from unhang.diagnose.evidence import Frame, Group, Job, Message, Operation, Rank
from unhang.diagnose.signature import Chain, Hang, Place, Signature


class Scene(NamedTuple):
    """Where some ranks are together: in a collective, or in the same functions by their stacks."""

    inside: tuple[int, ...]
    """The ranks that are there, and wait."""
    meeting: Meeting | None
    """The collective; None if only stacks tell of it."""
    rest: tuple[int, ...]
    """The ranks that issued another operation, are past it, or have not come to it."""


class Match(NamedTuple):
    """A hang that nothing contradicts, and for which something speaks."""

    fix: str
    hang: Hang
    scene: Scene
    clauses: Mapping[str, bool | None]
    """Those that the signature has, by their key in the manifest."""
    errors: tuple[tuple[int, Message], ...]
    """The lines that it names, with their ranks."""

    @property
    def is_known(self) -> bool:
        """Whether the evidence leaves no other reading."""
        return any(all(self.clauses[name] for name in names) for names in self.hang.certain)


def matches(job: Job, meetings: Sequence[Meeting], signatures: Iterable[Signature]) -> tuple[Match, ...]:
    """Return what matches, for each scene: the certain ones first, then those for which most speaks."""
    stuck = desync.circle(desync.waits_for(job, meetings))
    found = []
    for signature in signatures:
        for hang in signature.hangs:
            errors = _errors(job, hang)
            for scene in _scenes(job, meetings, hang):
                one = Match(signature.fix, hang, scene, _clauses(job, hang, scene, stuck, errors), errors)
                if False not in one.clauses.values() and (one.is_known or _speaks(one)):
                    found.append(one)
    return tuple(sorted(found, key=lambda one: (not one.is_known, -sum(map(bool, one.clauses.values())))))


def has_frames(frames: Sequence[Frame], chain: Chain) -> bool:
    """Return whether a stack has one place of each step of a chain."""
    return all(any(_is_at(frame, place) for frame in frames for place in step) for step in chain)


def _is_at(frame: Frame, place: Place) -> bool:
    """Return whether a frame is of that function. Sources shorten paths, and leave out classes."""
    if not frame.function.endswith(place.function.rpartition(".")[2]):  # most frames, so first
        return False
    function = frame.function.replace("<locals>.", "")
    return _ends(function, place.function, ".") and _ends(frame.file.replace("\\", "/"), place.file, "/")


def _ends(one: str, other: str, mark: str) -> bool:
    return (mark + one).endswith(mark + other) or (mark + other).endswith(mark + one)


def _speaks(match: Match) -> bool:
    """Return whether enough speaks for a hang to name it: its frames, its lines, or all of what was issued.

    A group that Megatron has named stands for what the others did, where that is not known.
    """
    clauses = match.clauses
    if clauses.get("frames") or clauses.get("errors"):
        return True
    issued = [clauses[name] for name in ("groups", "operations", "elements", "waiting") if name in clauses]
    is_named = "default_pg" not in match.hang.groups
    # that a rank is missing from the default group tells hardly a job from another
    differs = bool(clauses.get("differ")) and ("elements" in clauses or "missing" not in match.hang.differ)
    return bool(issued) and all(issued) and (is_named or differs)


def _scenes(job: Job, meetings: Sequence[Meeting], hang: Hang) -> Iterable[Scene]:
    """Yield where the hang may be: in a collective, else in its frames, else in the lines of the logs alone."""
    found = False
    for meeting in meetings if hang.groups or hang.operations else ():
        if scene := _of_meeting(job, hang, meeting):
            found = True
            yield scene
    inside = [
        number
        for number, rank in job.ranks.items()
        if not rank.waiting and hang.frames and _has(rank, None, hang.frames)
        if not (hang.others and _has(rank, None, hang.others))
    ]
    if inside:
        rest = [number for number, rank in job.ranks.items() if rank.stacks and number not in inside]
        yield Scene(tuple(inside), None, tuple(rest))
    elif not found and hang.errors:
        yield Scene((), None, ())


def _of_meeting(job: Job, hang: Hang, meeting: Meeting) -> Scene | None:
    """Return the scene in a collective of the hang's group: those ranks are inside whose operation is the hang's."""
    if hang.groups and _is_group(meeting.group, hang.groups) is False:
        return None
    rest = {rank for rank, one in meeting.operations.items() if _is_other(job, hang, one)}
    inside = tuple(rank for rank in meeting.operations if rank not in rest)
    if not inside:
        return None
    return Scene(inside, meeting, tuple(sorted({*rest, *meeting.absent})))


def _is_other(job: Job, hang: Hang, operation: Operation) -> bool:
    """Return whether a rank issued something else than the ranks that hang, where that makes them hang."""
    if hang.others and _has(job.ranks[operation.rank], operation, hang.others):
        return True
    if "operation" in hang.differ and operation.kind not in hang.operations:
        return True
    return hang.empty and operation.done and _is_empty(operation)


def _has(rank: Rank, operation: Operation | None, chain: Chain) -> bool | None:
    """Return whether a rank is in these frames, by its operation, else by its stacks; None if neither tells.

    A rank whose stack is elsewhere may have issued the operation before, and gone on.
    """
    if operation is not None and operation.frames:
        return has_frames(operation.frames, chain)
    if any(has_frames(stack.frames, chain) for stack in rank.stacks):
        return True
    return False if rank.stacks and operation is None else None


def _clauses(
    job: Job, hang: Hang, scene: Scene, stuck: frozenset[int], errors: Sequence[object]
) -> dict[str, bool | None]:
    """Return whether each clause that the hang has is true; None if it is not known."""
    tests: dict[str, Callable[[], bool | None]] = {
        "groups": lambda: scene.meeting and _is_group(scene.meeting.group, hang.groups),
        "operations": lambda: _each(scene, lambda one: one.kind in hang.operations if one.kind else None),
        "elements": lambda: _each(scene, lambda one: _within(desync.elements(one), hang.elements)),
        "dtypes": lambda: _each(scene, lambda one: {*one.dtypes} <= {*hang.dtypes} if one.dtypes else None),
        "first": lambda: bool(scene.meeting and scene.meeting.sequence == 1) or None,
        "waiting": lambda: _waiting(scene) == hang.waiting if scene.inside else None,
        "frames": lambda: _frames(job, hang, scene),
        "differ": lambda: _differ(job, hang, scene),
        "others": lambda: _any(_here(job, scene, rank, hang.others) for rank in scene.rest),
        "outside": lambda: _all(_here(job, scene, rank, hang.outside) is False for rank in scene.rest) or None,
        "empty": lambda: _all(_last_is_empty(job, scene, rank) for rank in scene.rest),
        "circle": lambda: bool(scene.meeting and scene.rest and stuck.issuperset(scene.rest)) or None,
        "alternating": lambda: _alternates(scene),
        "errors": lambda: bool(errors) or None,
    }
    return {name: test() for name, test in tests.items() if getattr(hang, name)}


def _each(scene: Scene, test: Callable[[Operation], bool | None]) -> bool | None:
    return _all(test(scene.meeting.operations[rank]) for rank in scene.inside) if scene.meeting else None


def _all(values: Iterable[bool | None]) -> bool | None:
    found = set(values)
    return False if False in found else None if None in found or not found else True


def _any(values: Iterable[bool | None]) -> bool | None:
    found = set(values)
    return True if True in found else None if None in found or not found else False


def _is_group(group: Group, descriptions: Sequence[str]) -> bool | None:
    described = "default_pg" if group.name == "0" and not group.description else group.description
    return any(fnmatchcase(described, one) for one in descriptions) if described else None


def _within(size: int | None, bounds: tuple[int, int] | None) -> bool | None:
    return None if size is None or bounds is None else bounds[0] <= size <= bounds[1]


def _waiting(scene: Scene) -> tuple[int, ...]:
    return (
        scene.inside if scene.meeting is None else tuple(rank for rank in scene.inside if rank in scene.meeting.waiting)
    )


def _frames(job: Job, hang: Hang, scene: Scene) -> bool | None:
    """Return whether the ranks inside are in the hang's frames: all of them, where the same call must differ."""
    if scene.meeting is None:
        return bool(scene.inside) or None
    told = [_has(job.ranks[rank], scene.meeting.operations[rank], hang.frames) for rank in scene.inside]
    if {"missing", "operation"}.isdisjoint(hang.differ):
        told = [one for one in told if one is not None]
        return _all(told)
    return _any(told)


def _differ(job: Job, hang: Hang, scene: Scene) -> bool | None:
    """Return whether the ranks differ as the signature says."""
    if scene.meeting is None:
        # that others are elsewhere shows that they issued something else only if the signature says where they are
        return bool(scene.rest and ("missing" in hang.differ or ("operation" in hang.differ and hang.others))) or None
    meeting = scene.meeting
    seen = set(desync.differences(meeting.operations.values()))
    if meeting.absent:
        seen.add("missing")
    if not seen & {*hang.differ}:
        return None if meeting.is_open and not seen else False
    if hang.difference and "size" in seen:
        sizes = [size for one in meeting.operations.values() if (size := desync.elements(one)) is not None]
        return _within(max(sizes) - min(sizes), hang.difference)
    return True


def _alternates(scene: Scene) -> bool | None:
    """Return whether an absent rank follows each rank that waits, at least two of these: as where one rank of each
    context-parallel group waits. A single rank that waits, or that is late, tells nothing.
    """
    if scene.meeting is None:
        return None
    ends = (*scene.inside[1:], float("inf"))
    if all(any(rank < other < end for other in scene.rest) for rank, end in zip(scene.inside, ends)):
        return True if len(scene.inside) > 1 else None
    return False if scene.meeting.group.members and not scene.meeting.is_open else None


def _here(job: Job, scene: Scene, rank: int, chain: Chain) -> bool | None:
    """Return whether another rank is in these frames: by its operation in the scene, else by where it waits now."""
    if scene.meeting and rank in scene.meeting.operations:
        return _has(job.ranks[rank], scene.meeting.operations[rank], chain)
    told = [_has(job.ranks[rank], one, chain) for one in job.ranks[rank].waiting or (None,)]
    return _any(told)


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


def _errors(job: Job, hang: Hang) -> tuple[tuple[int, Message], ...]:
    """Return the lines that the hang names, with their ranks."""
    return tuple(
        (number, message)
        for number, rank in job.ranks.items()
        for message in rank.messages
        if any(
            error.text in message.text and (not error.frames or has_frames(message.frames, error.frames))
            for error in hang.errors
        )
    )
