"""Snapshots of a job that runs: a saved page of torch's debug server, `--live`'s notes of a node, /proc/PID/status."""

from __future__ import annotations

import json
import re
from html import unescape
from io import BytesIO
from typing import Any

from unhang import gate
from unhang.diagnose import logs, recorder
from unhang.diagnose.evidence import GONE, RUNNING, Rank
from unhang.diagnose.job import Told
from unhang.diagnose.stacks import NOBODY

_HEADING = re.compile(r"[ \t]{0,80}<h[23]>(Rank (\d{1,7}): [^<\n]{0,500})</h[23]>")
_RANKS = 8


def is_page(head: bytes) -> bool:
    """Return whether a file that begins so is a page."""
    return head.lstrip()[:14].lower() == b"<!doctype html"


def page(data: bytes, file: str) -> Told:
    """Return what a page says of each rank. The server asks them all, so their number is that of the job.

    It does not escape what they answer, so that a parser of HTML takes `<module>` for a tag.
    """
    before, *found = _HEADING.split(data.decode(errors="replace"))
    dumps, lost, whys = [], [], []
    text = ["\n" * before.count("\n")]  # each line keeps its number
    for heading, number, body in zip(found[::3], found[1::3], found[2::3]):
        above, _, rest = body.partition("<pre>")
        answer, end, below = rest.rpartition("</pre>")
        answer, lines = unescape(answer), "\n" * body.count("\n")
        if not end or "Failed to fetch" in above:
            lost.append(number)
            whys += answer.strip().splitlines()[:1]
        elif recorder.recognizes(answer.encode()):
            try:
                dumps.append(recorder.read(answer.encode(), f"{file}: rank {number}", int(number)))
            except ValueError as error:
                lost.append(number)
                whys.append(str(error))
        else:
            lines = "\n" * above.count("\n") + answer + "\n" * below.count("\n")
        text += [f"=== {heading} ===", lines]
    parts = tuple(logs.read(BytesIO("".join(text).encode()), file))
    why = next((dump.broken for dump in dumps if dump.broken), "")
    if lost:
        ranks = f"{', '.join(lost[:_RANKS])}{', ...' if len(lost) > _RANKS else ''}"
        why = f"nothing came of rank{'s' if len(lost) > 1 else ''} {ranks}: {gate.line((whys or ['no answer'])[0])}"
    elif not (dumps or parts):
        why = "it has neither stacks nor dumps: of torch's debug server, save the pages /stacks and /fr_trace_json"
    is_whole = bool(found) and "</section>" in found[-1]
    return Told(file, tuple(dumps), parts, why=why, size=len(found) // 3 if is_whole else None)


# --- whether ranks are stopped or gone

STATES = (RUNNING, "stopped", GONE)
"""Of a rank's process."""
_STATUS = re.compile(rb"\s*Name:\t.*\n(?:\w+:.*\n){0,3}State:\t(\w) ")
_OF_STATUS = {b"T": "stopped", b"t": "stopped", b"Z": "gone", b"X": "gone"}
_MOST = 1 << 20
_SHOWN = 5


def is_state(head: bytes) -> bool:
    """Return whether a file that begins so has a node's notes, or a process's status."""
    return head.startswith(b'{"unhang-live"') or bool(_STATUS.match(head))


def states(data: bytes, file: str, named: int | None = None) -> Told:
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
    parts = (_state(row, size or _MOST) for row in (ranks if isinstance(ranks, list) else [])[:_MOST])
    return Told(f"{file} ({node})" if node else file, parts=tuple(part for part in parts if part), why=why, size=size)


def _state(row: Any, size: int) -> Rank | None:
    """Return what a row says of a rank. One without a process was reckoned, and is none beyond the size of the job."""
    number, state = (row.get("rank"), row.get("state")) if isinstance(row, dict) else (None, None)
    if not isinstance(number, int) or not 0 <= number < (_MOST if "pid" in row else size) or state not in STATES:
        return None
    cpu = row.get("cpu")
    return Rank(number, process=state, cpu=cpu if isinstance(cpu, float) and cpu >= 0 else None)
