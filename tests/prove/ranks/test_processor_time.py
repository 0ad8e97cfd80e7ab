"""Processes at work, told from those that wait."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable

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


def test_a_process_that_is_gone_is_not_at_work() -> None:
    assert not processor_time.at_work([2**22 + 1], 0.01)
