"""When each rank issued its last collectives, as its dump of the flight recorder has it."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from unhang import gate
from unhang.diagnose import intake, readers, recorder, stacks
from unhang.diagnose.evidence import Job, Rank

KEPT = 24
"""So many collectives of each rank are shown."""
_WORD = 100


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


class _Entry(NamedTuple):
    name: str
    group: str
    kind: str
    sequence: int
    p2p: bool
    created: int
    ended: int


def of(paths: Sequence[str], job: Job) -> dict[int, tuple[Moment, ...]]:
    """Return the last collectives of each rank of a job; the dumps of which the job consists are read once more."""
    ranks = {
        one.source.rpartition(": entry ")[0]: number
        for number, rank in job.ranks.items()
        for one in (*rank.last, *rank.waiting)
    }
    sizes = {file: size for file, size in intake.files(paths)[0].items() if file in ranks}
    answers = readers.answers(told_by, sizes)
    found = {ranks[file]: answer for file, answer in answers if isinstance(answer, list) and answer}
    return {rank: tuple(_moment(one, job.ranks[rank]) for one in found[rank]) for rank in sorted(found)}


def told_by(file: str) -> list[_Entry]:
    """Return the newest entries of a dump; none of another file. This runs in a process of its own."""
    try:
        with intake.opened(file) as stream:
            if not recorder.recognizes(stream.peek(1 << 16)):
                return []
            raw, _ = recorder.loaded(stacks.whole(stream)[0])
        entries = (_entry(one) for one in raw.get("entries", [])[-KEPT:] if isinstance(one, dict))
        return [one for one in entries if one]
    except (ValueError, EOFError, OSError, zlib.error, RecursionError):
        return []


def _entry(raw: Mapping[str, Any]) -> _Entry | None:
    p2p = raw.get("is_p2p") is True
    group, sequence = raw.get("process_group"), raw.get("p2p_seq_id" if p2p else "collective_seq_id")
    times = [raw.get(key) for key in ("time_created_ns", "time_discovered_completed_ns")]
    created, ended = (one if isinstance(one, int) and 0 <= one < 1 << 63 else 0 for one in times)
    if not created or not isinstance(group, (list, tuple)) or not group or not isinstance(sequence, int):
        return None
    title = str(raw.get("profiling_name")).partition(":")[2]
    label = str(group[-1]) if group[-1] not in ("", "undefined") else f"group {group[0]}"
    return _Entry(str(group[0])[:_WORD], label[:_WORD], title[:_WORD], sequence, p2p, created, ended)


def _moment(entry: _Entry, rank: Rank) -> Moment:
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
