"""Whether processes are at work or wait: by the processor time that they had, or stood in line for, of late.

On a busy machine a rank that only needs longer looks, by the clock alone, like one that hangs; but it wants a
processor all the time, and one that waits for a peer wants next to none.
"""

from __future__ import annotations

import glob
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_SHARE = 0.2  # of the interval; a rank that waits in gloo wants 0.01 of it, one that polls a store 0.02


def at_work(pids: Iterable[int], interval_s: float = 0.5) -> bool:
    """Whether any of these processes wants a processor for more than a fifth of the next ``interval_s`` seconds.

    False where the system does not tell: that is Linux's ``/proc/PID/task/TID/schedstat``, see its
    Documentation/scheduler/sched-stats.rst.
    """
    before = {pid: _wanted_s(pid) for pid in pids}
    time.sleep(interval_s)
    return any(_wanted_s(pid) - wanted > _SHARE * interval_s for pid, wanted in before.items())


def _wanted_s(pid: int) -> float:
    """Seconds that a process's threads ran or stood in line, since each began; those that ended do not count."""
    total = 0
    for path in glob.glob(f"/proc/{pid}/task/*/schedstat"):
        try:
            with open(path) as file:
                ran, waited, _ = file.read().split()
        except (OSError, ValueError):
            continue
        total += int(ran) + int(waited)
    return total / 1e9
