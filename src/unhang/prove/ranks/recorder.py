"""Records what each rank of a job issues, one rank after the other, on torch's ``fake`` process-group backend.

The functions of ``torch.distributed`` are replaced wherever they are held, so object collectives and
``batch_isend_irecv`` are recorded too. The record of a rank ends with ``Unseen`` where it does what a schedule cannot
show: it calls a process group's own methods or a functional collective, makes a group in another way, uses the store or
starts a thread, or reads a value of another rank (``taint``) that the case does not declare.

Not noticed: files, the clock, random numbers, other processes, and what one rank leaves in this process for the next.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import threading
import traceback
import warnings
from typing import TYPE_CHECKING, Any

from . import arguments, calls, torch_functions
from .async_work import Together, Work
from .groups import Groups
from .operations import Made, Operation, Raised, Step, Unjudged, Unseen, Wait
from .outputs import Outputs
from .sites import site
from .taint import Taint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import FrameType

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # all of the proofs


class Recorder:
    """Wraps torch.distributed, and records what the current rank issues."""

    def __init__(self, backend: str, declared: Mapping[str, Any]) -> None:
        """``backend`` is what the groups report as theirs, such as ``nccl`` or ``cpu:gloo,cuda:nccl``.

        ``declared`` maps a function to the value of another rank that is read in it.
        """
        self._declared = declared
        self._unseen: Unseen | None = None
        self._is_recording = self._is_batch = self._is_checking = False
        self._made_at, self._told = "?", 0
        self._rank = 0
        self._steps: list[Step] = []
        self._together: dict[str, Together] = {}
        self._groups = Groups(backend)
        self._taint = Taint(self._cannot_see, self._read)
        self._outputs = Outputs(self._taint)
        self._issued = 0
        self._places: dict[str, int] = {}
        self._sites: dict[tuple[Any, int], str] = {}

    def install(self) -> None:
        """Replace the functions of torch, for the life of the process (a fork)."""
        from torch.distributed import c10d_logger

        found = [(name, by) for name, by in self._replacements() if torch_functions.find(name) is not None]
        self._was = {name: torch_functions.replace(name, by) for name, by in found}
        # for its log of an error torch asks nccl for its version, which a torch without CUDA does not have
        c10d_logger._get_msg_dict = lambda *_, **__: {}
        self._mode = self._taint.mode()
        self._taint.install()
        start = threading.Thread.start

        def starting(thread: threading.Thread) -> None:
            if self._is_recording:
                self._cannot_see("a thread")
            start(thread)

        setattr(threading.Thread, "start", starting)  # noqa: B010 - mypy knows no other way

    def _replacements(self) -> Iterator[tuple[str, Callable[..., Any]]]:
        """Return what replaces each function."""

        def coalescing(group: object = None, device: object = None, async_ops: bool = False) -> Iterator[Together]:
            with Together(self._together, (self._groups.find(group) or ("",))[0], async_ops) as together:
                yield together

        make = self._groups.maker(lambda ranks: self._was["new_group"](ranks), self._made_locally)

        def new_group(*args: Any, **kwargs: Any) -> Any:
            self._made_at = self._here()
            return make(*args, **kwargs)

        def batch(*args: Any, **kwargs: Any) -> Any:
            self._is_batch = True
            try:
                return self._was["batch_isend_irecv"](*args, **kwargs)
            finally:
                self._is_batch = False

        def helper(*args: Any, **kwargs: Any) -> Any:
            if self._is_recording and not self._groups.is_making:
                self._cannot_see("a group that new_group did not make")
            return self._was["_new_process_group_helper"](*args, **kwargs)

        for name, row in calls.COLLECTIVES.items():
            yield name, self._wrap(name, *row, self._collective)
        for name, row in calls.POINT_TO_POINT.items():
            yield name, self._wrap(name, *row, self._point_to_point)
        for name in calls.OTHERS:
            yield name, self._outside(name)
        yield "new_group", new_group
        yield "get_backend", self._groups.backend
        yield "_coalescing_manager", coalescing
        yield "batch_isend_irecv", batch
        yield "_new_process_group_helper", helper

    def record(
        self, ranks: Iterable[int], world: int, prepare: Callable[[int], object], body: Callable[[int], Any]
    ) -> tuple[dict[int, list[Step]], dict[int, Any]]:
        """Return what each of these ranks issues in ``body``, and what ``body`` returns, both by rank.

        What ``prepare`` issues is not recorded. An error in ``body`` is recorded as ``Raised``. Raises what ``prepare``
        raises.
        """
        programs: dict[int, list[Step]] = {}
        values: dict[int, Any] = {}
        for rank in ranks:
            self._start(rank, world)
            try:
                with self._mode:
                    prepare(rank)
                    self._steps, self._issued, self._told = [], 0, len(self._groups.made)
                    values[rank] = self._run(body, rank)
            except Unjudged:  # in the preparation
                pass
            finally:
                self._end()
            self._tell_groups()
            programs[rank] = [*self._steps, *([self._unseen] if self._unseen else [])]
        return programs, values

    def _start(self, rank: int, world: int) -> None:
        """Become this rank, in a new default group, with nothing recorded."""
        import torch.distributed as dist
        from torch.testing._internal.distributed.fake_pg import FakeStore

        self._rank, self._steps, self._together = rank, [], {}
        self._places, self._issued, self._unseen = {}, 0, None
        self._groups.start(rank, world)
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))  # as real ranks have it
        self._store = _store(FakeStore, self._cannot_see)  # torch itself only keeps its C++ half
        dist.init_process_group("fake", store=self._store, rank=rank, world_size=world)
        self._is_recording = True

    def _end(self) -> None:
        import torch.distributed as dist

        self._is_recording = False
        dist.destroy_process_group()

    def _run(self, body: Callable[[int], Any], rank: int) -> Any:
        """Return what the body returns; None where it ends with an error, which is recorded."""
        try:
            return body(rank)
        except (Exception, SystemExit) as error:
            self._raised(error)
        except Unjudged as limit:
            self._unseen = self._unseen or Unseen(str(limit), self._here())
        return None

    def _tell_groups(self) -> None:
        """Record the groups made since the last step."""
        if len(self._groups.made) > self._told:
            self._steps.append(Made(tuple(self._groups.made[self._told :]), self._made_at))
            self._told = len(self._groups.made)

    def _made_locally(self, name: str, ranks: tuple[int, ...]) -> None:
        self._issue(Operation("new_group", f"made {name}", ranks, "", "only its members make it", self._made_at), "")

    def _outside(self, name: str) -> Callable[..., Any]:
        """Return what replaces a function that only the harness itself may call."""

        def outside(*args: Any, **kwargs: Any) -> Any:
            if self._is_recording:
                self._cannot_see(name)
            return self._was[name](*args, **kwargs)

        return outside

    def _cannot_see(self, what: str) -> Any:
        """End the record of this rank."""
        if self._is_recording:
            self._unseen = self._unseen or Unseen(what, self._here())
            raise Unjudged(what)

    def _read(self, how: str, *, is_value: bool = True) -> Any:
        """Return the declared value of what this rank reads of another one."""
        frame: FrameType | None = sys._getframe(1)
        while is_value and frame is not None:
            if frame.f_code.co_name in self._declared:
                return self._declared[frame.f_code.co_name]
            frame = frame.f_back
        return self._cannot_see(f"a value of another rank, read with {how.partition('.')[0].strip('_')}")

    def _wrap(self, name: str, kind: str, payload: str, peer: str, note: Callable[..., Any]) -> Any:
        real = torch_functions.find(name)
        if real is None:  # a torch that does not have it
            return None
        signature = inspect.signature(real)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if self._is_checking:
                return self._was[name](*args, **kwargs)
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
        source = calls.peer(kind, given, root, ranks) if root else -1
        self._check(name, kind, given, ranks, is_root=source == self._rank)
        operation = Operation(kind, group, ranks, "", "", self._here(), not given.get("async_op", False))
        about = f"root {source}" if root else ""
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
        operation = operation._replace(signature=about, shown=operation.shown or about, root=source)
        place = self._places.get(group, 0)
        self._places[group] = place + 1
        work = self._issue(operation, group)
        self._fill(kind, given, (group, place), ranks)
        return work

    def _point_to_point(self, name: str, kind: str, given: dict[str, Any], payload: str, peer: str) -> Any:
        known = self._groups.find(given.get("group"))
        if known is None:
            return None
        group, ranks = known
        other = calls.peer(kind, given, peer, ranks)
        self._check(name, kind, given, ranks)
        if other == self._rank:
            raise Unjudged("a schedule does not show what a rank sends to itself")
        pair = (self._rank, other) if kind == "send" else (other, self._rank)
        tag = 0 if "nccl" in self._groups.backend(given.get("group")) else given.get("tag", 0)  # which NCCL ignores
        channel = f"{group} {pair[0]}->{pair[1]} {tag}"
        objects = payload == "object_list"
        about = f"{len(given[payload])} objects" if objects else calls.elements(given[payload])
        shown = about if objects else calls.shown(given[payload])
        operation = Operation(kind, channel, pair, about, shown, self._here(), name not in calls.ASYNC)
        is_ordered = "gloo" not in self._groups.backend(given.get("group")).split(":")[-1] and not self._is_batch
        work = self._issue(operation._replace(in_order=is_ordered), group)
        self._fill(kind, given, (channel, 0), pair)
        return other if name == "recv" else work

    def _check(
        self, name: str, kind: str, given: dict[str, Any], ranks: Sequence[int], *, is_root: bool = False
    ) -> None:
        """Raise what torch and the backend raise for these arguments."""
        if "object" in kind or "object_list" in given:
            arguments.check_lists(kind, given, len(ranks), is_root=is_root)
            return
        self._is_checking = True
        try:
            # a RuntimeError is the stand-in backend's own; a warning stops no job
            with self._taint.paused(), contextlib.suppress(RuntimeError), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._was[name](**given)
        finally:
            self._is_checking = False
        backend = self._groups.backend(given.get("group"))
        arguments.check_tensors(kind, given, ranks.index(self._rank), len(ranks), is_gloo="gloo" in backend)

    def _fill(self, kind: str, given: dict[str, Any], key: tuple[str, int], ranks: Sequence[int]) -> None:
        """Fill the outputs of an operation; end the record where undeclared objects of another rank arrive."""
        objects = self._outputs.fill(self._rank, kind, given, key, ranks)
        if objects is not None:
            objects[:] = self._read(kind)

    def _issue(self, operation: Operation, group: str) -> Any:
        self._tell_groups()
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
            self._tell_groups()
            if steps is self._steps:  # an operation issued before the recording is no part of it
                steps.append(Wait(operation, self._here()))

        return Work(note)

    def _raised(self, error: BaseException) -> None:
        """Record that this rank ends with an error."""
        where = "?"
        for frame, line in traceback.walk_tb(error.__traceback__):
            if not _is_inside(frame.f_code.co_filename):
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


def _store(kind: type, cannot_see: Callable[[str], Any]) -> Any:
    """Return a store that tells of its use: it would bring values of other ranks."""
    names = ("set", "get", "add", "wait", "check", "compare_set", "multi_get", "multi_set", "append", "delete_key")
    methods = {name: lambda *_, _name=name, **__: cannot_see(f"the store's {_name}") for name in names}
    return type("Store", (kind,), methods)()


def _is_inside(file: str) -> bool:
    import torch

    return file.startswith((os.path.dirname(torch.__file__) + os.sep, _HERE + os.sep, "<"))


def _of_code(code: Any, line: int) -> str:
    return site(code.co_filename, line, code.co_name)
