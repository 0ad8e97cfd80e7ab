"""Plays the operations that all ranks issue against each other: one that never completes may be a hang. Pure.

As in NCCL and gloo, the n-th operation that a rank issues on a group matches the n-th of every other member. There are
two readings of a job, because backends differ. By the strict one, an operation completes when all members have issued
it with equal signatures, and all ranks must have made a group before one goes on. By the lenient one, messages are
buffered, so that a rank only waits for what it receives; operations that do not match complete; and no rank waits for
others to make a group. A job that completes strictly passes. A job that does not even complete leniently hangs.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from .operations import Finding, Made, Operation, Raised, Unseen, ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .operations import Step

_MADE = "the groups made"
_FROM_ROOT = frozenset({"broadcast", "scatter", "broadcast_object_list", "scatter_object_list"})
_TO_ROOT = frozenset({"reduce", "gather"})
_FROM_NOBODY = frozenset({"send", "new_group"})


class _Rank:
    """The progress of one rank."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = steps
        self.position = 0
        self.issued: list[tuple[str, int]] = []
        self.counts: dict[str, int] = {}
        self.waits_for: tuple[str, int] | None = None
        self.needs: set[int] = set()
        self.made: list[tuple[int, ...]] = []


class _Player:
    def __init__(self, programs: Mapping[int, Sequence[Step]], is_lenient: bool = False) -> None:
        self.is_lenient = is_lenient
        self.ranks = {rank: _Rank(steps) for rank, steps in programs.items()}
        self.slots: dict[tuple[str, int], dict[int, Operation]] = {}
        self.complete: set[tuple[str, int]] = set()
        self.mismatched: dict[tuple[str, int], str] = {}
        self.fewest = 0  # groups that every rank has made
        self.ready = deque(self.ranks)

    def play(self) -> None:
        while self.ready:
            self._advance(self.ready.popleft())

    def _advance(self, number: int) -> None:
        rank = self.ranks[number]
        rank.waits_for = None
        while rank.position < len(rank.steps):
            step = rank.steps[rank.position]
            if isinstance(step, (Raised, Unseen)):
                return
            rank.position += 1
            if isinstance(step, Made):
                self._make(rank, step)
                if not self.is_lenient and len(rank.made) > self.fewest:
                    rank.waits_for = _MADE, len(rank.made)
                    return
                continue
            key = self._issue(number, rank, step) if isinstance(step, Operation) else rank.issued[step.operation]
            waits = not isinstance(step, Operation) or step.waits or (step.in_order and not self.is_lenient)
            if waits and not self._passes(number, rank, key):
                rank.waits_for = key
                return

    def _make(self, rank: _Rank, step: Made) -> None:
        was_fewest = len(rank.made) == self.fewest
        rank.made += step.groups
        if was_fewest:
            self.fewest = min(len(other.made) for other in self.ranks.values())
            for number, other in self.ranks.items():
                if other is not rank and other.waits_for and other.waits_for[0] == _MADE:
                    if other.waits_for[1] <= self.fewest:
                        other.waits_for = None
                        self.ready.append(number)

    def _issue(self, number: int, rank: _Rank, step: Operation) -> tuple[str, int]:
        place = rank.counts.get(step.group, 0)
        rank.counts[step.group] = place + 1
        key = step.group, place
        rank.issued.append(key)
        slot = self.slots.setdefault(key, {})
        slot[number] = step
        if self.is_lenient:
            for other in slot:
                waiting = self.ranks[other]
                if waiting.waits_for == key:
                    waiting.needs.discard(number)
                    if not waiting.needs:
                        waiting.waits_for = None
                        self.ready.append(other)
        elif len(slot) == len(self._members(step)):
            why = disagreement(slot)
            if why:
                self.mismatched[key] = why
            else:
                self.complete.add(key)
                self.ready.extend(other for other in slot if other != number and self.ranks[other].waits_for == key)
        return key

    def _passes(self, number: int, rank: _Rank, key: tuple[str, int]) -> bool:
        if not self.is_lenient:
            return key in self.complete
        slot = self.slots[key]
        rank.needs = {member for member in _receives_from(number, slot[number]) if member in self.ranks} - slot.keys()
        return not rank.needs

    def _members(self, step: Operation) -> list[int]:
        return [member for member in step.ranks if member in self.ranks]

    def findings(self) -> Iterable[Finding]:
        for number, rank in self.ranks.items():
            step = rank.steps[rank.position] if rank.position < len(rank.steps) else None
            if isinstance(step, Raised) and rank.waits_for is None:
                yield Finding("raised", step.error, (), ((number, f"at {step.site}"),), ())
        for number, rank in self.ranks.items():  # wherever it is: what a rank does after it is unknown
            if rank.steps and isinstance(last := rank.steps[-1], Unseen):
                yield Finding("unseen", last.what, (), ((number, f"at {last.site}"),), ())
        yield from self._groups()
        for key, slot in self.slots.items():
            if key not in self.complete:
                yield self._unfinished(key, slot)

    def _groups(self) -> Iterable[Finding]:
        """Yield how ranks differ in the groups that they make."""
        everyone = tuple(self.ranks)
        if not everyone:
            return
        most = max(self.ranks, key=lambda number: len(self.ranks[number].made))
        longest = self.ranks[most].made
        behind = []
        for number, rank in self.ranks.items():
            if rank.made != longest[: len(rank.made)]:
                pairs = enumerate(zip(rank.made, longest))
                place, (ours, theirs) = next((place, pair) for place, pair in pairs if pair[0] != pair[1])
                what = f"new_group, the {place + 1}. group: a group of {ranges(theirs)}, and of {ranges(ours)}"
                sides = (most, f"at {self._made_at(most)}"), (number, f"at {self._made_at(number)}")
                yield Finding("mismatch", f"{what}: not all ranks make the same groups", everyone, *zip(sides))
                return
            if len(rank.made) < len(longest):
                behind.append(number)
        if behind:
            what = f"new_group, the {len(self.ranks[behind[0]].made) + 1}. group"
            kind = "missing" if any(self._is_over(number) for number in behind) else "deadlock"
            ahead = tuple((number, f"at {self._made_at(number)}") for number in everyone if number not in behind)
            yield Finding(kind, what, everyone, ahead, tuple((number, self._where(number)) for number in behind))

    def _made_at(self, number: int) -> str:
        """Return where a rank called ``new_group`` last."""
        rank = self.ranks[number]
        made = [step for step in rank.steps[: rank.position] if isinstance(step, Made)]
        return made[-1].site if made else "?"

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
        if rank.waits_for is not None and rank.waits_for[0] == _MADE:
            return f"waits in new_group at {self._made_at(number)}"
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
    order = ("raised", "mismatch", "unseen", "missing", "deadlock", "unfinished")
    return sorted(player.findings(), key=lambda finding: order.index(finding.kind))


def is_stuck(programs: Mapping[int, Sequence[Step]]) -> bool:
    """Return whether a rank waits for ever, even where messages are buffered and what does not match completes."""
    player = _Player(programs, is_lenient=True)
    player.play()
    return any(rank.waits_for is not None for rank in player.ranks.values())


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
                elements = f"{sent[receiver]} element{'' if sent[receiver] == 1 else 's'}"
                sends = f"rank {sender} sends {elements} to rank {first.ranks[receiver]}"
                return f"{sends}, which expects {wanted[receiver]}"
    return ""


def _receives_from(number: int, operation: Operation) -> Iterable[int]:
    """Return the members without which this one cannot go on, however much is buffered."""
    kind, members = operation.kind, operation.ranks
    if kind in _FROM_NOBODY or operation.signature.startswith("0 x "):
        return ()
    if kind == "recv":
        return members[:1]
    if kind in _FROM_ROOT or kind in _TO_ROOT:
        if kind in _TO_ROOT:
            return members if number == operation.root else ()
        return () if number == operation.root else (operation.root,)
    if operation.splits is not None:
        return [member for member, count in zip(members, operation.splits[1]) if count]
    return members


def _half(operation: Operation) -> tuple[str, tuple[int, ...], str]:
    """Return what a member issued. The two halves of a point-to-point operation differ."""
    return operation.kind, operation.ranks, operation.signature


def _alike(operation: Operation) -> tuple[str, str]:
    """Return what must be equal on all members. The two halves of a point-to-point operation are one kind."""
    kind = "send and receive" if operation.kind in ("send", "recv") else operation.kind
    return kind, operation.signature


def _entered(slot: Mapping[int, Operation]) -> tuple[tuple[int, str], ...]:
    return tuple((rank, f"at {operation.site}") for rank, operation in sorted(slot.items()))
