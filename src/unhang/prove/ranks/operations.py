"""The terms of a schedule: what ranks issue and wait for, and what is found wrong with it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Operation(NamedTuple):
    """One operation that a rank issues. A send or receive is an operation of two ranks on its own channel."""

    kind: str
    group: str
    """The name of the communicator or channel, equal on all its ranks."""
    ranks: tuple[int, ...]
    signature: str
    """What must be equal on all members: dtype, number of elements, root."""
    shown: str
    """Shape and dtype on this rank, to be printed."""
    site: str
    """The call site: file, line and function."""
    waits: bool = True
    """Whether the rank waits for it immediately."""
    splits: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    """For an all-to-all or an all-gather into a list: the elements that go to each member, and that come from each."""
    root: int = -1
    """The rank that sends to all, or receives from all; -1 where there is none."""
    in_order: bool = False
    """Whether the rank may have to wait for it at once: NCCL keeps sends and receives in order, except in a batch."""


class Wait(NamedTuple):
    """A rank waits for the ``operation``-th operation that it issued, counted from 0."""

    operation: int
    site: str


class Made(NamedTuple):
    """A rank calls ``new_group`` some times in a row. All ranks must make all groups, in one order."""

    groups: tuple[tuple[int, ...], ...]
    """The ranks of each group."""
    site: str
    """The last call site."""


class Raised(NamedTuple):
    """A rank ends with an error."""

    error: str
    site: str


class Unseen(NamedTuple):
    """A rank does what a schedule cannot show. What it does from here on is unknown."""

    what: str
    site: str


Step = Operation | Wait | Made | Raised | Unseen


class Unjudged(BaseException):
    """A job does what a schedule cannot show. A BaseException, because a job must not catch a limit of the harness."""


class Finding(NamedTuple):
    """Why a job does not complete."""

    kind: str
    """``unseen``, ``raised``, ``mismatch``, ``missing`` (a member ended without it), ``deadlock`` (all wait for each
    other), or ``unfinished`` (it never completes, but no rank waits for it)."""
    operation: str
    group: tuple[int, ...]
    entered: tuple[tuple[int, str], ...]
    """The members that issued it, and where."""
    absent: tuple[tuple[int, str], ...]
    """The members that did not, or issued another operation, and where they are instead."""

    def text(self) -> str:
        """Return one line: the group, and the ranks and call sites on both sides."""
        if self.kind in ("raised", "unseen"):
            return f"{self.kind}: {self.operation} on {_sides(self.entered)}".replace("raised:", "raised", 1)
        where = f"{self.operation} on group {ranges(self.group)}"
        return f"{self.kind}: {where}: " + "; ".join(_sides(side) for side in (self.entered, self.absent) if side)


def ranges(ranks: Iterable[int]) -> str:
    """Return rank numbers such as ``0-3, 8``; with a stride where there is one: ``0-12 by 4``."""
    parts: list[str] = []
    todo = sorted(ranks)
    while todo:
        step = todo[1] - todo[0] if len(todo) > 1 else 1
        length = 1
        while length < len(todo) and todo[length] - todo[length - 1] == step:
            length += 1
        if length < 3:
            length = 1
        run, todo = todo[:length], todo[length:]
        parts.append(f"{run[0]}-{run[-1]}" + ("" if step == 1 else f" by {step}") if length > 1 else str(run[0]))
    return ", ".join(parts)


def _sides(members: Sequence[tuple[int, str]]) -> str:
    """Return the ranks at each place."""
    places: dict[str, list[int]] = {}
    for rank, place in members:
        places.setdefault(place, []).append(rank)
    parts = [f"rank {ranges(numbers)} {place}" for place, numbers in places.items()]
    return "; ".join(parts[:4]) + (f"; and {len(parts) - 4} more" if len(parts) > 4 else "")
