"""Tells processes at work from processes that wait, by what their threads do.

The clock cannot tell a slow rank from one that hangs. But a rank at work runs, queues for a processor, is throttled by
a quota or waits for a disk nearly all the time, and a rank that waits for a peer sleeps. Ranks that take turns are at
work too, so what all of them want counts.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LONGEST = 24
"""Deadlines that a rank may use, in seconds of a processor and not of the clock: an endless loop takes more."""
_SHARE = 0.2  # of the interval, for one process
_POLLING = 0.05  # likewise, for each of many: one that polls a store wants 0.02
_SAMPLES = 10
_LOOP = "gloo_tcp_loop"  # polls all the time: on a busy machine it queues for as long as a rank at work


class _Thread(NamedTuple):
    is_loop: bool
    is_busy: bool
    """Whether it runs, queues, is stopped or waits for a disk now. A throttled one counts as running."""
    ran_s: float
    queued_s: float
    runs: int


def at_work(pids: Iterable[int], interval_s: float = 0.5) -> bool:
    """Return whether these processes want more of a processor than ones that wait, for ``interval_s``.

    It reads Linux's ``/proc/PID/task/TID/stat`` and ``schedstat`` (Documentation/scheduler/sched-stats.rst there), and
    returns False where there are none.
    """
    begun = time.monotonic()
    before = {pid: _threads(pid) for pid in pids}
    busy, queueing = dict.fromkeys(before, 0), dict.fromkeys(before, 0)
    after = before
    for _ in range(_SAMPLES):
        time.sleep(interval_s / _SAMPLES)
        after = {pid: _threads(pid) for pid in before}
        for pid, threads in after.items():
            busy[pid] += any(one.is_busy and not one.is_loop for one in threads.values())
            queueing[pid] += any(one.is_busy and one.is_loop for one in threads.values())
    took = time.monotonic() - begun  # longer than the interval where this process is slow too
    shares = [max(busy[pid] / _SAMPLES, _wanted_s(before[pid], after[pid]) / took) for pid in before]
    # a loop that ran has seen what there is to receive; one that did not may bring a rank back to work
    starved = any(count > _SAMPLES / 2 and _polls(before[pid], after[pid]) < 2 for pid, count in queueing.items())
    return starved or max(shares, default=0.0) > _SHARE or sum(shares) > max(_SHARE, _POLLING * len(shares))


def used_s(pid: int) -> float:
    """Return the seconds that the live threads of a process have run since they began."""
    return sum(one.ran_s for one in _threads(pid).values())


def _wanted_s(before: Mapping[str, _Thread], after: Mapping[str, _Thread]) -> float:
    """Return the seconds that the threads, without gloo's loop, have run or queued."""
    sums = [sum(one.ran_s + one.queued_s for one in side.values() if not one.is_loop) for side in (before, after)]
    return sums[1] - sums[0]


def _polls(before: Mapping[str, _Thread], after: Mapping[str, _Thread]) -> int:
    """Return how often gloo's loop has run."""
    return sum(one.runs - before[name].runs for name, one in after.items() if one.is_loop and name in before)


def _threads(pid: int) -> dict[str, _Thread]:
    """Return what the threads of a process do, by their ids."""
    folder = f"/proc/{pid}/task"
    found = {}
    for name in _names(folder):
        with contextlib.suppress(OSError):  # the thread is gone
            with open(f"{folder}/{name}/stat") as stat, open(f"{folder}/{name}/schedstat") as schedstat:
                called, _, fields = stat.read().partition("(")[2].rpartition(")")
                ran, queued, runs = map(int, schedstat.read().split())
            found[name] = _Thread(called == _LOOP, fields.split()[0] not in "SIZX", ran / 1e9, queued / 1e9, runs)
    return found


def _names(folder: str) -> list[str]:
    with contextlib.suppress(OSError):
        return os.listdir(folder)
    return []
