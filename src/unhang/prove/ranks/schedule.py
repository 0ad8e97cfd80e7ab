"""Records every rank of a job, in one or several forks, and plays the records against each other."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import time
import traceback
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from . import tidy
from .operations import Made, Operation, Unseen, ranges
from .player import is_stuck, play
from .processor_time import LONGEST, at_work, used_s
from .recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from multiprocessing.connection import Connection

    from .operations import Finding, Step

_DEADLINE_S = 20.0
ALONE = 64  # up to this many ranks, one process records all, so that broadcasts reach the other ranks


class Schedule(NamedTuple):
    """What every rank issues and returns, and why the job does not complete."""

    programs: dict[int, list[Step]]
    """What each rank issues and waits for, without the making of groups."""
    values: dict[int, Any]
    findings: list[Finding]
    """Empty where the job completes."""
    is_stuck: bool
    """Whether a rank waits for ever, however much is buffered and whatever a mismatch does."""
    recording_s: float
    checking_s: float

    @property
    def status(self) -> str:
        """``passed``, ``hung``, ``mismatch``, ``crashed`` if a rank raised, or ``unknown``.

        A mismatch may hang, crash or go on with wrong values: that depends on the backend. ``unknown`` is a job that
        does what a schedule cannot show, unless it mismatches or raises before, or that completes only if messages are
        buffered.
        """
        kinds = {finding.kind for finding in self.findings}
        if "raised" in kinds:
            return "crashed"
        if self.is_stuck and "unseen" not in kinds:
            return "hung"
        return "mismatch" if "mismatch" in kinds else "unknown" if kinds else "passed"

    def times(self) -> str:
        """Return how long recording and playing took."""
        return f"recorded in {self.recording_s:.1f} s, played in {self.checking_s:.2f} s"

    def text(self) -> str:
        """Return the first finding and the number of others; empty where there is none."""
        if not self.findings:
            return ""
        if self.status == "unknown" and self.findings[0].kind != "unseen":
            return f"it depends on the backend whether it completes: {self.findings[0].text()}"
        more = f" (and {len(self.findings) - 1} more findings)" if len(self.findings) > 1 else ""
        return self.findings[0].text() + more


def workers(world: int) -> int:
    """Return the number of processes that share the ranks of a world."""
    return 1 if world <= ALONE else min(os.cpu_count() or 1, 8)


def check(
    world: int,
    prepare: Callable[[int], object],
    body: Callable[[int], Any],
    *,
    backend: str = "nccl",
    declared: Mapping[str, Any] = MappingProxyType({}),
    deadline_s: float = _DEADLINE_S,
) -> Schedule:
    """Record ``body(rank)`` for every rank, on groups that pose as ``backend``, and play the records.

    ``prepare(rank)`` runs first and is not recorded. It must reset the module state that the previous rank left.
    ``declared`` maps the name of a function to the value of another rank that is read in it; a case of real ranks must
    confirm that value. A recording is ended if it neither answers nor works for ``deadline_s`` seconds, or uses a
    processor for 24 times as long for each 64 ranks; its ranks are then ``unseen``. Raises RuntimeError, with the
    traceback, where ``prepare`` fails; EOFError where a recording process dies.
    """
    importlib.import_module("torch.testing._internal.distributed.fake_pg")  # once, not in every fork
    begun = time.monotonic()
    context = multiprocessing.get_context("fork")
    started = []
    count = workers(world)
    for worker in range(count):
        ranks = range(world * worker // count, world * (worker + 1) // count)
        ours, theirs = context.Pipe(duplex=False)
        given = theirs, ranks, world, prepare, body, Recorder(backend, declared), os.getpid()
        process = context.Process(target=_work, args=given, daemon=True)
        process.start()
        theirs.close()
        started.append((process, ours, ranks))
    programs: dict[int, list[Step]] = {}
    values: dict[int, Any] = {}
    for process, pipe, ranks in started:
        if not _answers(process.pid, pipe, deadline_s, len(ranks)):
            process.kill()
            what = f"the recording of ranks {ranges(ranks)} did not end"
            programs.update((rank, [Unseen(what, "?")]) for rank in ranks)
            continue
        answer = pipe.recv()
        process.join()
        if isinstance(answer, str):
            raise RuntimeError(answer)
        programs.update(answer[0])
        values.update(answer[1])
    recorded = time.monotonic()
    findings = play(programs)
    stuck = bool(findings) and is_stuck(programs)
    shown = {rank: [step for step in steps if not _makes_groups(step)] for rank, steps in programs.items()}
    return Schedule(shown, values, findings, stuck, recorded - begun, time.monotonic() - recorded)


def _answers(pid: int | None, pipe: Connection, deadline_s: float, ranks: int) -> bool:
    """Return whether a recording answers before its deadline."""
    longest_s = LONGEST * deadline_s * max(1.0, ranks / ALONE)
    while not pipe.poll(deadline_s):
        is_over = pid is None or used_s(pid) > longest_s or not at_work([pid])
        if is_over and not pipe.poll(0):  # an answer that came meanwhile counts
            return False
    return True


def _makes_groups(step: Step) -> bool:
    return isinstance(step, Made) or (isinstance(step, Operation) and step.kind == "new_group")


def _work(
    pipe: Connection,
    ranks: range,
    world: int,
    prepare: Callable[[int], object],
    body: Callable[[int], Any],
    recorder: Recorder,
    parent: int,
) -> None:
    tidy.end_with(parent)
    try:
        recorder.install()
        pipe.send(recorder.record(ranks, world, prepare, body))
    except BaseException:
        pipe.send(traceback.format_exc())
    finally:
        pipe.close()
        os._exit(0)
