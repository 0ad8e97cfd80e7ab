"""Plays the operations that all ranks issue against each other: one that never completes is a hang. Pure.

As in NCCL and gloo, the n-th operation that a rank issues on a group matches the n-th of every other member. It
completes when all members have issued it with equal signatures. A rank passes an operation that it does not wait for,
and stops at one that it waits for until that completes. So a program that passes only because messages are buffered is
reported too.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from .operations import Finding, Operation, Raised, ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .operations import Step


class _Rank:
    """The progress of one rank."""

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
        shown = f"{first.kind} ({first.shown})"
        why = self.mismatched.get(key) or disagreement(slot)
        if why:
            alike = {rank for rank, other in slot.items() if _half(other) == _half(first)}
            others = [(rank, f"{other.kind} ({other.shown}) at {other.site}") for rank, other in slot.items()]
            apart = tuple(pair for pair in others if pair[0] not in alike)
            entered = _entered({rank: slot[rank] for rank in alike})
            return Finding("mismatch", f"{shown}, {why}", first.ranks, entered, apart or tuple(others))
        absent = [(member, self._where(member)) for member in self._members(first) if member not in slot]
        kinds = {self._is_over(member) for member, _ in absent}
        waited = any(self.ranks[rank].waits_for == key for rank in slot)
        kind = "missing" if True in kinds else "deadlock" if waited else "unfinished"
        return Finding(kind, shown, first.ranks, _entered(slot), tuple(absent))

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
    """Return why the job of these ranks does not complete, nearest cause first; empty where it does.

    ``programs`` holds what each rank issues and waits for, in order. Group members that are not in it are ignored.
    """
    player = _Player(programs)
    player.play()
    order = ("raised", "mismatch", "missing", "deadlock", "unfinished")
    return sorted(player.findings(), key=lambda finding: order.index(finding.kind))


def disagreement(slot: Mapping[int, Operation]) -> str:
    """Return how the members that issued one operation disagree; empty where they agree."""
    operations = list(slot.values())
    first = operations[0]
    for other in operations[1:]:
        if other.ranks != first.ranks:
            return f"a group of {ranges(first.ranks)}, and of {ranges(other.ranks)}: not all ranks make the same groups"
        if _alike(other) != _alike(first):
            differ = _alike(other)[0] != _alike(first)[0]
            return "kinds differ" if differ else f"{first.signature} and {other.signature}"
    if first.splits is not None and len(slot) == len(first.ranks):
        both = [operation.splits or ((), ()) for operation in map(slot.__getitem__, first.ranks)]
        wanted_of = list(zip(*(wanted for _, wanted in both)))
        for sender, (sent, _), wanted in zip(first.ranks, both, wanted_of):
            if sent != wanted:
                receiver = next(place for place, pair in enumerate(zip(sent, wanted)) if pair[0] != pair[1])
                sends = f"rank {sender} sends {sent[receiver]} elements to rank {first.ranks[receiver]}"
                return f"{sends}, which expects {wanted[receiver]}"
    return ""


def _half(operation: Operation) -> tuple[str, tuple[int, ...], str]:
    """Return what a member issued. The two halves of a point-to-point operation differ."""
    return operation.kind, operation.ranks, operation.signature


def _alike(operation: Operation) -> tuple[str, str]:
    """Return what must be equal on all members. The two halves of a point-to-point operation are one kind."""
    kind = "send and receive" if operation.kind in ("send", "recv") else operation.kind
    return kind, operation.signature


def _entered(slot: Mapping[int, Operation]) -> tuple[tuple[int, str], ...]:
    return tuple((rank, f"at {operation.site}") for rank, operation in sorted(slot.items()))
