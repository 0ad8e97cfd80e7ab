"""Processes at work, told from those that wait."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from typing import Any

import pytest

from support.jobs import working
from unhang.prove.ranks import processor_time


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="no schedstat here: only the clock counts")
@pytest.mark.parametrize(("job", "is_at_work"), [(working, True), (time.sleep, False)])
def test_a_process_that_wants_a_processor_is_at_work(job: Callable[[float], None], is_at_work: bool) -> None:
    process = multiprocessing.get_context("fork").Process(target=job, args=(600.0,), daemon=True)
    process.start()
    try:
        assert process.pid is not None
        seen = [processor_time.at_work([process.pid])]
        while True in seen[-3:] and len(seen) < 200 and not is_at_work:  # starting is work too
            seen.append(processor_time.at_work([process.pid]))
        assert seen[-1] is is_at_work
    finally:
        process.kill()
        process.join()


RUN, SLEEP = (0.05, 0.0, 1), (0.0, 0.0, 0)  # what a thread adds in a tenth of a second: ran, queued, number of runs
POLL, STARVE = (0.001, 0.03, 10), (0.0, 0.0, 0)


@pytest.mark.parametrize(
    ("ranks", "is_at_work"),
    [
        ([(SLEEP, POLL, False)] * 8, False),  # all wait, and gloo polls, often queueing for a processor
        ([(SLEEP, POLL, False)] * 7 + [(RUN, POLL, True)], True),
        ([(SLEEP, POLL, False), (SLEEP, STARVE, True)], True),  # who knows what gloo would receive
        ([((0.012, 0.0, 1), POLL, False)] * 4, True),  # in turns
        ([((0.002, 0.0, 10), POLL, False)] * 64, False),  # each polls a store
    ],
)
def test_what_the_ranks_of_a_job_want(
    ranks: list[tuple[Any, Any, bool]], is_at_work: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank has a main thread and gloo's loop; the bool says whether the thread with something to do is busy."""
    now = [0.0]

    def threads(pid: int) -> dict[str, processor_time._Thread]:
        main, loop, is_busy = ranks[pid]
        times = [[each * now[0] / 0.1 for each in thread] for thread in (main, loop)]
        return {
            "main": processor_time._Thread(
                False, is_busy and main is not SLEEP, times[0][0], times[0][1], int(times[0][2])
            ),
            "loop": processor_time._Thread(True, is_busy and main is SLEEP, times[1][0], times[1][1], int(times[1][2])),
        }

    monkeypatch.setattr(processor_time, "_threads", threads)
    monkeypatch.setattr(processor_time.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(processor_time.time, "monotonic", lambda: now[0])
    assert processor_time.at_work(range(len(ranks))) is is_at_work


def test_a_process_that_is_gone_is_not_at_work() -> None:
    assert not processor_time.at_work([2**22 + 1], 0.01)
