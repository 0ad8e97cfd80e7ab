"""fsdp2-buffer-order: what each rank broadcasts, in which order, and what its buffers hold afterwards."""

from __future__ import annotations

import builtins
import itertools
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

from unhang.compat.endstates.branches import branches
from unhang.compat.endstates.endstate import EndState, Outcome, Source, code_of, defined
from unhang.shapes.shape import Function

SIZES = {"rotary.sliding": 256, "rotary.full": 128, "embed.scale": 1}


class Setting(NamedTuple):
    """One job: its ranks, and the buffers of its model."""

    ranks: int = 2
    buffers: tuple[str, ...] = tuple(SIZES)
    differ: bool = False
    """Whether each rank has registered them in another order."""
    alike: bool = False
    """Whether all have one size."""
    offload: bool = False
    torch: str = "2.7.0"


class Buffer:
    """A tensor that is no parameter. Two of them cannot be compared."""

    def __init__(self, name: str, size: int) -> None:
        self.name, self.size = name, size
        self.value, self.device = f"values of {name}", "before"

    @property
    def data(self) -> Buffer:
        return self

    @data.setter
    def data(self, other: Buffer) -> None:
        assert other is self

    def to(self, device: str) -> Buffer:
        self.device = device
        return self

    def numel(self) -> int:
        return self.size

    def __lt__(self, other: object) -> bool:
        raise RuntimeError("tensors have no order")


class Model:
    """A sharded model, of which only the buffers are followed."""

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        self.all, self.device = buffers, "before"

    def named_buffers(self) -> Iterator[tuple[str, Buffer]]:
        return ((buffer.name, buffer) for buffer in self.all)

    def buffers(self) -> Iterator[Buffer]:
        return iter(self.all)

    def to(self, device: str, non_blocking: bool = False) -> Model:
        self.device = device
        for buffer in self.all:
            buffer.to(device)
        return self

    def to_empty(self, device: str) -> Model:
        for buffer in self.to(device).all:
            buffer.value = "uninitialized"
        return self


class Seen(NamedTuple):
    """What one rank did."""

    model: Model
    broadcast: list[tuple[Buffer, int]]
    """The buffers in order, each with its source."""
    loaded: list[Any]
    between: set[tuple[int, str]]
    """How much was loaded, and where the model was, when a buffer was broadcast."""


def run_rank(source: Source, setting: Setting, rank: int) -> Seen:
    """Run the function as one rank."""
    turn = rank % (len(setting.buffers) or 1) if setting.differ else 0
    names = setting.buffers[turn:] + setting.buffers[:turn]
    model = Model([Buffer(name, 64 if setting.alike else SIZES[name]) for name in names])
    seen = Seen(model, [], [], set())

    def broadcast(buf: Buffer, src: int) -> None:
        seen.broadcast.append((buf, src))
        seen.between.add((len(seen.loaded), model.device))

    checkpoint = SimpleNamespace(
        StateDictOptions=lambda **options: tuple(sorted(options.items())),
        set_model_state_dict=lambda model, state, options: seen.loaded.append((state, options)),
    )
    dist = SimpleNamespace(get_rank=lambda: rank, broadcast=broadcast)
    cuda = SimpleNamespace(current_device=lambda: "device")
    namespace = {
        "__builtins__": {**vars(builtins), "__import__": lambda *_: checkpoint},
        "dist": dist,
        "torch": SimpleNamespace(__version__=setting.torch, cuda=cuda, distributed=dist),
        "version": SimpleNamespace(parse=lambda text: [int(part) for part in text.split(".")]),
        "get_device_id": lambda: "device",
    }
    load = defined(code_of(source), source.function.name, namespace)
    load(model, "weights" if rank == 0 else {}, None, "policy" if setting.offload else None)
    return seen


class LoadFullStateDict(EndState):
    """The end state of fsdp2_load_full_state_dict."""

    varied: ClassVar[dict[str, str]] = {
        "cpu_offload": "offload",
        "dist.get_rank": "every rank",
        **dict.fromkeys(("torch.__version__", "version.parse"), "torch"),
    }
    held: ClassVar[dict[str, str]] = {}

    def configurations(self, function: Function) -> Iterator[Setting]:
        names = tuple(SIZES)
        torches = ("2.6.0", "2.7.0") if "torch.__version__" in branches(function) else ("2.7.0",)
        off_on = (False, True)
        for ranks, count in itertools.product((1, 2, 4), (0, 1, 2, 3)):
            for differ, alike, offload, torch in itertools.product(off_on, off_on, off_on, torches):
                yield Setting(ranks, names[:count], differ, alike, offload, torch)

    def concerned(self, configuration: Setting) -> bool:
        return configuration.differ and configuration.ranks > 1 and len(configuration.buffers) > 1

    def control(self, configuration: Setting) -> Setting | None:
        return configuration._replace(differ=False) if self.concerned(configuration) else None

    def observe(self, source: Source, configuration: Setting) -> Outcome:
        seen = [run_rank(source, configuration, rank) for rank in range(configuration.ranks)]
        faults = frozenset(_played(seen))
        ends = [
            (
                one.loaded,
                sorted(one.between),
                sorted((it.name, it.value, it.device) for it in one.model.all),
                one.model.device,
            )
            for one in seen
        ]
        # in which order does not matter, if it is one order
        return Outcome(faults, repr((ends, [sorted(buffer.name for buffer, _ in one.broadcast) for one in seen])))


def _played(seen: Sequence[Seen]) -> Iterator[str]:
    """Move the values as the broadcasts do, and yield what is wrong."""
    if len({len(one.broadcast) for one in seen}) > 1:
        yield "a rank makes fewer broadcasts"
    for step in zip(*(one.broadcast for one in seen)):
        if {source for _, source in step} != {0}:
            yield "the source is not rank 0"
        if len({buffer.size for buffer, _ in step}) > 1:
            yield "buffers of different sizes meet in one broadcast"
        for buffer, _ in step[1:]:
            buffer.value = step[0][0].value
    for buffer in (buffer for one in seen for buffer in one.model.all):
        if buffer.value != f"values of {buffer.name}":
            yield "a buffer holds the values of another one, or none"
        if buffer.device != "device":
            yield "a buffer is not on the device"


END_STATES = {"fsdp2_load_full_state_dict": LoadFullStateDict()}
