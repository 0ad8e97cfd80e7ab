"""Read whether ranks are stopped or gone: what `--live` has noted of a node, or a copy of /proc/PID/status."""

from __future__ import annotations

import json
import re
from typing import Any

from unhang import gate
from unhang.diagnose.evidence import GONE, RUNNING, Rank
from unhang.diagnose.job import Told
from unhang.diagnose.stacks import NOBODY

STATES = (RUNNING, "stopped", GONE)
"""Of a rank's process."""
_STATUS = re.compile(rb"\s*Name:\t.*\n(?:\w+:.*\n){0,3}State:\t(\w) ")
_OF_STATUS = {b"T": "stopped", b"t": "stopped", b"Z": "gone", b"X": "gone"}
_MOST = 1 << 20
_SHOWN = 5


def recognizes(head: bytes) -> bool:
    """Return whether a file that begins so is one of these."""
    return head.startswith(b'{"unhang-live"') or bool(_STATUS.match(head))


def read(data: bytes, file: str, named: int | None = None) -> Told:
    """Return what a node's notes say, or a process's status of the rank in the file's name.

    Raises ValueError if it is neither.
    """
    if status := _STATUS.match(data):
        state = _OF_STATUS.get(status[1])
        return Told(file, parts=(Rank(NOBODY, process=state),) if state else (), named=named)
    raw = json.loads(data)
    ranks, notes, size = (raw.get(key) for key in ("ranks", "notes", "size"))
    notes = [gate.line(str(note)) for note in notes] if isinstance(notes, list) else []
    more = [f"and {len(notes) - _SHOWN} more"] if len(notes) > _SHOWN else []
    why = "; ".join([*notes[:_SHOWN], *more])
    node = gate.line(str(raw.get("node") or ""))
    size = size if isinstance(size, int) and 0 < size <= _MOST else None
    parts = (_rank(row, size or _MOST) for row in (ranks if isinstance(ranks, list) else [])[:_MOST])
    return Told(f"{file} ({node})" if node else file, parts=tuple(part for part in parts if part), why=why, size=size)


def _rank(row: Any, size: int) -> Rank | None:
    """Return what a row says of a rank. One without a process was reckoned, and is none beyond the size of the job."""
    number, state = (row.get("rank"), row.get("state")) if isinstance(row, dict) else (None, None)
    if not isinstance(number, int) or not 0 <= number < (_MOST if "pid" in row else size) or state not in STATES:
        return None
    cpu = row.get("cpu")
    return Rank(number, process=state, cpu=cpu if isinstance(cpu, float) and cpu >= 0 else None)
