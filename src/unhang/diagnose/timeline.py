"""When each rank issued its last collectives, as its dump of the flight recorder has it."""

from __future__ import annotations

from typing import NamedTuple

from unhang import gate
from unhang.diagnose.evidence import Job, Rank, Recent


class Moment(NamedTuple):
    """One collective of a rank."""

    group: str
    """The group's description, or its name."""
    what: str
    """`all_reduce 12`."""
    created: int
    """When the host issued it, in nanoseconds."""
    ended: int
    """When it was seen to be done; 0 if that is not known."""
    waits: bool
    """Whether it is not done."""


def of(job: Job) -> dict[int, tuple[Moment, ...]]:
    """Return the last collectives of each rank of a job that has dumped some."""
    return {
        number: tuple(_moment(one, rank) for one in rank.recent) for number, rank in job.ranks.items() if rank.recent
    }


def _moment(entry: Recent, rank: Rank) -> Moment:
    """Return an entry with whether it is not done: what follows such a one in its group is not done either."""
    own = [one for one in rank.waiting if one.group.name.partition("/")[0] == entry.name and one.sequence is not None]
    numbers = {one.sequence for one in own if (one.kind in ("send", "recv")) == entry.p2p}
    waits = entry.sequence in numbers or (
        not entry.p2p and any(number is not None and entry.sequence >= number for number in numbers)
    )
    what = gate.line(f"{entry.kind or 'collective'} {entry.sequence}")
    return Moment(
        gate.line(entry.group), what, entry.created, max(entry.ended, entry.created) if entry.ended else 0, waits
    )
