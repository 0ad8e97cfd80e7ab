"""A job's schedule: every rank recorded, in one process or in several, and then played. It runs in forks."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import time
import traceback
from typing import TYPE_CHECKING, Any, NamedTuple

from . import calls, torch_functions
from .player import play
from .recorder import Recorder, record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection

    from .operations import Finding, Step

ALONE = 64  # to this size one process records all, so that what one rank broadcasts reaches the others


class Schedule(NamedTuple):
    """What every rank issues, and why the job does not come to its end, if it does not."""

    programs: dict[int, list[Step]]
    values: dict[int, Any]
    findings: list[Finding]
    recording_s: float
    checking_s: float

    def text(self) -> str:
        """The first finding, and how many more there are; empty where there is none."""
        if not self.findings:
            return ""
        more = f" (and {len(self.findings) - 1} findings more)" if len(self.findings) > 1 else ""
        return self.findings[0].text() + more


def workers(world: int) -> int:
    """How many processes share out the ranks of a world."""
    return 1 if world <= ALONE else min(os.cpu_count() or 1, 8)


def check(
    world: int, prepare: Callable[[int], object], body: Callable[[int], Any], *, backend: str = "nccl"
) -> Schedule:
    """Record ``prepare(rank)`` (not kept) and ``body(rank)`` for every rank, on groups that pose as ``backend``.

    Module state is the caller's: ``prepare`` has to undo what the rank before has left. Raises RuntimeError, with the
    traceback, where ``prepare`` fails, or ``body`` does what no schedule tells (``Unjudged``); EOFError where a process
    that records dies.
    """
    importlib.import_module("torch.testing._internal.distributed.fake_pg")  # once, and not in every fork
    begun = time.monotonic()
    places = torch_functions.places(calls.NAMES)
    context = multiprocessing.get_context("fork")
    started = []
    count = workers(world)
    for worker in range(count):
        ranks = range(world * worker // count, world * (worker + 1) // count)
        ours, theirs = context.Pipe(duplex=False)
        given = theirs, ranks, world, prepare, body, Recorder(backend), places
        process = context.Process(target=_work, args=given, daemon=True)
        process.start()
        theirs.close()
        started.append((process, ours))
    programs: dict[int, list[Step]] = {}
    values: dict[int, Any] = {}
    for process, pipe in started:
        answer = pipe.recv()
        process.join()
        if isinstance(answer, str):
            raise RuntimeError(answer)
        programs.update(answer[0])
        values.update(answer[1])
    recorded = time.monotonic()
    findings = play(programs)
    return Schedule(programs, values, findings, recorded - begun, time.monotonic() - recorded)


def _work(
    pipe: Connection,
    ranks: range,
    world: int,
    prepare: Callable[[int], object],
    body: Callable[[int], Any],
    recorder: Recorder,
    places: Sequence[torch_functions.Place],
) -> None:
    try:
        recorder.install(places)
        pipe.send(record(recorder, ranks, world, prepare, body))
    except BaseException:
        pipe.send(traceback.format_exc())
    finally:
        pipe.close()
        os._exit(0)
