"""Which ranks to suspect first, and why: the root of a hang, whatever it is.

The rules are tried in order, and the first one that names a rank counts. A rank that only waits for another is never
a suspect.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

from unhang.diagnose import collectives, statements, where
from unhang.diagnose.collectives import Meeting
from unhang.diagnose.evidence import Count, Group, Message, Operation
from unhang.diagnose.facts import Facts
from unhang.diagnose.pairs import PAIRED, unlike

_FRAMES, _FEW, _MANY = 12, 3, 7
_NUMBER = re.compile(r"\d+")
FAILED, SAID, DEVICE, SILENT = "failed", "said", "device", "silent"
HOST, TOGETHER, DISAGREES = "host", "together", "disagrees"


class Who(NamedTuple):
    """Whom a rule names."""

    rule: str  # what RULES call it; empty if no rule names anybody
    why: Mapping[int, str]  # by rank, ascending
    traceback: tuple[str, ...] = ()  # where the first error of a rank is, and its frames, the outermost first


def of(facts: Facts) -> Who:
    """Return the ranks to suspect first."""
    ranks = facts.job.ranks.values()
    # stacks alone do not show that a job hung which has ended since
    is_hung = not facts.has_ended or any(rank.recorded or rank.waiting for rank in ranks)
    for name, rule in () if facts.goes_on else RULES if is_hung else RULES[:2]:
        why = rule(facts)
        if name == HOST:
            why = {it: text for it, text in why.items() if not where.is_controller(facts.job.ranks[it])}
        if why:
            first = traceback(_first(facts.errors[min(why)])) if name == FAILED else ()
            return Who(name, dict(sorted(why.items())), first)
    return Who("", {})


def traceback(error: Message) -> tuple[str, ...]:
    """Return where an error is told, and its frames, the outermost first."""
    frames = (f"  {frame.file}:{frame.line} in {frame.function}" for frame in reversed(error.frames[:_FRAMES]))
    return (error.source, *frames)


def _failed(facts: Facts) -> dict[int, str]:
    """Name the ranks that raised or died first, and those that fail for the same reason, such as a node's disk."""
    firsts = {number: _first(lines) for number, lines in facts.errors.items()}
    if not firsts:
        return {}
    first = _first([*firsts.values()])
    alike = _NUMBER.sub("#", first.text)
    is_dated = all(line.at is not None for line in firsts.values())
    is_ordered = is_dated or len({statements.place(line)[0] for line in firsts.values()}) == 1
    return {
        number: f"it failed by itself: {line.text}"
        for number, line in firsts.items()
        if not is_ordered or (is_dated and line.at == first.at) or _NUMBER.sub("#", line.text) == alike
    }


def _first(messages: Sequence[Message]) -> Message:
    """Return the first of several errors: by time, or else by their lines where one of them has none."""
    is_dated = all(one.at is not None for one in messages)
    return min(messages, key=lambda one: (is_dated and one.at, *statements.place(one)))


def _behind_on_device(facts: Facts) -> dict[int, str]:
    """Name the ranks whose device has not done what their peers' have, though the host has issued it.

    A rank is done with an all-reduce only when all have begun it, so whoever is not can wait for nobody but its device.
    Of a broadcast that it is to do first, the source, which nothing names, may be done before anybody has come: one
    other rank tells nothing.
    """
    found: dict[int, tuple[int, str]] = {}
    apart = {one.group.name for one in facts.meetings if one.differ}  # of two sizes, who has less is done first
    for group, counts in facts.counts.items():
        ahead = max((count.completed for count in counts.values()), default=-1)
        for number, count in counts.items() if group not in apart and _ahead_alone(facts, group) is None else ():
            if count.device and 0 <= count.completed < min(ahead, count.enqueued):
                rank = facts.job.ranks[number]
                kinds = {it.kind for it in rank.waiting if it.group.name == group}
                is_next = rank.recorded and all(it.group.name == group for it in rank.waiting[:1])
                others = sum(other.completed > count.completed for other in counts.values())
                if not kinds & collectives.ONE_SIDED or (kinds == {"broadcast"} and is_next and others > 1):
                    why = f"{_done(facts, group, number)}, its peers {ahead}: its device is stuck"
                    found[number] = max(found.get(number, (0, "")), (ahead - count.completed, why))
    return {number: why for number, (_, why) in found.items()}


def _done(facts: Facts, group: str, number: int) -> str:
    label = where.label(facts.job.groups.get(group) or Group(group, ""))
    return f"completed {facts.counts[group][number].completed} of {label}"


def _ahead_alone(facts: Facts, group: str) -> int | None:
    """Return the one rank that is ahead of several peers at one place, where no devices stop by themselves."""
    counts = {number: count for number, count in facts.counts[group].items() if count.device and count.completed >= 0}
    first, *others = sorted(counts, key=lambda number: -counts[number].completed) or [-1]
    done = {counts[number].completed for number in others}
    if len(others) < 2 or len(done) > 1 or counts[first].completed in done:
        return None
    kinds = {one.kind for number in others for one in facts.job.ranks[number].waiting if one.group.name == group}
    return None if kinds & collectives.ONE_SIDED else first


def _not_begun(facts: Facts) -> dict[int, str]:
    """Name the ranks whose device has not begun a collective that is its first, and that a peer's has begun."""
    begun = {number for number, head in facts.heads.items() if head.begun}
    firsts = {number: head.operations[0] for number, head in facts.heads.items() if number not in begun}
    why = "its peers have: its device is stuck before it"
    return {
        number: f"has not begun {one.sequence} of {where.label(one.group)}, {why}"
        for number, one in firsts.items()
        if one.kind not in PAIRED and not begun.isdisjoint(facts.met[number])
    }


def _stopped(facts: Facts) -> dict[int, str]:
    """Name the ranks whose process is gone or stopped, unless all are gone."""
    if facts.has_ended:
        return {}
    why = {
        "stopped": "by a signal, a debugger or the batch system; `kill -CONT` lets it go on",
        "gone": "it has ended or was killed, and its peers run",
    }
    ranks = facts.job.ranks.items()
    return {number: f"its process is {rank.process}: {why[rank.process]}" for number, rank in ranks if rank.process}


def _silent(facts: Facts) -> dict[int, str]:
    """Name the ranks of which nothing came, where those that were seen do not disagree.

    Where these are most of the job, only a part of its files is at hand. What people post of a log is a part of it,
    too, unless nearly all ranks are there.
    """
    is_cut = facts.job.files == 1 and not any(rank.recorded or rank.process for rank in facts.job.ranks.values())
    is_cut = is_cut and _MANY * len(facts.unseen) > len(facts.job.ranks)
    unseen = facts.unseen & facts.job.spoken if is_cut else facts.unseen
    everybody = collectives.everybody(facts.job)
    is_most = 2 * len(unseen) >= len(everybody | unseen)
    if not unseen or (is_most and len(unseen) > 1) or _disagree(facts):
        return {}
    found: dict[int, str] = {}
    for meeting in facts.meetings:
        members = {*meeting.group.members} or (set() if is_most else everybody)
        if meeting.waiting:
            found = {**dict.fromkeys(unseen & members, f"{where.label(meeting.group)} waits for it"), **found}
    for number, others in facts.waits_for.items():
        found = {**dict.fromkeys(unseen & others, f"rank {number} waits for it"), **found}
    if not facts.meetings and any(facts.calls.values()) and not is_most:
        found = dict.fromkeys(unseen, "others wait in a collective")
    but = " but lines without an error or a collective"
    return {it: f"nothing came from it{but if it in facts.job.spoken else ''}, and {why}" for it, why in found.items()}


def _disagree(facts: Facts) -> bool:
    """Return whether ranks are known to have issued different operations."""
    return bool(any(meeting.differ for meeting in facts.meetings) or _mismatched(facts))


def _left_behind(facts: Facts) -> dict[int, str]:
    """Name the ranks that wait where most have done all: they have issued a call that nobody else comes to."""
    ranks = facts.job.ranks
    done = {number for number in ranks if not _waits(facts, number) and where.is_done(ranks[number])}
    waiting = ranks.keys() - done
    if 2 * len(done) <= len(collectives.everybody(facts.job)):
        return {}
    met = {number for one in facts.meetings if not done.isdisjoint(one.operations) for number in one.waiting}
    why = "it waits for its peers, and these have done all: it issued more calls than they did"
    return dict.fromkeys(waiting - met, why)


def _late(facts: Facts) -> dict[int, str]:
    """Name the ranks that others wait for, and that wait in nothing themselves."""
    found: dict[int, str] = {}
    for meeting in facts.meetings:
        late, label = _not_come(facts, meeting) if meeting.waiting else set(), where.label(meeting.group)
        is_most = len(late) > len(meeting.waiting)
        most = f", or {facts.job.called(meeting.waiting)} issued one call more" if is_most else ""
        for number in late - found.keys():
            count = facts.counts.get(meeting.group.name, {}).get(number, Count(device=False))
            text = f"has not issued call {meeting.sequence} of {label}"
            if count.enqueued >= 0:
                text = f"enqueued {count.enqueued} of {label}, its peers {meeting.sequence}"
            is_told = facts.job.ranks[number].stacks or not count.device
            first = "" if is_told else ", or in the first call of another group, which its stack alone tells"
            why = f"its host is late{_where(facts, number) or most}{first}"
            found[number] = f"{text}, and waits in no collective: {why}"
    for number in {other for others in facts.waits_for.values() for other in others} - found.keys():
        if number in facts.job.ranks and facts.job.ranks[number].recorded:
            found[number] = f"others wait for it, and it waits in no collective{_where(facts, number)}"
    return {number: why for number, why in found.items() if not _waits(facts, number)}


def _said(facts: Facts) -> dict[int, str]:
    """Name the ranks that lines blame: of others, or of those who say them, and then without the number."""
    said = {rank: one for one in reversed(statements.blamed(facts.job.statements)) for rank in one.culprits}
    its = {
        rank: re.sub(rf"\brank {rank}\b(: )?", lambda it: "" if it[1] else "it", one.words)
        for rank, one in said.items()
    }
    return {rank: its[rank] if one.by == rank else one.words for rank, one in said.items() if rank >= 0}


def _free_by_stacks(facts: Facts) -> dict[int, str]:
    """Name the ranks that are in no collective by their stacks, or by dumps where stacks alone tell who is in one.

    A host that waits for its device is in no collective either: several of these are at one place, which is no function
    that waits for something else. One that waits for its next call waits for its driver, and so for the others, unless
    all of these are in one call.
    """
    is_told = any(meeting.waiting for meeting in facts.meetings)
    ranks, paths = facts.job.ranks, facts.paths
    elsewhere = {
        number
        for number, rank in ranks.items()
        if not _waits(facts, number) and (not is_told if rank.recorded else rank.stacks)
    }
    places = Counter(paths.get(number, ()) for number in elsewhere)
    logged = {number for number, rank in ranks.items() if rank.waiting and not rank.recorded}
    others = {call for number, call in facts.calls.items() if not where.is_idle(ranks[number])}
    may_be_idle = bool(facts.unseen) or len(others) > 1
    # in a pipeline, where no log tells who waits, a stage that is alone at its place may wait for one that is dead
    beside = _FEW if facts.unseen and not logged and where.have_peers(facts.job) else 0
    free = {
        number
        for number in elsewhere
        if not (may_be_idle and where.is_idle(ranks[number]))
        if ranks[number].recorded or not _may_wait(facts, number, beside or places[paths.get(number, ())])
    }
    seen = facts.calls.keys() | logged | free
    is_half = 2 * len(free) == len(seen)
    if not (any(facts.calls.values()) or logged) or 2 * len(free) > len(seen):
        return {}
    if is_half and all(where.is_done(ranks[number]) for number in free):
        return {}  # they left out a call, or the others issued one more
    what = "its peers are in a collective, and no frame or dump shows it in one"
    return {it: f"{what}: it is {where.in_stack(ranks[it]).doing}" if ranks[it].stacks else what for it in free}


def _in_first(facts: Facts) -> dict[int, str]:
    """Name the ranks in a call that no dump has: NCCL makes the communicator in a group's first, and records later."""
    found = {}
    for number, rank in facts.job.ranks.items():
        counts = [own[number] for own in facts.counts.values() if number in own]
        is_idle = counts and all(one.device and one.completed >= one.enqueued for one in counts)
        if facts.calls.get(number) and is_idle and not rank.waiting and not where.ends_groups(rank):
            what = "waits on the host in the first collective of a group, whose communicator is being made"
            found[number] = f"{what}{_where(facts, number)}: another member of that group is elsewhere"
    return found


def _only_one(facts: Facts) -> dict[int, str]:
    """Name the only process that was seen, if it waits for what no other rank does, such as its data."""
    (number, rank), *others = facts.job.ranks.items() or [(0, None)]
    if others or rank is None or not rank.stacks or facts.job.statements or where.is_idle(rank) or where.is_done(rank):
        return {}
    stack = where.main(rank)  # which is whole if it goes back to its script, or py-spy calls it so
    is_whole = stack.idle is not None or any(frame.function == "<module>" for frame in stack.frames[-1:])
    is_held = where.waits_on_host(rank) and is_whole and not facts.calls[number]
    return {number: f"it waits for no other rank: it is {where.in_stack(rank).doing}"} if is_held else {}


def _not_come(facts: Facts, meeting: Meeting) -> set[int]:
    """Return the ranks that have not come to a collective, as far as their dumps, stacks or logs tell."""
    counts = facts.counts.get(meeting.group.name, {})
    known = {*meeting.absent, *(number for number, count in counts.items() if count.enqueued >= 0)}
    members = collectives.members(facts.job, meeting.group) & facts.paths.keys() - meeting.operations.keys()
    spied = {number for number in members if not facts.job.ranks[number].recorded}
    places = Counter(facts.paths.values() if spied else ())
    known |= {it for it in spied if facts.calls[it] or not _may_wait(facts, it, places[facts.paths[it]])}
    come = meeting.sequence or 0
    return {it for it in known - meeting.operations.keys() if counts.get(it, Count()).enqueued < come}


def _waits(facts: Facts, number: int) -> bool:
    return bool(facts.job.ranks[number].waiting or facts.calls.get(number))


def _where(facts: Facts, number: int) -> str:
    rank = facts.job.ranks[number]
    return f", {where.in_stack(rank).doing}" if rank.stacks else ""


def _stuck_together(facts: Facts) -> dict[int, str]:
    """Name the ranks, at most half, that have all come to an operation before anything else, and are not done with it.

    The device of one of them is stuck: one that has not begun it, where that is known.
    """
    if _disagree(facts):
        return {}
    free = set()
    for number in {it for root in facts.roots if len(root) == 1 for it in root & facts.heads.keys()}:
        pairs, group = facts.heads[number].pairs, facts.heads[number].operations[0].group
        # whether it is known of all that the device is to do first who else is to do it
        if len(pairs) == 1 or all(end.is_known for _, end in pairs) if pairs else group.members:
            free.add(number)
    waited = {other for others in facts.missing.values() for other in others}
    found = {}
    for number in free:
        others, one = facts.met[number] - {number}, facts.heads[number].operations[0]
        place = f"{one.kind} of {where.label(one.group)}"
        if others and others <= free:
            what = f"have come to {place}, and none is done"
            found[number] = f"it and {facts.job.called(others)} {what}: the device of one of them is stuck"
        elif not others and number in waited and (one.kind in PAIRED or len(one.group.members) == 1):
            found[number] = f"waits in {place} for nobody, and others wait for it: its device is stuck"
    if waiting := {number: why for number, why in found.items() if not facts.heads[number].begun}:
        found = waiting
    return found if 2 * len(found) <= len(collectives.everybody(facts.job)) else {}


def _in_what(facts: Facts) -> dict[int, str]:
    """Name the ranks that issued another call, size or type than most, as one collective of a group."""
    found: dict[int, str] = {}
    for meeting in facts.meetings:
        if meeting.differ:
            what = " and ".join(sorted({"operation": "call"}.get(name, name) for name in meeting.differ))
            values = " and ".join(_apart(name, meeting.operations.values()) for name in sorted(meeting.differ))
            sides = collectives.sides(one for one in meeting.operations.values() if one.kind)
            past = [number for number, one in meeting.operations.items() if one.done and not one.kind]
            why = f"disagrees on the {what} of collective {meeting.sequence} of {where.label(meeting.group)}: {values}"
            went_on = facts.job.called([number for number, one in meeting.operations.items() if one.done])
            if went_on and meeting.differ <= {"size", "dtype"}:
                why += f"; {went_on} went on, with numbers that are wrong from there"
            if meeting.differ == {"size"}:  # who is past it issued the least
                least = min(sides, key=lambda side: meeting.operations[side[0]].elements or 0)
                sides = [(*side, *past) if side == least else side for side in sides]
            named = _minority(sides, why)
            if len(named) == sum(map(len, sides)):
                if past:
                    continue  # nobody knows what that one issued: it may be one of the most
                if odd := _odd(facts, meeting, sides):
                    named = dict.fromkeys(odd, f"{why}; its peer did what other such groups do")
            found.update(named)
    return found


def _apart(name: str, operations: Collection[Operation]) -> str:
    """Return in what operations differ: ``128 against 192 elements``."""
    sizes = sorted({one.elements for one in operations if one.elements is not None})
    words = sorted({", ".join(one.dtypes or ()) if name == "dtype" else one.kind for one in operations} - {""})
    several = " against ".join(map(str, (sizes if name == "size" else words)[:_FEW]))
    return f"{several} elements" if name == "size" else several


def _odd(facts: Facts, meeting: Meeting, sides: Sequence[tuple[int, ...]]) -> list[int]:
    """Return the ranks of the sides that did what no other group of the description did, where some side did that."""
    place = meeting.group.description, meeting.sequence
    elsewhere = {
        (one.kind, _load(one))
        for rank in facts.job.ranks.values()
        for one in (*rank.last, *rank.waiting)
        if (one.group.description, one.sequence) == place and one.group.name != meeting.group.name
    }
    issued = {number: (one.kind, _load(one)) for number, one in meeting.operations.items()}
    odd = [side for side in sides if elsewhere.isdisjoint(issued[number] for number in side)]
    return [number for side in odd for number in side] if len(odd) < len(sides) else []


def _mismatched(facts: Facts) -> dict[int, str]:
    """Name the ends of sends and receives that meet in another size or type."""
    differ: dict[tuple[int, int], tuple[Operation, str]] = {}
    for number, head in facts.heads.items():
        for one, end in head.pairs:
            may_meet = end.is_known or not facts.job.ranks[number].moves
            if one.kind == "send" and end.operation and may_meet and end.rank in facts.met[number]:
                sent, received = _load(one), _load(end.operation)
                if sent != received:
                    why = f"rank {number} sends {sent}, and rank {end.rank} receives {received}"
                    differ[number, end.rank] = one, why
    return _of_ends(facts, differ)


def _unmatched(facts: Facts) -> dict[int, str]:
    """Name the ends of sends and receives that nobody meets, among ranks that wait for each other."""
    found: dict[int, str] = {}
    for core in facts.cycles:
        lacking = {
            (number, end.rank): (one, f"rank {number} waits in a {one.kind} for rank {end.rank}, which is elsewhere")
            for number in core & facts.heads.keys()
            for one, end in facts.heads[number].pairs
            if not end.done and end.rank in core - facts.met[number]
        }
        found.update(_of_ends(facts, lacking))
    return found


def _of_ends(facts: Facts, pairs: Mapping[tuple[int, int], tuple[Operation, str]]) -> dict[int, str]:
    """Return the ends of pairs that did otherwise than their like, or else the ends of most pairs."""
    ends = {number: pairs[pair] for pair in reversed([*pairs]) for number in pair}
    odd = unlike(facts.job, facts.heads, {it: one.group.description for pair, (one, _) in pairs.items() for it in pair})
    times = Counter(number for pair in pairs for number in pair)
    most = {number for number, many in times.items() if many == max(times.values())}
    named = odd.keys() if odd and odd.keys() != ends.keys() else most
    return {
        number: (f"sent and received differently from {odd[number]} similar ranks: " if number in odd else "")
        + f"in {where.label(ends[number][0].group)}, {ends[number][1]}"
        for number in named
    }


def _load(operation: Operation) -> str:
    return f"{operation.elements} {', '.join(operation.dtypes or ())}".rstrip()


def _in_number(facts: Facts) -> dict[int, str]:
    """Name those that came to a collective, or that did not and wait by stacks alone (gloo receives), if fewer."""
    found: dict[int, str] = {}
    for one in facts.meetings:
        if one.waiting and one.absent and not any(facts.job.ranks[number].waiting for number in one.absent):
            why = "it has issued more or fewer collectives than most, and waits in another one"
            found.update(_minority([one.waiting, one.absent], f"of {where.label(one.group)}, {why}"))
    return found


def _alone(facts: Facts) -> dict[int, str]:
    """Name the ranks that have done what none of their peers has."""
    ahead = {group: number for group in facts.counts if (number := _ahead_alone(facts, group)) is not None}
    return {
        number: f"{_done(facts, group, number)}, which none of its peers has: it issued less, or another call"
        for group, number in ahead.items()
    }


def _in_cycle(facts: Facts) -> dict[int, str]:
    """Name the rank of a cycle without which there would be none, or else all ranks that wait for each other."""
    found: dict[int, str] = {}
    ahead = {**facts.waits_for, **facts.missing}
    for core in facts.cycles:
        labels = {number: where.label(facts.job.ranks[number].waiting[0].group) for number in core}
        edges = {number: core & ahead[number] for number in core}
        crossing = [one for one in _ring(edges) if not _ring({it: to - {one} for it, to in edges.items() if it != one})]
        if len(crossing) == 1:
            why = f"waits in {labels[crossing[0]]}, and every rank that waits for others there waits for it in the end"
            found[crossing[0]] = why
        else:
            found |= {one: f"deadlocked in {labels[one]}: it waits for ranks that wait for it" for one in core}
    return found


def _ring(edges: Mapping[int, Collection[int]]) -> list[int]:
    """Return some ranks of which each waits for the next one, and the last for the first; none if there are none."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return [*error.args[1][1:]]
    return []


def _in_call(facts: Facts) -> dict[int, str]:
    """Name the ranks that are in another call than most, by their stacks, where that is all there is."""
    if any(rank.recorded for rank in facts.job.ranks.values()) or where.have_peers(facts.job):
        return {}
    if not all((*facts.calls.values(), *facts.paths.values())):  # gdb's stacks have no frame of Python
        return {}
    sides = sorted(_sides(facts.calls), key=len)
    if max(map(len, sides), default=0) * 2 < len(facts.calls) + len(facts.unseen):  # most may be elsewhere
        return {}
    if len(sides) > 2:  # others may wait for the fewest, as where they are a part of a group
        sides = [side for side in sides if len(side) in (len(sides[0]), len(sides[-1]))]
    found = _minority(sides, "is in another call than its peers: dumps would tell which of these is wrong")
    together = [one.operations.keys() for one in facts.meetings]
    return {
        number: why
        for number, why in found.items()
        if not any(number in ranks and not ranks.isdisjoint(sides[-1]) for ranks in together)
    }


def _other_stack(facts: Facts) -> dict[int, str]:
    """Name the ranks whose whole stack differs from that of most."""
    if where.have_peers(facts.job) or facts.unseen:
        return {}
    stacks = {number: path for number, path in facts.paths.items() if path}
    sides = _sides({number: tuple(place[:2] for place in path) for number, path in stacks.items()})
    if len(sides) < 2 or max(map(len, sides)) * 2 <= len(stacks):
        return {}
    is_mixed = len({bool(facts.calls[number]) for number in stacks}) > 1
    places = Counter(stacks.values())
    odd = _minority(sides, "")
    is_bare = len(odd) > 1 and not any(rank.recorded for rank in facts.job.ranks.values())
    open_ = ": dumps would tell which of these only wait" if is_bare else ""
    return {
        number: f"its stack differs from that of its peers{_where(facts, number)}{open_}"
        for number in odd
        if not ((rank := facts.job.ranks[number]).waiting or where.is_idle(rank))
        if not (places[stacks[number]] > 1 and where.waits_for_device(rank))
        if not (is_mixed and _may_wait(facts, number, places[stacks[number]]))
    }


def _may_wait(facts: Facts, number: int, beside: int) -> bool:
    """Return whether a rank may wait by its stack: in a call for that, where one waits, or beside others on no CPU."""
    rank = facts.job.ranks[number]
    if facts.calls[number] or where.waits_for_device(rank):
        return True
    if where.waits_on_host(rank) or where.moved(rank):
        return False
    return number in facts.as_waiting or (beside > 1 and not where.is_busy(rank))


def _sides(keys: Mapping[int, Hashable]) -> list[tuple[int, ...]]:
    """Return the ranks that have one key, for each key."""
    sides: dict[Hashable, list[int]] = defaultdict(list)
    for number, key in sorted(keys.items()):
        sides[key].append(number)
    return [tuple(side) for side in sides.values()]


def _minority(sides: Sequence[tuple[int, ...]], why: str) -> dict[int, str]:
    """Return all ranks but those of the largest side; all of them, if several are as large."""
    most = max(map(len, sides), default=0)
    largest = [side for side in sides if len(side) == most]
    if len(largest) > 1:
        why = f"{why}; no side has more ranks, so all are suspect"
        return dict.fromkeys((number for side in sides for number in side), why)
    return {number: why for side in sides if side != largest[0] for number in side}


RULES: Sequence[tuple[str, Callable[[Facts], dict[int, str]]]] = (
    (FAILED, _failed),
    (SAID, _said),
    (DEVICE, _behind_on_device),
    (DEVICE, _not_begun),
    (SILENT, _stopped),
    (DISAGREES, _left_behind),
    (HOST, _late),
    (HOST, _free_by_stacks),
    (HOST, _in_first),
    (HOST, _only_one),
    (TOGETHER, _stuck_together),
    (DISAGREES, _in_what),
    (DISAGREES, _mismatched),
    (DISAGREES, _unmatched),
    (DISAGREES, _in_cycle),
    (SILENT, _silent),
    (DISAGREES, _in_number),
    (DISAGREES, _alone),
    (DISAGREES, _in_call),
    (HOST, _other_stack),
)
"""In this order; and the first that names a rank counts."""
