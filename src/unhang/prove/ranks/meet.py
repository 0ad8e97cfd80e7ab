"""Lets ranks begin only those operations that all of their group will join: a hang is a fact, and ends no process.

A rank that would wait for an operation first tells a process of ours which ones it has issued, and begins one once each
rank of its group has issued it. If every rank waits or is done with its setting, none can go on, however slow the
machine is: ``Stuck`` then unwinds those that wait. The groups are as good as new afterwards, because no rank has begun
what not all will join. It knows what Python calls on ``ProcessGroup`` in a rank's main thread; of the rest, a deadline
still tells (see ``gloo``).
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

from . import tidy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection
    from typing import TypeAlias

    Key: TypeAlias = tuple[str, int]
    """A group, by its name (and of a message its two ranks), and the operation's number in it."""
    News: TypeAlias = list[tuple[Key, tuple[int, ...], str]]
    """Operations that a rank has issued, each with the ranks of its group and what these must agree on."""

_SIZED = {
    **dict.fromkeys(("allreduce", "broadcast", "reduce", "allgather", "_allgather_base", "reduce_scatter"), 0),
    **dict.fromkeys(("_reduce_scatter_base", "scatter", "send", "recv", "allreduce_coalesced"), 0),
    **dict.fromkeys(("allgather_into_tensor_coalesced", "reduce_scatter_tensor_coalesced"), 0),
    **{"gather": 1, "alltoall": None, "alltoall_base": None, "barrier": None},
    # from torch 2.13 on
    **dict.fromkeys(("all_gather_single", "reduce_scatter_single", "all_gather_single_coalesced"), 0),
    **{"reduce_scatter_single_coalesced": 0, "all_to_all_single": None},
}
"""Which argument of each operation has the tensors that are as large on each rank. No torch has all of them."""


class Stuck(BaseException):
    """An operation that never begins. The text says what else is wrong with it, if anything."""


class Meeting:
    """What each rank has issued and waits for, in one setting. Pure."""

    def __init__(self, world: int) -> None:
        self.world = world
        self.issued: dict[Key, dict[int, str]] = {}
        self.waits: dict[int, Key | None] = {}
        """What each rank waits for; None where it is done with the setting."""
        self.news: dict[int, list[Key]] = {rank: [] for rank in range(world)}
        """What may begin, and the rank has not been told."""
        self.begun: set[Key] = set()
        self.is_over = False
        """Whether no operation begins any more."""

    def told(self, rank: int, issued: News, key: Key | None) -> list[tuple[int, str, list[Key]]]:
        """Take what a rank says that now waits. Return what to tell which ranks: ``begin``, ``go``, ``stuck``, ``end``.

        With each come operations that the rank is to begin; only ``begin`` leaves it waiting.
        """
        self.waits[rank] = key
        for each, ranks, signature in issued:
            mine = self.issued.setdefault(each, {})
            mine[rank] = signature
            if mine.keys() == {*ranks} and len({*mine.values()}) == 1 and not self.is_over:
                self.begun.add(each)
                for member in ranks:
                    self.news[member].append(each)
        answers = []
        for waiting, wanted in [*self.waits.items()]:
            if wanted in self.begun:
                answers.append((waiting, "go"))
                del self.waits[waiting]
            elif self.news[waiting]:
                answers.append((waiting, "begin"))
        self.is_over = self.is_over or (len(self.waits) == self.world and any(self.waits.values()))
        for waiting, wanted in [*self.waits.items()]:
            if self.is_over and wanted is not None:
                answers.append((waiting, "stuck" + self._why(wanted)))
                del self.waits[waiting]
        if len(self.waits) == self.world:
            answers += [(waiting, "end") for waiting in self.waits]
        return [(to, word, self._taken(to)) for to, word in answers]

    def _taken(self, rank: int) -> list[Key]:
        taken, self.news[rank] = self.news[rank], []
        return taken

    def _why(self, key: Key) -> str:
        return f", as {' and '.join(sorted(it))}" if len(it := {*self.issued[key].values()}) > 1 else ""


class Meetings:
    """A process in which the ranks of a world meet: a context that yields each rank's pipe. Fork the ranks in it.

    ``is_last`` gets what each rank says of a setting that it is done with, and returns whether no other is to follow.
    """

    def __init__(self, world: int, is_last: Callable[[list[bytes]], bool] = lambda _: False) -> None:
        importlib.import_module("torch.distributed")  # once, not in every fork
        context = multiprocessing.get_context("fork")
        self._ours, self._theirs = zip(*(context.Pipe() for _ in range(world)))
        self._process = context.Process(target=_serve, args=(self._ours, os.getpid(), is_last), daemon=True)

    def __enter__(self) -> Sequence[Connection[Any, Any]]:
        self._process.start()
        return list(self._theirs)

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()
        for pipe in (*self._ours, *self._theirs):
            pipe.close()


def _serve(pipes: Sequence[Connection[Any, Any]], parent: int, is_last: Callable[[list[bytes]], bool]) -> None:
    from multiprocessing.connection import wait

    tidy.end_with(parent)
    meeting, said = Meeting(len(pipes)), [b""] * len(pipes)
    while True:
        ready = wait(pipes)
        for number in (number for number, pipe in enumerate(pipes) if pipe in ready):
            issued, key, said[number] = pipes[number].recv()
            answers, stops = meeting.told(number, issued, key), False
            if any(word == "end" for _, word, _ in answers):
                meeting, stops = Meeting(len(pipes)), is_last(said)
            for rank, word, keys in answers:
                pipes[rank].send((word, keys, stops))


class Held:
    """An operation that has not begun, in place of torch's work."""

    def __init__(self, gate: Gate, key: Key) -> None:
        self._gate, self._key = gate, key

    def wait(self, *given: Any, **others: Any) -> Any:
        """Wait until it is done; raise ``Stuck`` if that is never."""
        return self._gate.waited(self._key)(*given, **others)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._gate.begun(self._key), name)


class Gate:
    """A rank's side: it puts itself between Python and torch's groups, for as long as the process lives."""

    def __init__(self, pipe: Connection[Any, Any]) -> None:
        from torch.distributed import ProcessGroup

        self._pipe = pipe
        self._news: News = []
        self._calls: dict[Key, Callable[[], Any]] = {}
        self._works: dict[Key, Any] = {}
        self._left: set[Key] = set()
        """The operations for which nobody has waited."""
        self._counts: Counter[str] = Counter()
        for name, sized in ((it, _SIZED[it]) for it in _SIZED if hasattr(ProcessGroup, it)):
            setattr(ProcessGroup, name, self._instead(name, sized, getattr(ProcessGroup, name)))

    def _instead(self, name: str, sized: int | None, real: Any) -> Any:
        import torch.distributed as dist

        def issued(group: Any, *given: Any, **others: Any) -> Any:
            ranks, place = tuple(dist.get_process_group_ranks(group)), group.group_name
            if len(ranks) == 1 or threading.current_thread() is not threading.main_thread():
                return real(group, *given, **others)
            signature = f"{name}{_sizes(given[sized]) if sized is not None else ''}"
            if name in ("send", "recv"):
                ends = (group.rank(), given[1]) if name == "send" else (given[1], group.rank())
                ranks, signature = tuple(ranks[end] for end in ends), signature[4:]
                place = f"{place} {ranks} {given[2]}"
            key = place, self._counts[place]
            self._counts[place] += 1
            self._news.append((key, ranks, signature))
            self._calls[key] = lambda: real(group, *given, **others)
            self._left.add(key)
            return Held(self, key)

        return issued

    def begun(self, key: Key) -> Any:
        """Return torch's work of an operation, once all ranks of its group have issued it; raise its error."""
        if key not in self._works:
            self._told(key)
        if isinstance(self._works[key], Exception):
            raise self._works[key]
        return self._works[key]

    def waited(self, key: Key) -> Callable[..., Any]:
        """Return what waits for an operation, once it has begun; later waits write to memory that may be freed."""
        wait: Callable[..., Any] = self.begun(key).wait
        self._left.discard(key)
        return wait

    def end(self, said: bytes = b"") -> bool:
        """Wait until every rank is done with the setting, and its operations are. Return whether it was the last."""
        stops = self._told(None, said)
        for key in self._left:
            work = self._works.get(key)
            if work is not None and not isinstance(work, Exception):
                work.wait()
        for left in (self._calls, self._works, self._left, self._counts):
            left.clear()
        return stops

    def _told(self, key: Key | None, said: bytes = b"") -> bool:
        """Say what was issued, begin what may begin, and return once the operation has, or all ranks are done."""
        self._pipe.send((self._news, key, said))
        self._news = []
        word, stops = "begin", False
        while word == "begin":
            word, keys, stops = self._pipe.recv()
            for each in keys:
                try:
                    self._works[each] = self._calls[each]()
                except Exception as error:  # of the operation, and not of what waits here
                    self._works[each] = error
        if word.startswith("stuck"):
            raise Stuck(word.removeprefix("stuck"))
        return stops


def _sizes(tensors: Any) -> str:
    """Return the sizes and types of tensors, however deep they are in lists."""
    if isinstance(tensors, (list, tuple)):
        return "".join(map(_sizes, tensors))
    return f" {tensors.numel()} x {str(tensors.dtype).removeprefix('torch.')}"
