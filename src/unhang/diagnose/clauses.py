"""Whether each clause of a signature holds in a scene: true, false or not known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from unhang.diagnose import attendance, desync, whereabouts
from unhang.diagnose.desync import Meeting
from unhang.diagnose.evidence import Job, Operation, Rank
from unhang.diagnose.facts import Facts
from unhang.diagnose.scenes import Scene, is_empty, is_group, is_in, is_other, is_to_be_made
from unhang.diagnose.signature import Chain, Hang, has_frames, is_of_part, may_be_in


def clauses_of(
    facts: Facts, hang: Hang, scene: Scene, errors: Sequence[object], come: Callable[[], set[int]]
) -> dict[str, bool | None]:
    """Return whether each clause that the hang has is true; None if it is not known."""
    job = facts.job
    tests: dict[str, Callable[[], bool | None]] = {
        "groups": lambda: (
            is_group(scene.meeting.group, hang.groups) if scene.meeting else is_to_be_made(job, hang, scene)
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
    return {**clauses, "parts": attendance.parts(job, hang, scene, clauses, come)}


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
        is_same = one.group.name == scene.meeting.group.name if scene.meeting else is_group(one.group, hang.groups)
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
    by_rank = {rank: is_in(facts.job.ranks[rank], issued.get(rank), hang.frames) for rank in scene.inside}
    if scene.meeting is None:
        calls = {whereabouts.collective(facts.job.ranks[rank]) for rank in scene.inside}
        return _every(scene, by_rank.values()) if len(calls - {""}) < 2 else None
    unsure = {rank for rank in scene.inside if facts.calls.get(rank) and not _has_gone_on(facts, issued[rank])}
    if any(by_rank[rank] is None for rank in unsure):
        return None
    logged = attendance.logged(facts.job, scene)
    return _every(scene, (value for rank, value in by_rank.items() if value is not None or rank not in logged))


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
        of_hang = [one for one in own if is_in(rank, one, hang.frames)]
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
    return is_here and (meeting.agrees or any(not is_other(job, hang, one) for one in issued))


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
        return is_in(job.ranks[rank], scene.meeting.operations[rank], chain)
    told = [is_in(job.ranks[rank], one, chain) for one in job.ranks[rank].waiting or (None,)]
    return _any(told)


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
        own = whereabouts.issuer(frames)
        parts = (place.file for step in chain for place in step)
        if own and has_frames(frames, chain) and not any(is_of_part(own, file) for file in parts):
            return True
    return False


def _is_free(facts: Facts, number: int) -> bool | None:
    """Return whether a rank waits in nothing, or for its groups to end; None if its files do not tell."""
    goes_on = _goes_on(facts, number)
    return None if goes_on is None else not goes_on or whereabouts.ends_groups(facts.job.ranks[number])


def _last_is_empty(job: Job, scene: Scene, rank: int) -> bool | None:
    """Return whether a rank's newest collective in the group has a tensor without elements."""
    if scene.meeting is None:
        return None
    group = scene.meeting.group
    own = [one for one in (*job.ranks[rank].last, *job.ranks[rank].waiting) if one.group.name == group.name]
    newest = max(own, key=lambda one: one.sequence or 0, default=None)
    return None if newest is None or newest.inputs is None else is_empty(newest)
