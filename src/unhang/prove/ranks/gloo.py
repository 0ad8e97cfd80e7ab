"""Real ranks: processes forked after the slow imports, connected by gloo or NCCL, with a deadline.

A rank that is done stays until all are done: its closed connections would turn a hang of its peers into an error. So a
rank that raised, one that died, and one that is still alive at the deadline (with its Python stack) are different
findings. No rank destroys its groups, because that can block where a peer hangs.
"""

from __future__ import annotations

import faulthandler
import importlib
import multiprocessing
import os
import signal
import sys
import time
from datetime import timedelta
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, NamedTuple

from ..cases import CRASHED, DIFFERS, FEW, HUNG, PASSED, Outcome
from . import nccl, processor_time, shims, stacks, tidy
from .meet import Stuck
from .rank_numbers import ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkProcess

_START_S = 120.0  # for all ranks to meet, even on a busy machine; the deadline counts from then on
_QUIET = 3  # looks in a row at ranks that are not at work
_READY = "ready"
_PEERS_S = 10.0  # for the peers of a rank that raised, on GPUs: they do not sleep where they wait
_LOOK_S = 2.0  # between two looks at the stacks of ranks on GPUs
_MOVING = 4  # deadlines that ranks on GPUs may take whose stacks change
_DUMP = signal.SIGUSR2
_DUMPED = chr(_DUMP)  # a rank writes the signal's number after its stacks
_TORCH_TIMEOUT = timedelta(minutes=30)  # beyond any deadline of ours


class Rank(NamedTuple):
    """How one rank ended. ``state`` is ``done``, ``raised``, ``died``, or ``alive`` at the deadline."""

    state: str
    value: Any
    """What its body returned, if done."""
    error: str
    """What it raised, how it died, or what is wrong with the operation that it waits in."""
    stack: tuple[str, ...]
    """Where it raised or is: innermost frame first, each as file, line and function."""
    gpu_bytes: int = 0
    """What was in use of its GPU when it was done, by all ranks."""


class World(NamedTuple):
    """How all ranks ended."""

    ranks: tuple[Rank, ...]
    seconds: float

    @property
    def status(self) -> str:
        """``passed``, ``hung``, or ``crashed`` if a rank raised or died."""
        states = {rank.state for rank in self.ranks}
        if states & {"raised", "died"}:
            return CRASHED
        return HUNG if "alive" in states else PASSED

    def text(self) -> str:
        """Return which ranks are not done, and where they are; empty where all are done."""
        places: dict[str, list[int]] = {}
        for number, rank in enumerate(self.ranks):
            where = stacks.place(rank.stack)
            ends = {
                "done": "done",
                "alive": f"waits in {where}{rank.error}",
                "raised": f"raised {rank.error} at {where}",
                "died": rank.error,
            }
            places.setdefault(ends[rank.state], []).append(number)
        if list(places) == ["done"]:
            return ""
        causes = ("died", "raised", "waits", "done")  # where a rank dies, its peers' errors only follow from it
        order = sorted(places, key=lambda end: (causes.index(end.split()[0]), end))
        return "; ".join(f"rank {ranges(places[end])} {end}" for end in order)

    def outcome(self, wrong: Callable[[list[Any]], str], right: Callable[[list[Any]], str]) -> Outcome:
        """Return how a case ended: these get what the ranks returned, and say what is wrong with it, or is right."""
        values = [rank.value for rank in self.ranks]
        if self.status != PASSED:
            return Outcome(self.status, self.text())
        why, used = wrong(values), max(rank.gpu_bytes for rank in self.ranks)
        return Outcome(*((DIFFERS, why) if why else (PASSED, right(values))), gpu_bytes=used)


def run(world: int, body: Callable[[int], Any], *, deadline_s: float = 20.0) -> World:
    """Run ``body(rank)`` in ``world`` processes, each with a default group, until all are done.

    The group is gloo's, or NCCL's where ``shims.DEVICE`` is ``cuda``: there a rank is ``alive`` if from the deadline on
    no stack changes, or after four deadlines.

    The results must be picklable. A rank is ``alive`` if it is not done ``deadline_s`` seconds after all have met, and
    no rank is at work (``processor_time``), or one has used a processor for 24 times as long. More than 8 ranks get
    proportionally more time. The ranks are forks, so call it before this process has a process group or a thread of
    torch. What a rank raises is in its ``Rank``. Raises TimeoutError where the ranks do not meet, OSError where a fork
    fails.
    """
    importlib.import_module("torch.distributed")  # once, not in every fork
    context = multiprocessing.get_context("fork")
    begun = time.monotonic()
    nccl.begin_to_keep()
    with tidy.folder("unhang-ranks-") as (folder, _):
        sys.stdout.flush()
        sys.stderr.flush()
        processes: list[ForkProcess] = []
        pipes: list[Connection[Any, Any]] = []
        try:
            for number in range(world):
                ours, theirs = context.Pipe()
                process = context.Process(
                    target=_rank, args=(number, world, body, folder, theirs, os.getpid(), deadline_s), daemon=True
                )
                process.start()
                theirs.close()  # before the next fork, so that the pipe ends with this rank
                processes.append(process)
                pipes.append(ours)
            deadline_s *= max(1.0, world / FEW)  # more share the processors
            answers = _answers(processes, pipes, deadline_s, folder)
            late = [number for number in range(world) if number not in answers]
            answers |= _alive(processes, late, folder)
            nccl.keep({number: _dump(folder, number) for number in late})
            nccl.forget(answer.state for answer in answers.values())
        finally:
            for process in processes:
                process.kill()
                process.join()
    return World(tuple(answers[number] for number in range(world)), time.monotonic() - begun)


def _rank(
    number: int, world: int, body: Callable[[int], Any], folder: str, pipe: Connection[Any, Any], parent: int,
    deadline_s: float,
) -> None:  # fmt: skip
    tidy.end_with(parent)
    _dump_when_asked(_dump(folder, number))
    quiet = os.open(nccl.log(number), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    try:
        answer = _body(number, world, body, folder, pipe, deadline_s)
        try:
            pipe.send(answer)
        except Exception as error:  # it cannot be pickled
            pipe.send(Rank("raised", None, f"{type(error).__name__}: {error}", ()))
        pipe.recv()  # until the parent is gone or kills this process
    except (EOFError, OSError):
        pass
    finally:
        os._exit(0)


def _body(
    number: int, world: int, body: Callable[[int], Any], folder: str, pipe: Connection[Any, Any], deadline_s: float
) -> Rank:
    is_on_cpu = shims.DEVICE == "cpu"
    try:
        import torch.distributed as dist

        os.environ.update(RANK=str(number), LOCAL_RANK=str(number), WORLD_SIZE=str(world))
        store = dist.FileStore(os.path.join(folder, "store"), world)
        if is_on_cpu:
            _share_device(dist)
            dist.init_process_group("gloo", store=store, rank=number, world_size=world, timeout=_TORCH_TIMEOUT)
        else:
            nccl.start(number, world, store, deadline_s)
        pipe.send(_READY)
    except BaseException as error:
        return _raised(error)
    if is_on_cpu:
        return ended(lambda: body(number))
    answer = ended(lambda: nccl.ended(body(number)))
    return answer._replace(gpu_bytes=nccl.used()) if answer.state == "done" else answer


def ended(body: Callable[[], Any]) -> Rank:
    """Return how a rank ends that runs this."""
    try:
        return Rank("done", body(), "", ())
    except Stuck as stuck:
        return Rank("alive", None, str(stuck), tuple(stacks.of_error(stuck)))
    except BaseException as error:
        return _raised(error)


def _raised(error: BaseException) -> Rank:
    nccl.tell(error)
    return Rank("raised", None, f"{type(error).__name__}: {str(error)[:300]}", tuple(stacks.of_error(error)))


def _share_device(dist: Any) -> None:
    """Give all groups of this process one device of gloo, on loopback.

    Each device has a thread that polls. Torch makes a device for each group: with 64 ranks of 17 groups, the threads
    then use most of two cores. Loopback needs neither a host name that resolves nor GLOO_SOCKET_IFNAME.
    """
    kind = dist.ProcessGroupGloo
    device, made = kind.create_device(hostname="127.0.0.1"), kind.__init__

    def of_device(self: Any, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        options = kind._Options()
        options._devices, options._timeout = [device], timeout
        made(self, store, rank, size, options)

    kind.__init__ = of_device


def _answers(
    processes: Sequence[ForkProcess], pipes: Sequence[Connection[Any, Any]], deadline_s: float, folder: str
) -> dict[int, Rank]:
    """Return the ranks that ended before the deadline, which comes early once a rank has raised.

    Raises TimeoutError where the ranks do not meet and none has failed.
    """
    answers: dict[int, Rank] = {}
    met, failed, quiet = 0, False, 0
    deadline = time.monotonic() + _START_S
    last = deadline + _START_S
    used: dict[int, float] = {}
    seen: dict[int, Rank] = {}
    todo = dict(enumerate(pipes))
    while todo:
        ready = wait(list(todo.values()), max(0.0, deadline - time.monotonic()))
        if not ready and shims.DEVICE != "cpu":  # a rank that waits for a GPU keeps a processor at work
            before, seen = seen, _alive(processes, todo, folder)
            if (before == seen or time.monotonic() > last) and not wait(list(todo.values()), 0):
                break
            deadline = time.monotonic() + _LOOK_S
            continue
        if not ready:
            pids = _pids(processes, todo)
            is_endless = any(
                processor_time.used_s(pid) - used.get(pid, 0.0) > processor_time.LONGEST * deadline_s for pid in pids
            )
            quiet = 0 if processor_time.at_work(pids) else quiet + 1
            # an answer that came meanwhile counts
            if (is_endless or quiet >= (1 if failed else _QUIET)) and not wait(list(todo.values()), 0):
                break
        for number in [number for number, pipe in todo.items() if pipe in ready]:
            try:
                answer = pipes[number].recv()
            except (EOFError, OSError):
                processes[number].join()
                answer = Rank("died", None, f"died with exit code {processes[number].exitcode}", ())
            if answer == _READY:
                met += 1
                if not failed:  # peers of a rank that raised early may still be starting
                    deadline = time.monotonic() + (deadline_s if met == len(pipes) else _START_S)
                    last = time.monotonic() + _MOVING * deadline_s
                    quiet, used = 0, {pid: processor_time.used_s(pid) for pid in _pids(processes, todo)}
                continue
            del todo[number]
            answers[number] = answer
            if answer.state != "done":
                failed = True
                # its peers still reach the point where they wait for it
                deadline = min(deadline, time.monotonic() + (0.0 if shims.DEVICE == "cpu" else _PEERS_S))
    if met < len(pipes) and not failed:
        raise TimeoutError(f"only {met} of {len(pipes)} ranks met, and none is at work")
    return answers


def _pids(processes: Sequence[ForkProcess], numbers: Iterable[int]) -> list[int]:
    return [pid for number in numbers if (pid := processes[number].pid) is not None]


def _dump(folder: str, number: int) -> str:
    return os.path.join(folder, f"stack{number}")


def _dump_when_asked(path: str) -> None:
    """Have the stacks of all threads written to a file on a signal, even while Python code does not run."""
    file = open(path, "a")  # noqa: SIM115 - its descriptor stays in use, and each look empties the file
    os.set_blocking(file.fileno(), False)  # as set_wakeup_fd wants it
    signal.signal(_DUMP, lambda *_: None)  # called after faulthandler, so that the number follows the stacks
    signal.set_wakeup_fd(file.fileno())
    faulthandler.register(_DUMP, file=file, all_threads=True, chain=True)


def _alive(processes: Sequence[ForkProcess], numbers: Collection[int], folder: str) -> dict[int, Rank]:
    """Return these ranks, which are still alive, with their stacks."""
    for number, pid in zip(numbers, _pids(processes, numbers)):
        os.truncate(_dump(folder, number), 0)
        os.kill(pid, _DUMP)
    return {number: _dumped(_dump(folder, number), processes[number]) for number in numbers}


def _dumped(path: str, process: ForkProcess) -> Rank:
    """Return a rank whose stacks faulthandler is writing to ``path``."""
    quiet = 0
    while True:
        with open(path) as file:
            text = file.read()
        if text.endswith(_DUMPED) or quiet == _QUIET:
            return Rank("alive", None, "", tuple(stacks.of_dump(text)))
        quiet = 0 if processor_time.at_work(_pids([process], [0]), 0.1) else quiet + 1
