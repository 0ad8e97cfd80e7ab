"""Plays the ranks of a job on streams as NCCL's, until nobody goes on: who has issued what, who waits, who is gone.

A rank issues its operations and goes on; its device runs them one after the other, whatever their group, as where each
waits for what was computed before. An operation is done once all ranks of its group have begun it, and agree on it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple

ISSUE, STAY, FAIL, DIE, END, STICK, SYNC = "issue", "stay", "fail", "die", "end", "stick", "sync"
_EVEN = ("all_reduce", "_all_gather_base", "_reduce_scatter_base", "broadcast")
Stack = tuple[str, ...]  # frames, the innermost first: ``file::function``


class Step(NamedTuple):
    """What a rank does next."""

    do: str
    at: Stack = ()
    group: str = ""  # the description of one of its groups
    kind: str = ""
    sizes: tuple[int, ...] = ()
    dtype: str = "Float"
    waits: bool = False  # whether the host waits until it is done
    peer: int = -1
    text: str = ""  # of FAIL: the error. Of DIE: the exit code.
    after: int = 0
    """Of STICK: the device goes on for so many operations, of which nobody is told, and stands still then."""
    idle: bool = True
    batch: tuple[Step, ...] = ()  # the sends and receives that begin at once

    @property
    def pairs(self) -> tuple[Step, ...]:
        """The operations between two ranks that it has; none of a collective."""
        return self.batch or ((self,) if self.peer >= 0 else ())


class Work(NamedTuple):
    """An operation that a rank has issued."""

    step: Step
    group: str  # the name of the group
    number: int  # its number in the group: of collectives, or of operations between two ranks
    order: int  # how many operations the rank has issued in the group with it; those of a batch count each


class End(NamedTuple):
    """Where a rank is when nobody goes on."""

    works: tuple[Work, ...]
    done: int  # so many of them are done, as far as the rank is told
    stuck: bool  # whether its device stands still; else it is in the next one
    last: Step | None  # what it does: it waits, stays, has failed or died. None if it has come to its end.


Groups = Mapping[str, Sequence[Sequence[int]]]  # the members of each group, by description


def play(world: int, groups: Groups, body: Callable[[int], Iterable[Step]]) -> tuple[End, ...]:
    """Run the ranks of a job, and return where each is in the end."""
    places = {
        (name, rank): (str(100 * at + part) if name != "default_pg" else "0", tuple(members))
        for at, (name, parts) in enumerate(groups.items())
        for part, members in enumerate(parts)
        for rank in members
    }
    hosts = [_Host(rank, iter(body(rank)), places) for rank in range(world)]
    while sum(host.run() for host in hosts) + _complete(hosts):
        pass
    return tuple(End(tuple(host.works), min(host.done, host.told), host.until < 1 << 60, host.last) for host in hosts)


class _Host:
    def __init__(self, rank: int, steps: Iterator[Step], places: Mapping[tuple[str, int], tuple[str, tuple[int, ...]]]):
        self.rank, self.works, self.done = rank, list[Work](), 0
        self.met = set[int]()  # which members of the batch at hand have met their other ends
        self.told = self.until = 1 << 60
        self.last: Step | None = None
        self._steps, self._places, self._counts, self._over = steps, places, defaultdict[str, int](int), False

    def run(self) -> int:
        """Go on as far as the host can; return how many steps that were."""
        taken = 0
        while not self._over and not (self.last and self.done < len(self.works)):
            self.last, step = None, next(self._steps, None)
            taken += 1
            if step is None or step.do == END:
                self._over = True
            elif step.do == STICK:
                self.told, self.until = len(self.works), len(self.works) + step.after
            elif step.do in (STAY, FAIL, DIE):
                self.last, self._over = step, True
            else:
                if step.do == ISSUE:
                    name = self._places[step.group, self.rank][0]
                    self._counts[key := f"{name}{bool(step.pairs)}"] += 1
                    self._counts[name] += len(step.batch) or 1
                    self.works.append(Work(step, name, self._counts[key], self._counts[name]))
                if step.waits or step.do == SYNC:
                    self.last = step
        return taken

    def next(self) -> Work | None:
        """Return what the device runs."""
        gone = self.last is not None and self.last.do in (FAIL, DIE)
        return None if gone or self.done == min(len(self.works), self.until) else self.works[self.done]

    def members(self, work: Work) -> Sequence[int]:
        return self._places[work.step.group, self.rank][1]

    def complete(self) -> None:
        """Be done with what the device runs."""
        self.done += 1
        self.met.clear()

    def meet(self, other: _Host) -> int:
        """Let what the device runs meet what that of another rank runs; return how many pairs that were."""
        mine, theirs, before = self.next(), other.next(), len(self.met)
        for at, one in enumerate(mine.step.pairs if mine and theirs and mine.group == theirs.group else ()):
            for there, it in enumerate(theirs.step.pairs if at not in self.met and theirs else ()):
                is_free = there not in other.met and (other is not self or at != there)
                if is_free and (one.peer, it.peer) == (other.rank, self.rank) and one.kind != it.kind:
                    if (one.sizes, one.dtype) == (it.sizes, it.dtype):
                        self.met.add(at)
                        other.met.add(there)
                    break
        return len(self.met) - before


def _complete(hosts: Sequence[_Host]) -> int:
    """Complete what all of its ranks have begun alike; return how many operations that were."""
    completed = 0
    for host in hosts:
        if (work := host.next()) is None:
            continue
        if work.step.pairs:
            completed += sum(host.meet(hosts[rank]) for rank in {one.peer for one in work.step.pairs})
            continue
        members = host.members(work)
        others = [hosts[rank].next() for rank in members]
        if min(members) == host.rank and all(one and _meets(one, work) for one in others):
            for rank in members:
                hosts[rank].complete()
            completed += 1
    for host in hosts:
        if (work := host.next()) and work.step.pairs and len(host.met) == len(work.step.pairs):
            host.complete()
            completed += 1
    return completed


def _meets(one: Work, other: Work) -> bool:
    same = (one.group, one.number, one.step.kind) == (other.group, other.number, other.step.kind)
    alike = (prod(one.step.sizes), one.step.dtype) == (prod(other.step.sizes), other.step.dtype)
    return same and (alike or one.step.kind not in _EVEN)
