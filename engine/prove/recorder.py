"""Records what each rank of a job issues, one rank after the other, on torch's ``fake`` process-group backend.

What is wrapped are the functions of ``torch.distributed``, so object collectives and ``batch_isend_irecv`` are seen as
well. Not seen: a function that an upstream imported by name before (``from torch.distributed import ...``), calls of a
process group's own methods, and functional collectives. Nothing is moved between ranks, with one exception: what an
earlier rank has broadcast reaches the later ones. After any other operation a rank finds its own values, so control
flow that depends on values of others needs real ranks (``ranks``).
"""

from __future__ import annotations

import inspect
import os
import sys
from typing import TYPE_CHECKING, Any

from .places import place
from .schedule import Operation, Raised, Step, Wait

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import FrameType

# name -> kind, the argument that carries what all members must agree on, the argument that names the root
_COLLECTIVES: dict[str, tuple[str, str, str]] = {
    "broadcast": ("broadcast", "tensor", "src"),
    "all_reduce": ("all_reduce", "tensor", ""),
    "all_reduce_coalesced": ("all_reduce_coalesced", "tensors", ""),
    "reduce": ("reduce", "tensor", "dst"),
    "all_gather": ("all_gather", "tensor", ""),
    "all_gather_single": ("all_gather_into_tensor", "input_tensor", ""),
    "all_gather_into_tensor": ("all_gather_into_tensor", "input_tensor", ""),
    "_all_gather_base": ("all_gather_into_tensor", "input_tensor", ""),
    "all_gather_coalesced": ("all_gather_coalesced", "input_tensor_list", ""),
    "gather": ("gather", "tensor", "dst"),
    "scatter": ("scatter", "tensor", "src"),
    "reduce_scatter": ("reduce_scatter", "output", ""),
    "reduce_scatter_single": ("reduce_scatter_tensor", "output", ""),
    "reduce_scatter_tensor": ("reduce_scatter_tensor", "output", ""),
    "_reduce_scatter_base": ("reduce_scatter_tensor", "output", ""),
    "all_to_all_single": ("all_to_all", "", ""),
    "all_to_all": ("all_to_all", "", ""),
    "barrier": ("barrier", "", ""),
    "monitored_barrier": ("monitored_barrier", "", ""),
    "all_gather_object": ("all_gather_object", "", ""),
    "gather_object": ("gather_object", "", "dst"),
    "broadcast_object_list": ("broadcast_object_list", "object_list", "src"),
    "scatter_object_list": ("scatter_object_list", "", "src"),
}
# name -> kind, the argument with the payload, the argument that names the peer
_POINT_TO_POINT: dict[str, tuple[str, str, str]] = {
    "send": ("send", "tensor", "dst"),
    "recv": ("recv", "tensor", "src"),
    "isend": ("send", "tensor", "dst"),
    "irecv": ("recv", "tensor", "src"),
    "send_object_list": ("send", "object_list", "dst"),
    "recv_object_list": ("recv", "object_list", "src"),
}
_ASYNC = frozenset({"isend", "irecv"})
_HERE = os.path.dirname(os.path.abspath(__file__))


class Recorder:
    """Wraps torch.distributed, and keeps what the rank that runs now issues."""

    def __init__(self, backend: str) -> None:
        """``backend`` is what the groups say they are served by, as ``nccl`` or ``cpu:gloo,cuda:nccl``."""
        self.backend = backend
        self.rank, self.world = 0, 1
        self.steps: list[Step] = []
        self._groups: dict[int, tuple[str, tuple[int, ...]]] = {}
        self._backends: dict[int, str] = {}
        self._kept: list[Any] = []  # the groups: an id is only theirs while they live
        self._count = 0
        self._issued = 0
        self._broadcast: dict[tuple[str, int], Any] = {}
        self._places: dict[str, int] = {}
        self._depth = 0
        self._sites: dict[tuple[Any, int], str] = {}
        self._world_ranks: tuple[int, ...] = ()

    def start(self, rank: int, world: int) -> None:
        """Become this rank, with nothing issued so far, in a fresh default group."""
        import torch.distributed as dist
        from torch.testing._internal.distributed.fake_pg import FakeStore

        self.rank, self.world, self.steps = rank, world, []
        if len(self._world_ranks) != world:
            self._world_ranks = tuple(range(world))
        self._groups, self._backends, self._kept = {}, {}, []
        self._places, self._count, self._issued = {}, 0, 0
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)

    def stop(self) -> None:
        """Take the default group away."""
        import torch.distributed as dist

        dist.destroy_process_group()

    def install(self) -> None:
        """Put the wrappers into place, in ``torch.distributed`` and the module behind it, for good: in a fork."""
        import torch.distributed as dist

        wrappers = {name: self._wrap(name, *row, self._collective) for name, row in _COLLECTIVES.items()}
        wrappers |= {name: self._wrap(name, *row, self._point_to_point) for name, row in _POINT_TO_POINT.items()}
        wrappers |= {"new_group": self._new_group(dist.new_group), "get_backend": self._get_backend}
        for name, wrapper in wrappers.items():
            for module in (dist, dist.distributed_c10d):
                if wrapper is not None and hasattr(module, name):
                    setattr(module, name, wrapper)

    def _wrap(self, name: str, kind: str, payload: str, peer: str, note: Callable[..., Any]) -> Any:
        import torch.distributed as dist

        real = getattr(dist, name, None) or getattr(dist.distributed_c10d, name, None)
        if real is None:  # a torch that does not have it
            return None
        signature = inspect.signature(real)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return note(name, kind, bound.arguments, payload, peer)

        wrapper.__name__ = name
        return wrapper

    def _group(self, group: Any) -> tuple[str, tuple[int, ...]] | None:
        """Name and ranks of a group; None where this rank is no member."""
        import torch.distributed as dist

        if group is None or group is dist.group.WORLD:
            return "world", self._world_ranks
        if group is dist.GroupMember.NON_GROUP_MEMBER:
            return None
        if id(group) not in self._groups:  # made by other ways than new_group
            self._groups[id(group)] = str(group.group_name), tuple(dist.get_process_group_ranks(group))
        return self._groups[id(group)]

    def _collective(self, name: str, kind: str, given: dict[str, Any], payload: str, root: str) -> Any:
        known = self._group(given.get("group"))
        if known is None:
            return None
        group, ranks = known
        operation = Operation(kind, group, ranks, "", "", self.site(), not given.get("async_op", False))
        about = f"root {self._peer(given, root, ranks)}" if root else ""
        if kind == "all_to_all":
            operation = operation._replace(splits=_splits(given, len(ranks)), shown=_shown(_input(given)))
            about = str(_first(_input(given)).dtype)
        elif kind == "broadcast_object_list":
            about += f", {len(given['object_list'])} objects"
        elif payload:
            operation = operation._replace(shown=_shown(given[payload]))
            about = f"{_elements(given[payload])}{about and ', '}{about}"
        if "op" in given:
            about += f", {str(given['op']).rpartition('.')[2]}"
        operation = operation._replace(signature=about, shown=operation.shown or about)
        place = self._places.get(group, 0)
        self._places[group] = place + 1
        self._move(kind, given, (group, place), ranks)
        return self._issue(operation)

    def _point_to_point(self, name: str, kind: str, given: dict[str, Any], payload: str, peer: str) -> Any:
        known = self._group(given.get("group"))
        if known is None:
            return None
        group, ranks = known
        other = self._peer(given, peer, ranks)
        if other is None:
            raise NotImplementedError("a receive from any source has no schedule to be checked")
        pair = (self.rank, other) if kind == "send" else (other, self.rank)
        channel = f"{group} {pair[0]}->{pair[1]} {given.get('tag', 0)}"
        objects = payload == "object_list"
        about = f"{len(given[payload])} objects" if objects else _elements(given[payload])
        shown = about if objects else _shown(given[payload])
        return self._issue(Operation(kind, channel, pair, about, shown, self.site(), name not in _ASYNC))

    def _issue(self, operation: Operation) -> Any:
        self.steps.append(operation)
        self._issued += 1
        return None if operation.waits else Work(self, self._issued - 1)

    @staticmethod
    def _peer(given: dict[str, Any], name: str, ranks: Sequence[int]) -> int | None:
        """The global rank of a root or peer, given as such or as its place in the group."""
        place: int | None = given.get(f"group_{name}")
        peer: int | None = given.get(name)
        return peer if place is None else ranks[place]

    def _move(self, kind: str, given: dict[str, Any], key: tuple[str, int], ranks: Sequence[int]) -> None:
        """Leave in the outputs what is to be found there: never memory that nobody has written."""
        import torch

        with torch.no_grad():
            if kind == "broadcast":
                self._broadcasts(given["tensor"], key, self._peer(given, "src", ranks))
            elif kind == "broadcast_object_list":
                if self._peer(given, "src", ranks) in (self.rank, None):
                    self._broadcast[key] = list(given["object_list"])
                elif len(self._broadcast.get(key, ())) == len(given["object_list"]):
                    given["object_list"][:] = self._broadcast[key]
            elif kind == "all_gather_object":
                given["object_list"][:] = [given["obj"]] * len(ranks)
            elif kind == "all_gather":
                for out in given["tensor_list"]:
                    _fill(out, given["tensor"])
            elif kind == "all_gather_into_tensor":
                _fill(given["output_tensor"], given["input_tensor"])
            elif kind == "reduce_scatter_tensor":
                _fill(given["output"], given["input"])
            elif kind == "reduce_scatter":
                _fill(given["output"], given["input_list"][0])
            elif kind == "all_to_all" and "output" in given:
                _fill(given["output"], given["input"])

    def _broadcasts(self, tensor: Any, key: tuple[str, int], source: int | None) -> None:
        if source == self.rank:
            self._broadcast[key] = tensor.detach().clone()
            return
        kept = self._broadcast.get(key)
        if kept is not None and kept.numel() == tensor.numel() and kept.dtype == tensor.dtype:
            tensor.copy_(kept.view_as(tensor))
        else:
            tensor.zero_()

    def waited(self, operation: int) -> None:
        """Note that this rank waits for an operation of its own."""
        self.steps.append(Wait(operation, self.site()))

    def raised(self, error: BaseException) -> None:
        """Note that this rank ends with an error."""
        trace, site = error.__traceback__, "?"
        while trace is not None:
            site = _site(trace.tb_frame.f_code, trace.tb_lineno)
            trace = trace.tb_next
        self.steps.append(Raised(f"{type(error).__name__}: {str(error)[:200]}", site))

    def _new_group(self, real: Callable[..., Any]) -> Callable[..., Any]:
        import torch.distributed as dist

        def new_group(
            ranks: Sequence[int] | None = None,
            timeout: object = None,
            backend: object = None,
            pg_options: object = None,
            use_local_synchronization: bool = False,
            *_: object,
            **__: object,
        ) -> Any:
            members = self._world_ranks if ranks is None else tuple(sorted(ranks))
            self._count += 1
            if self.rank not in members:  # torch would look at each of its ranks first: at 1,024, most of the time
                return None if use_local_synchronization else dist.GroupMember.NON_GROUP_MEMBER
            group = real(list(members))
            self._groups[id(group)] = f"group {self._count}", members
            self._backends[id(group)] = str(backend or self.backend)
            self._kept.append(group)
            return group

        return new_group

    def _get_backend(self, group: Any = None) -> str:
        return self._backends.get(id(group), self.backend)

    def site(self) -> str:
        """The innermost place outside of torch and of these modules: file, line and function."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            key = frame.f_code, frame.f_lineno
            if key not in self._sites:
                self._sites[key] = "" if _is_inside(frame.f_code.co_filename) else _site(*key)
            if self._sites[key]:
                return self._sites[key]
            frame = frame.f_back
        return "?"


class Work:
    """What an asynchronous operation returns. To ask whether it is done counts as to wait for it."""

    def __init__(self, recorder: Recorder, operation: int) -> None:
        self._recorder, self._operation, self._waited = recorder, operation, False

    def wait(self, timeout: object = None) -> bool:
        """Wait, once: what is complete stays so."""
        if not self._waited:
            self._waited = True
            self._recorder.waited(self._operation)
        return True

    def is_completed(self) -> bool:
        """Whether it is done."""
        return self.wait()

    is_success = is_completed
    synchronize = wait


def record(
    recorder: Recorder, ranks: Iterable[int], world: int, prepare: Callable[[int], object], body: Callable[[int], Any]
) -> tuple[dict[int, list[Step]], dict[int, Any]]:
    """What each of these ranks issues in ``body``, and what that returns. What ``prepare`` issues is not kept.

    An error in ``body`` is a finding (``Raised``); one in ``prepare`` is passed on.
    """
    programs: dict[int, list[Step]] = {}
    values: dict[int, Any] = {}
    for rank in ranks:
        recorder.start(rank, world)
        try:
            prepare(rank)
            recorder.steps, recorder._issued = [], 0
            try:
                values[rank] = body(rank)
            except Exception as error:
                recorder.raised(error)
            programs[rank] = recorder.steps
        finally:
            recorder.stop()
    return programs, values


def _is_inside(file: str) -> bool:
    import torch

    return file.startswith((os.path.dirname(torch.__file__) + os.sep, _HERE + os.sep, "<"))


def _site(code: Any, line: int) -> str:
    return place(code.co_filename, line, code.co_name)


def _first(payload: Any) -> Any:
    return payload[0] if isinstance(payload, (list, tuple)) else payload


def _input(given: dict[str, Any]) -> Any:
    return given["input"] if "input" in given else given["input_tensor_list"]


def _elements(payload: Any) -> str:
    tensors = payload if isinstance(payload, (list, tuple)) else [payload]
    return f"{sum(tensor.numel() for tensor in tensors)} x {_dtype(tensors[0])}"


def _shown(payload: Any) -> str:
    tensor = _first(payload)
    return f"{list(tensor.shape)} {_dtype(tensor)}"


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _splits(given: dict[str, Any], members: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """How many elements of an all-to-all go to each member, and come from each."""
    if "input_tensor_list" in given:
        return (
            tuple(tensor.numel() for tensor in given["input_tensor_list"]),
            tuple(tensor.numel() for tensor in given["output_tensor_list"]),
        )
    sides = []
    for tensor, splits in (given["input"], given["input_split_sizes"]), (given["output"], given["output_split_sizes"]):
        rows = tensor.shape[0] if tensor.dim() else 0
        each = tensor.numel() // rows if rows else 0
        counts = [int(count) for count in splits] if splits is not None and len(splits) else [rows // members] * members
        sides.append(tuple(count * each for count in counts))
    return sides[0], sides[1]


def _fill(out: Any, source: Any) -> None:
    """Fill ``out`` with the values of ``source``, over and over, or with its first ones."""
    if not out.numel():
        return
    if not source.numel():
        out.zero_()
        return
    times = -(-out.numel() // source.numel())
    out.copy_(source.reshape(-1).repeat(times)[: out.numel()].view_as(out))
