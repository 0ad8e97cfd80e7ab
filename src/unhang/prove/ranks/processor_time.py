"""Tells processes at work from processes that wait, by what their threads do.

The clock cannot tell a slow rank from one that hangs. But a rank at work runs, queues for a processor, is throttled by
a quota or waits for a disk nearly all the time, and a rank that waits for a peer sleeps.
"""

from __future__ import annotations

import glob
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_SHARE = 0.2  # of the interval; a rank that waits in gloo wants 0.01, one that polls a store 0.02
_SAMPLES = 10


def at_work(pids: Iterable[int], interval_s: float = 0.5) -> bool:
    """Return whether any of these processes is at work: most of the time, or for over a fifth of ``interval_s``.

    It reads Linux's ``/proc/PID/task/TID/stat`` and ``schedstat`` (Documentation/scheduler/sched-stats.rst there), and
    returns False where there are none.
    """
    begun = time.monotonic()
    before = {pid: wanted_s(pid) for pid in pids}
    busy = dict.fromkeys(before, 0)
    for _ in range(_SAMPLES):
        time.sleep(interval_s / _SAMPLES)
        for pid in busy:
            busy[pid] += _is_busy(pid)
    most = _SHARE * (time.monotonic() - begun)  # longer than the interval where this process is slow too
    return any(busy[pid] > _SAMPLES / 2 or wanted_s(pid) - wanted > most for pid, wanted in before.items())


def wanted_s(pid: int) -> float:
    """Return the seconds that the live threads of a process have run or queued since they began."""
    return sum(int(ran) + int(waited) for ran, waited, _ in _threads(pid, "schedstat")) / 1e9


def used_s(pid: int) -> float:
    """Return the seconds that the live threads of a process have run since they began."""
    return sum(int(ran) for ran, *_ in _threads(pid, "schedstat")) / 1e9


def _is_busy(pid: int) -> bool:
    """Return whether a thread runs, queues, is stopped or waits for a disk now. A throttled one counts as running."""
    return any(state not in "SIZX" for state, *_ in _threads(pid, "stat"))


def _threads(pid: int, name: str) -> Iterable[list[str]]:
    """Yield the fields of this file of each thread, after the name of the thread."""
    for path in glob.glob(f"/proc/{pid}/task/*/{name}"):
        try:
            with open(path) as file:
                yield file.read().rpartition(")")[2].split()
        except OSError:
            continue
