"""What the ranks of a job issue and wait for, and what is found wrong with it: the terms of a schedule. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


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
    """For an all-to-all, or an all-gather into a list: how many elements go to each member, and come from each."""


class Wait(NamedTuple):
    """A rank waits for an operation of its own: the ``operation``-th that it issued, counted from 0."""

    operation: int
    site: str


class Raised(NamedTuple):
    """A rank ends with an error."""

    error: str
    site: str


Step = Operation | Wait | Raised


class Unjudged(BaseException):
    """A job does what no schedule tells: the fault of the harness, so that no job may catch it as one of its own."""


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
        return f"{self.kind}: {where}: " + "; ".join(_sides(side) for side in (self.entered, self.absent) if side)


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


def _sides(members: Sequence[tuple[int, str]]) -> str:
    """Who is where, the ranks of one place together."""
    places: dict[str, list[int]] = {}
    for rank, place in members:
        places.setdefault(place, []).append(rank)
    told = [f"rank {ranges(numbers)} {place}" for place, numbers in places.items()]
    return "; ".join(told[:4]) + (f"; and {len(told) - 4} more" if len(told) > 4 else "")
