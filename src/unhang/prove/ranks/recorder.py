"""Records what each rank of a job issues, one rank after the other, on torch's ``fake`` process-group backend.

The functions of ``torch.distributed`` are wrapped wherever a module has them by name, so object collectives and
``batch_isend_irecv`` are recorded too. Not recorded: functions that a class or a default argument holds, a process
group's own methods, and functional collectives. Sends and receives that a rank does not wait for at once may complete
in any order, as in a batch; outside of a batch, NCCL may keep those of two ranks in order.

``outputs`` describes the values that an operation leaves. Control flow that depends on values of other ranks needs real
ranks (``gloo``).
"""

from __future__ import annotations

import inspect
import os
import sys
import traceback
from typing import TYPE_CHECKING, Any

from . import calls, torch_functions
from .async_work import Together, Work
from .groups import Groups
from .operations import Operation, Raised, Step, Unjudged, Wait
from .outputs import Outputs
from .sites import site

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # all of the proofs


class Recorder:
    """Wraps torch.distributed, and records what the current rank issues."""

    def __init__(self, backend: str) -> None:
        """``backend`` is what the groups report as theirs, such as ``nccl`` or ``cpu:gloo,cuda:nccl``."""
        self._rank = 0
        self._steps: list[Step] = []
        self._together: dict[str, Together] = {}
        self._groups = Groups(backend)
        self._outputs = Outputs()
        self._issued = 0
        self._places: dict[str, int] = {}
        self._sites: dict[tuple[Any, int], str] = {}

    def install(self, places: Iterable[torch_functions.Place]) -> None:
        """Replace the real functions at these places by wrappers, for the life of the process (a fork)."""
        import torch.distributed as dist

        def coalescing(group: object = None, device: object = None, async_ops: bool = False) -> Together:
            return Together(self._together, (self._groups.find(group) or ("",))[0], async_ops)

        wrappers = {name: self._wrap(name, *row, self._collective) for name, row in calls.COLLECTIVES.items()}
        wrappers |= {name: self._wrap(name, *row, self._point_to_point) for name, row in calls.POINT_TO_POINT.items()}
        wrappers |= {"new_group": self._groups.maker(dist.new_group), "get_backend": self._groups.backend}
        wrappers |= {"_coalescing_manager": coalescing}
        for names, own, name in places:
            names[own] = wrappers[name]

    def record(
        self, ranks: Iterable[int], world: int, prepare: Callable[[int], object], body: Callable[[int], Any]
    ) -> tuple[dict[int, list[Step]], dict[int, Any]]:
        """Return what each of these ranks issues in ``body``, and what ``body`` returns, both by rank.

        What ``prepare`` issues is not recorded. An error in ``body`` is recorded as ``Raised``. Raises Unjudged, and
        what ``prepare`` raises.
        """
        import torch.distributed as dist

        programs: dict[int, list[Step]] = {}
        values: dict[int, Any] = {}
        for rank in ranks:
            self._start(rank, world)
            try:
                prepare(rank)
                self._steps, self._issued = [], 0
                try:
                    values[rank] = body(rank)
                except Exception as error:
                    self._raised(error)
                programs[rank] = self._steps
            finally:
                dist.destroy_process_group()
        return programs, values

    def _start(self, rank: int, world: int) -> None:
        """Become this rank, in a new default group, with nothing recorded."""
        import torch.distributed as dist
        from torch.testing._internal.distributed.fake_pg import FakeStore

        self._rank, self._steps, self._together = rank, [], {}
        self._places, self._issued = {}, 0
        self._groups.start(rank, world)
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)

    def _wrap(self, name: str, kind: str, payload: str, peer: str, note: Callable[..., Any]) -> Any:
        real = torch_functions.find(name)
        if real is None:  # a torch that does not have it
            return None
        signature = inspect.signature(real)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return note(name, kind, bound.arguments, payload, peer)

        wrapper.__name__ = name
        return wrapper

    def _collective(self, name: str, kind: str, given: dict[str, Any], payload: str, root: str) -> Any:
        known = self._groups.find(given.get("group"))
        if known is None:
            return None
        group, ranks = known
        operation = Operation(kind, group, ranks, "", "", self._here(), not given.get("async_op", False))
        about = f"root {calls.peer(kind, given, root, ranks)}" if root else ""
        if kind in ("all_to_all", "all_gather"):
            sent = calls.input_of(given)
            operation = operation._replace(splits=calls.splits(given, len(ranks)), shown=calls.shown(sent))
            about = str(calls.first(sent).dtype)
        elif kind == "broadcast_object_list":
            about += f", {len(given['object_list'])} objects"
        elif payload:
            operation = operation._replace(shown=calls.shown(given[payload]))
            about = f"{calls.elements(given[payload])}{about and ', '}{about}"
        if "op" in given:
            about += f", {str(given['op']).rpartition('.')[2]}"
        operation = operation._replace(signature=about, shown=operation.shown or about)
        place = self._places.get(group, 0)
        self._places[group] = place + 1
        self._outputs.fill(self._rank, kind, given, (group, place), ranks)
        return self._issue(operation, group)

    def _point_to_point(self, name: str, kind: str, given: dict[str, Any], payload: str, peer: str) -> Any:
        known = self._groups.find(given.get("group"))
        if known is None:
            return None
        group, ranks = known
        other = calls.peer(kind, given, peer, ranks)
        if other == self._rank:
            raise Unjudged("a schedule does not show what a rank sends to itself")
        pair = (self._rank, other) if kind == "send" else (other, self._rank)
        tag = 0 if "nccl" in self._groups.backend(given.get("group")) else given.get("tag", 0)  # which NCCL ignores
        channel = f"{group} {pair[0]}->{pair[1]} {tag}"
        objects = payload == "object_list"
        about = f"{len(given[payload])} objects" if objects else calls.elements(given[payload])
        shown = about if objects else calls.shown(given[payload])
        self._outputs.fill(self._rank, kind, given, (channel, 0), pair)
        operation = Operation(kind, channel, pair, about, shown, self._here(), name not in calls.ASYNC)
        return self._issue(operation, group)

    def _issue(self, operation: Operation, group: str) -> Any:
        work = self._work()
        together = self._together.get(group)
        self._steps.append(operation if together is None else operation._replace(waits=False))
        if together is not None:
            together.append(work)
        return None if together is not None or operation.waits else work

    def _work(self) -> Work:
        """Return the work of the next operation."""
        steps, operation = self._steps, self._issued
        self._issued += 1

        def note() -> None:
            if steps is self._steps:  # an operation issued before the recording is no part of it
                steps.append(Wait(operation, self._here()))

        return Work(note)

    def _raised(self, error: BaseException) -> None:
        """Record that this rank ends with an error."""
        where = "?"
        for frame, line in traceback.walk_tb(error.__traceback__):
            if not frame.f_code.co_filename.startswith(_HERE + os.sep):
                where = _of_code(frame.f_code, line)
        self._steps.append(Raised(f"{type(error).__name__}: {str(error)[:200]}", where))

    def _here(self) -> str:
        """Return the innermost call site outside of torch and of these modules."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            key = frame.f_code, frame.f_lineno
            if key not in self._sites:
                self._sites[key] = "" if _is_inside(frame.f_code.co_filename) else _of_code(*key)
            if self._sites[key]:
                return self._sites[key]
            frame = frame.f_back
        return "?"


def _is_inside(file: str) -> bool:
    import torch

    return file.startswith((os.path.dirname(torch.__file__) + os.sep, _HERE + os.sep, "<"))


def _of_code(code: Any, line: int) -> str:
    return site(code.co_filename, line, code.co_name)
