"""Plays what every rank of a job issues against each other: an operation that never completes is a hang. Pure.

An operation is matched by its place: the n-th that a rank issues on a group is the n-th of every member, as NCCL and
gloo have it. It completes when all members have issued it, and all alike. A rank goes on past an operation that it
does not wait for, and stops at one that it waits for until that completes. So a program that only buffering lets pass
is reported: whether it passes is not in its own hands.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class Operation(NamedTuple):
    """One operation that a rank issues. Point-to-point is an operation of two ranks, on a channel of its own."""

    kind: str
    group: str
    """The communicator's (or channel's) name, the same on all its ranks."""
    ranks: tuple[int, ...]
    signature: str
    """What all members must say alike: dtype, number of elements, root."""
    shown: str
    """The same for a reader: shape and dtype, as this rank has them."""
    site: str
    """Where it is called: file, line and function."""
    waits: bool = True
    """Whether the rank waits for it at once."""
    splits: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    """For an all-to-all: how many elements go to each member, and come from each."""


class Wait(NamedTuple):
    """A rank waits for an operation of its own: the ``operation``-th that it issued, counted from 0."""

    operation: int
    site: str


class Raised(NamedTuple):
    """A rank ends with an error."""

    error: str
    site: str


Step = Operation | Wait | Raised


class Finding(NamedTuple):
    """Why a job does not come to its end."""

    kind: str
    """``raised``, ``mismatch``, ``missing`` (a member has ended without it), ``deadlock`` (all wait for each other), or
    ``unfinished`` (nobody waits for it, and it never completes)."""
    operation: str
    group: tuple[int, ...]
    entered: tuple[tuple[int, str], ...]
    """The members that issued it, and where."""
    absent: tuple[tuple[int, str], ...]
    """The members that did not, or not alike, and where each of them is instead."""

    def text(self) -> str:
        """One line: the group, and the ranks and call sites on both sides."""
        if self.kind == "raised":
            return f"raised {self.operation} on {_sides(self.entered)}"
        where = f"{self.operation} on group {ranges(self.group)}"
        return f"{self.kind}: {where}: {_sides(self.entered)}; {_sides(self.absent)}"


class _Rank:
    """How far one rank has come."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = steps
        self.position = 0
        self.issued: list[tuple[str, int]] = []
        self.counts: dict[str, int] = {}
        self.waits_for: tuple[str, int] | None = None


class _Player:
    def __init__(self, programs: Mapping[int, Sequence[Step]]) -> None:
        self.ranks = {rank: _Rank(steps) for rank, steps in programs.items()}
        self.slots: dict[tuple[str, int], dict[int, Operation]] = {}
        self.complete: set[tuple[str, int]] = set()
        self.mismatched: dict[tuple[str, int], str] = {}
        self.ready = deque(self.ranks)

    def play(self) -> None:
        while self.ready:
            self._advance(self.ready.popleft())

    def _advance(self, number: int) -> None:
        rank = self.ranks[number]
        rank.waits_for = None
        while rank.position < len(rank.steps):
            step = rank.steps[rank.position]
            if isinstance(step, Raised):
                return
            if isinstance(step, Operation):
                key = self._issue(number, rank, step)
                blocks = step.waits
            else:
                key, blocks = rank.issued[step.operation], True
            rank.position += 1
            if blocks and key not in self.complete:
                rank.waits_for = key
                return

    def _issue(self, number: int, rank: _Rank, step: Operation) -> tuple[str, int]:
        place = rank.counts.get(step.group, 0)
        rank.counts[step.group] = place + 1
        key = step.group, place
        rank.issued.append(key)
        slot = self.slots.setdefault(key, {})
        slot[number] = step
        if len(slot) == len(self._members(step)):
            why = disagreement(slot)
            if why:
                self.mismatched[key] = why
            else:
                self.complete.add(key)
                self.ready.extend(other for other in slot if other != number and self.ranks[other].waits_for == key)
        return key

    def _members(self, step: Operation) -> list[int]:
        return [member for member in step.ranks if member in self.ranks]

    def findings(self) -> Iterable[Finding]:
        for number, rank in self.ranks.items():
            step = rank.steps[rank.position] if rank.position < len(rank.steps) else None
            if isinstance(step, Raised):
                yield Finding("raised", step.error, (), ((number, f"at {step.site}"),), ())
        for key, slot in self.slots.items():
            if key not in self.complete:
                yield self._unfinished(key, slot)

    def _unfinished(self, key: tuple[str, int], slot: Mapping[int, Operation]) -> Finding:
        first = next(iter(slot.values()))
        told = f"{first.kind} ({first.shown})"
        why = self.mismatched.get(key) or disagreement(slot)
        if why:
            alike = {rank for rank, other in slot.items() if (other.kind, other.signature) == _alike(first)}
            others = [(rank, f"{other.kind} ({other.shown}) at {other.site}") for rank, other in slot.items()]
            apart = tuple(pair for pair in others if pair[0] not in alike)
            entered = _entered({rank: slot[rank] for rank in alike})
            return Finding("mismatch", f"{told}, {why}", first.ranks, entered, apart or tuple(others))
        absent = [(member, self._where(member)) for member in self._members(first) if member not in slot]
        kinds = {self._is_over(member) for member, _ in absent}
        waited = any(self.ranks[rank].waits_for == key for rank in slot)
        kind = "missing" if True in kinds else "deadlock" if waited else "unfinished"
        return Finding(kind, told, first.ranks, _entered(slot), tuple(absent))

    def _is_over(self, number: int) -> bool:
        return self.ranks[number].waits_for is None

    def _where(self, number: int) -> str:
        rank = self.ranks[number]
        if rank.waits_for is not None:
            other = self.slots[rank.waits_for][number]
            return f"waits in {other.kind} on group {ranges(other.ranks)} at {other.site}"
        if rank.position < len(rank.steps):
            step = rank.steps[rank.position]
            return f"raised {step.error}" if isinstance(step, Raised) else "is behind"
        return "ended without it"


def play(programs: Mapping[int, Sequence[Step]]) -> list[Finding]:
    """Why the job of these ranks does not come to its end, nearest cause first; empty where it does.

    ``programs`` holds what each rank issues and waits for, in order. Members that are not in it count as if they did
    not exist.
    """
    player = _Player(programs)
    player.play()
    order = ("raised", "mismatch", "missing", "deadlock", "unfinished")
    return sorted(player.findings(), key=lambda finding: order.index(finding.kind))


def disagreement(slot: Mapping[int, Operation]) -> str:
    """What the members that issued one operation say differently; empty where they agree."""
    operations = list(slot.values())
    first = operations[0]
    for other in operations[1:]:
        if _alike(other) != _alike(first):
            differ = _alike(other)[0] != _alike(first)[0]
            return "kinds differ" if differ else f"{first.signature} and {other.signature}"
    if first.splits is not None and len(slot) == len(first.ranks):
        for sender, operation in slot.items():
            for receiver, other in slot.items():
                assert operation.splits is not None
                assert other.splits is not None
                sent = operation.splits[0][first.ranks.index(receiver)]
                wanted = other.splits[1][first.ranks.index(sender)]
                if sent != wanted:
                    return f"rank {sender} sends {sent} elements to rank {receiver}, which wants {wanted}"
    return ""


def _alike(operation: Operation) -> tuple[str, str]:
    """What must be equal on all members: the two halves of a point-to-point operation are one kind."""
    kind = "send and receive" if operation.kind in ("send", "recv") else operation.kind
    return kind, operation.signature


def ranges(ranks: Iterable[int]) -> str:
    """Rank numbers for a reader: ``0-3, 8``; with a stride where there is one: ``0-12 by 4``."""
    told: list[str] = []
    todo = sorted(ranks)
    while todo:
        step = todo[1] - todo[0] if len(todo) > 1 else 1
        length = 1
        while length < len(todo) and todo[length] - todo[length - 1] == step:
            length += 1
        if length < 3:
            length = 1
        run, todo = todo[:length], todo[length:]
        told.append(f"{run[0]}-{run[-1]}" + ("" if step == 1 else f" by {step}") if length > 1 else str(run[0]))
    return ", ".join(told)


def _entered(slot: Mapping[int, Operation]) -> tuple[tuple[int, str], ...]:
    return tuple((rank, f"at {operation.site}") for rank, operation in sorted(slot.items()))


def _sides(members: Sequence[tuple[int, str]]) -> str:
    """Who is where, the ranks of one place together."""
    places: dict[str, list[int]] = {}
    for rank, place in members:
        places.setdefault(place, []).append(rank)
    told = [f"rank {ranges(numbers)} {place}" for place, numbers in places.items()]
    return "; ".join(told[:4]) + (f"; and {len(told) - 4} more" if len(told) > 4 else "")
