"""Tells processes at work from processes that wait, by the processor time that they used or queued for.

On a busy machine the clock alone cannot tell a slow rank from one that hangs. But a slow rank wants a processor all the
time, and a rank that waits for a peer wants almost none.
"""

from __future__ import annotations

import glob
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_SHARE = 0.2  # of the interval; a rank that waits in gloo wants 0.01, one that polls a store 0.02


def at_work(pids: Iterable[int], interval_s: float = 0.5) -> bool:
    """Return whether any of these processes wants a processor for over a fifth of the next ``interval_s`` seconds.

    It reads Linux's ``/proc/PID/task/TID/schedstat`` (Documentation/scheduler/sched-stats.rst there), and returns False
    where there is none.
    """
    before = {pid: _wanted_s(pid) for pid in pids}
    time.sleep(interval_s)
    return any(_wanted_s(pid) - wanted > _SHARE * interval_s for pid, wanted in before.items())


def _wanted_s(pid: int) -> float:
    """Return the seconds that the live threads of a process have run or queued since they began."""
    total = 0
    for path in glob.glob(f"/proc/{pid}/task/*/schedstat"):
        try:
            with open(path) as file:
                ran, waited, _ = file.read().split()
        except (OSError, ValueError):
            continue
        total += int(ran) + int(waited)
    return total / 1e9
