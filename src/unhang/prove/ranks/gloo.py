"""Real ranks: processes forked after the slow imports, with gloo between them, and a deadline.

A rank that is done stays until all are: were it to end, its closed connections would make an error of its peers'
hang. So these are different findings: a rank that raised, one that died, and one that is still at work at the
deadline, of which the Python stack is kept. No rank tears its groups down: in a world that half hangs, that would
block.
"""

from __future__ import annotations

import faulthandler
import importlib
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from datetime import timedelta
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, NamedTuple

from . import processor_time, stacks
from .operations import ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkProcess

_START_S = 120.0  # for all ranks to meet, on however busy a machine; the deadline runs from then on
_FEW = 8  # ranks: more share the processors, and so have longer
_LONGEST = 6  # deadlines, for ranks that are at work all the while: a busy machine, or a loop without an end
_GRACE_S = 1.0  # for the peers of a rank that raised: to come to where they will wait for it
_READY = "ready"
_TORCH_TIMEOUT = timedelta(minutes=30)  # far beyond any deadline: it is ours that counts


class Rank(NamedTuple):
    """How one rank ended. ``state`` is ``done``, ``raised``, ``died`` or ``alive`` (at the deadline)."""

    state: str
    value: Any
    """What its body returned, if it is done."""
    error: str
    """What it raised, or how it died."""
    stack: tuple[str, ...]
    """Where: the innermost frame first, each as file, line and function."""


class World(NamedTuple):
    """How all ranks ended."""

    ranks: tuple[Rank, ...]
    seconds: float

    @property
    def status(self) -> str:
        """``passed``, ``hung``, or ``crashed``, if a rank raised or died of itself."""
        states = {rank.state for rank in self.ranks}
        if states & {"raised", "died"}:
            return "crashed"
        return "hung" if "alive" in states else "passed"

    def text(self) -> str:
        """Who did not come to an end, and where; empty where all did."""
        places: dict[str, list[int]] = {}
        for number, rank in enumerate(self.ranks):
            where = stacks.place(rank.stack)
            told = {
                "done": "done",
                "alive": f"waits in {where}",
                "raised": f"raised {rank.error} at {where}",
                "died": rank.error,
            }
            places.setdefault(told[rank.state], []).append(number)
        if list(places) == ["done"]:
            return ""
        causes = ("died", "raised", "waits", "done")  # of a rank that died, its peers' errors are the consequence
        order = sorted(places, key=lambda told: (causes.index(told.split()[0]), told))
        return "; ".join(f"rank {ranges(places[told])} {told}" for told in order)


def run(world: int, body: Callable[[int], Any], *, deadline_s: float = 20.0) -> World:
    """Run ``body(rank)`` in ``world`` processes at once, each with gloo as its default group, until all are done.

    Its results must be picklable. A rank not done ``deadline_s`` seconds after all have met is ``alive``; beyond 8
    ranks, in proportion later, and up to six times as late while one of them wants a processor instead of a peer. To be
    called where no process group and no thread of torch's is at work yet: the ranks are forks. What a rank raises is in
    its ``Rank``. Raises TimeoutError where the ranks do not even meet, and OSError where the system refuses a fork.
    """
    importlib.import_module("torch.distributed")  # once, and not in every fork
    context = multiprocessing.get_context("fork")
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="unhang-ranks-") as folder:
        sys.stdout.flush()
        sys.stderr.flush()
        processes: list[ForkProcess] = []
        pipes: list[Connection[Any, Any]] = []
        try:
            for number in range(world):
                ours, theirs = context.Pipe()
                process = context.Process(target=_rank, args=(number, world, body, folder, theirs), daemon=True)
                process.start()
                theirs.close()  # before the next fork: the end of this rank is to be the end of its pipe
                processes.append(process)
                pipes.append(ours)
            answers = _answers(processes, pipes, deadline_s * max(1.0, world / _FEW))
            answers |= _late({number: one for number, one in enumerate(processes) if number not in answers}, folder)
        finally:
            for process in processes:
                process.kill()
                process.join()
    return World(tuple(answers[number] for number in range(world)), time.monotonic() - begun)


def _rank(number: int, world: int, body: Callable[[int], Any], folder: str, pipe: Connection[Any, Any]) -> None:
    stacks = open(os.path.join(folder, f"stack{number}"), "w")  # noqa: SIM115 - faulthandler keeps its descriptor
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    try:
        signal.alarm(int(_START_S) + 3600)  # should the parent be gone without a word
        answer = _body(number, world, body, folder, pipe)
        try:
            pipe.send(answer)
        except Exception as error:  # whatever cannot be pickled
            pipe.send(Rank("raised", None, f"{type(error).__name__}: {error}", ()))
        pipe.recv()  # until the parent is gone, or kills us
    except (EOFError, OSError):
        pass
    finally:
        os._exit(0)


def _body(number: int, world: int, body: Callable[[int], Any], folder: str, pipe: Connection[Any, Any]) -> Rank:
    try:
        import torch.distributed as dist

        os.environ.update(RANK=str(number), LOCAL_RANK=str(number), WORLD_SIZE=str(world))
        store = dist.FileStore(os.path.join(folder, "store"), world)
        dist.init_process_group("gloo", store=store, rank=number, world_size=world, timeout=_TORCH_TIMEOUT)
        pipe.send(_READY)
        return Rank("done", body(number), "", ())
    except BaseException as error:
        return Rank("raised", None, f"{type(error).__name__}: {str(error)[:300]}", tuple(stacks.of_error(error)))


def _answers(
    processes: Sequence[ForkProcess], pipes: Sequence[Connection[Any, Any]], deadline_s: float
) -> dict[int, Rank]:
    """What the ranks say, until all have said it, or died, or it is too late; early, if one has raised.

    Raises TimeoutError where they have not all met by then, though none has failed: no fault of the job's.
    """
    answers: dict[int, Rank] = {}
    met, failed = 0, False
    deadline = latest = time.monotonic() + _START_S
    todo = dict(enumerate(pipes))
    while todo:
        ready = wait(list(todo.values()), max(0.0, deadline - time.monotonic()))
        if not ready:
            over = failed or met < len(pipes) or time.monotonic() > latest
            # what was said while we looked counts
            if over or not (processor_time.at_work(_pids(processes, todo)) or wait(list(todo.values()), 0)):
                break
        for number in [number for number, pipe in todo.items() if pipe in ready]:
            try:
                said = pipes[number].recv()
            except (EOFError, OSError):
                processes[number].join()
                said = Rank("died", None, f"died with exit code {processes[number].exitcode}", ())
            if said == _READY:
                met += 1
                if not failed:  # the peers of a rank that raised at once may still be on their way
                    deadline = time.monotonic() + (deadline_s if met == len(pipes) else _START_S)
                    latest = time.monotonic() + _LONGEST * deadline_s
                continue
            del todo[number]
            answers[number] = said
            if said.state != "done":
                failed = True
                deadline = min(deadline, time.monotonic() + _GRACE_S)
    if met < len(pipes) and not failed:
        raise TimeoutError(f"only {met} of {len(pipes)} ranks met within {_START_S:.0f} s")
    return answers


def _pids(processes: Sequence[ForkProcess], numbers: Iterable[int]) -> list[int]:
    return [pid for number in numbers if (pid := processes[number].pid) is not None]


def _late(processes: Mapping[int, ForkProcess], folder: str) -> dict[int, Rank]:
    """The ranks that are still at work, and where."""
    for process in processes.values():
        assert process.pid is not None
        os.kill(process.pid, signal.SIGUSR1)
    until = time.monotonic() + 2 * max(1.0, len(processes) / _FEW)
    return {number: _dumped(os.path.join(folder, f"stack{number}"), until) for number in processes}


def _dumped(path: str, until: float) -> Rank:
    """A rank that faulthandler writes the stacks of."""
    text = ""
    while not text.endswith("\n") and time.monotonic() < until:
        time.sleep(0.05)
        with open(path) as file:
            text = file.read()
    return Rank("alive", None, "", tuple(stacks.of_dump(text)))
