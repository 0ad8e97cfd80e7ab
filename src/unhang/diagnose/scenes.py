"""Where a hang may be in a job: which ranks are inside, and which are elsewhere."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from unhang.diagnose import desync, whereabouts
from unhang.diagnose.desync import Meeting
from unhang.diagnose.evidence import Frame, Group, Job, Operation, Rank
from unhang.diagnose.signature import Chain, Hang, has_frames, may_be_in, may_be_of

_LOGGER = "torch/distributed/c10d_logger.py"
"""What stands around each of torch's collectives; in between may be a decorator's frame."""
SHIMS = "unhang/prove/"
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


def scenes_of(job: Job, meetings: Sequence[Meeting], hang: Hang, *, failed: bool) -> Iterable[Scene]:
    """Yield where the hang may be: in a collective, in its frames, and in the lines of the logs alone."""
    for meeting in meetings if hang.groups or hang.operations else ():
        if scene := _of_meeting(job, hang, meeting):
            yield scene
    inside = [
        number
        for number, rank in job.ranks.items()
        if hang.frames and any(has_frames(stack.frames, hang.frames) for stack in rank.stacks)
        if not (hang.others and is_in(rank, None, hang.others))
        if not (rank.recorded and rank.waiting and (hang.groups or hang.operations))
        or any(may_wait_in(hang, one) for one in rank.waiting)
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
    waiting = [one.group.name for number in inside for one in job.ranks[number].waiting if may_wait_in(hang, one)]
    named = [one for one in job.groups.values() if hang.groups and is_group(one, hang.groups)]
    groups = [job.groups[name] for name in waiting if name in job.groups] or named
    own = [one.members for one in groups if not set(inside).isdisjoint(one.members)]
    if any(one.members for one in groups):
        return frozenset(number for one in own for number in one)
    return frozenset(desync.everybody(job)) if job.size else None


def _of_meeting(job: Job, hang: Hang, meeting: Meeting) -> Scene | None:
    """Return the scene in a collective of the hang's group: those ranks are inside whose operation is the hang's."""
    if hang.groups and is_group(meeting.group, hang.groups) is False:
        return None
    rest = {rank for rank, one in meeting.operations.items() if is_other(job, hang, one)}
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


def is_other(job: Job, hang: Hang, operation: Operation) -> bool:
    """Return whether a rank issued something else than the ranks that hang, where that makes them hang."""
    if hang.others and is_in(job.ranks[operation.rank], operation, hang.others):
        return True
    if "operation" in hang.differ and operation.kind and operation.kind not in hang.operations:
        return True
    return hang.empty and (operation.done or "size" in hang.differ) and is_empty(operation)


def is_in(rank: Rank, operation: Operation | None, chain: Chain) -> bool | None:
    """Return whether a rank is in these frames, by its operation, else by its stacks; None if neither tells.

    A rank whose stack is elsewhere may have issued the operation before, and gone on. Of one in other code that these
    functions call, such as a user's, it is not known what it waits for.
    """
    shown = [stack.frames for stack in rank.stacks]
    if operation is not None and operation.frames:
        shown = [operation.frames]
    there = [frames for frames in shown if has_frames(frames, chain)]
    if there:
        return any(is_issued_in(frames, chain) for frames in there) or None
    return False if shown and (operation is None or operation.frames) else None


def is_issued_in(frames: Sequence[Frame], chain: Chain) -> bool:
    """Return whether the package of these functions, or torch's FSDP for them, waits by a stack."""
    logged = [at for at, frame in enumerate(frames) if frame.file.endswith(_LOGGER)]
    frames = frames[logged[-1] :] if logged else frames
    others = (frame for frame in frames if not whereabouts.is_torch(frame) and SHIMS not in frame.file)
    own = next((frame for frame in frames if "/fsdp/" in frame.file), next(others, None))
    return own is not None and any(may_be_of(own, place.file) for step in chain for place in step)


def may_wait_in(hang: Hang, operation: Operation) -> bool:
    """Return whether the ranks of a hang may wait in an operation of this group, kind and size."""
    size = desync.elements(operation)
    return (
        bool(hang.groups or hang.operations)
        and (not hang.groups or is_group(operation.group, hang.groups) is not False)
        and (not hang.operations or operation.kind in hang.operations)
        and (hang.elements is None or size is None or hang.elements[0] <= size <= hang.elements[1])
    )


def is_group(group: Group, descriptions: Sequence[str]) -> bool | None:
    """Return whether a group has one of these descriptions, which may be patterns; None if nothing describes it."""
    described = "default_pg" if group.name == "0" and not group.description else group.description
    return any(fnmatchcase(described, one) for one in descriptions) if described else None


def is_to_be_made(job: Job, hang: Hang, scene: Scene) -> bool | None:
    """Return whether ranks may wait for the communicator of such a group: in a call that no dump of theirs has, where
    nobody has used the group yet.
    """
    ranks = [job.ranks[number] for number in scene.inside]
    used = {name for rank in job.ranks.values() for name in rank.counts}
    unused = [it for it in job.groups.values() if it.name not in used and not {*scene.inside}.isdisjoint(it.members)]
    is_unrecorded = all(rank.recorded and not rank.waiting for rank in ranks)
    return (
        hang.first and is_unrecorded and not scene.rest and any(is_group(one, hang.groups) for one in unused)
    ) or None


def is_empty(operation: Operation) -> bool:
    """Return whether an operation has a tensor without elements."""
    return any(0 in sizes for sizes in (*(operation.inputs or ()), *(operation.outputs or ())))
