"""Whether each rank of a group is known to do its part in a hang: to wait, or what the others do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from unhang.diagnose import desync
from unhang.diagnose.desync import Meeting
from unhang.diagnose.evidence import Group, Job, Rank
from unhang.diagnose.pairs import PAIRED
from unhang.diagnose.scenes import Scene, is_in, is_issued_in
from unhang.diagnose.signature import Chain, Hang, has_frames


def parts(
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
    if any(is_in(job.ranks[rank], None, hang.frames) is not True for rank in logged(job, scene)):
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


def logged(job: Job, scene: Scene) -> set[int]:
    """Return the ranks inside of which a log alone tells what they wait in: it does not say where that was issued."""
    issued = scene.meeting.operations if scene.meeting else {}
    return {
        rank for rank in scene.inside if rank in issued and not issued[rank].frames and not job.ranks[rank].recorded
    }


def _sized(job: Job, meeting: Meeting) -> set[int]:
    """Return the ranks of which it is known how much they issue as this collective, in any group of its description."""
    place = meeting.group.description, meeting.sequence
    return {
        number
        for number, rank in job.ranks.items()
        for one in (*rank.last, *rank.waiting)
        if (one.group.description, one.sequence) == place and desync.elements(one) is not None
    }


def come_to(job: Job, hang: Hang) -> set[int]:
    """Return the ranks that wait in the hang's function, or for another stage of a pipeline."""
    return {
        number
        for number, rank in job.ranks.items()
        if any(one.kind in PAIRED or is_in(rank, one, hang.frames) for one in rank.waiting)
    }


def _with_some(ranks: set[int], groups: Iterable[Group]) -> set[int]:
    """Return the members of the groups of which some are among these ranks."""
    return {number for group in groups if not ranks.isdisjoint(group.members) for number in group.members}


def _is_held(rank: Rank, chain: Chain) -> bool:
    """Return whether a rank waits in other code that these functions call."""
    shown = [*(one.frames for one in rank.stacks), *(one.frames for one in rank.waiting)]
    return any(has_frames(frames, chain) and not is_issued_in(frames, chain) for frames in shown)
