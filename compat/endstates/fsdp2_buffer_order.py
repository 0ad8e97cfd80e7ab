"""fsdp2-buffer-order: what each rank broadcasts, in which order, and what its buffers hold afterwards."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from unhang.compat.endstates.endstate import EndState, Outcome, Source, called, importing
from unhang.compat.endstates.standin import StandIn
from unhang.compat.endstates.tensors import UNINITIALISED, Tensor, torch
from unhang.shapes.branches import branches
from unhang.shapes.shape import Function

SIZES = {
    "model.layers.10.rotary.inv_freq": 256,
    "model.layers.11.rotary.inv_freq": 128,
    "model.layers.11.rotary.sin_freq": 1,
    "model.layers.11.Rotary.inv_freq": 64,
    "visual.layers.11.rotary.inv_freq": 256,
}
"""Of names that differ in one part each: the beginning, the middle, the leaf, or a capital."""


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


class Model(StandIn):
    """A sharded model, of which only the buffers are followed. A buffer is known by its origin."""

    def __init__(self, buffers: Mapping[str, Tensor]) -> None:
        super().__init__("model", every=buffers, device="before")

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        return iter(self.every.items())

    def buffers(self) -> Iterator[Tensor]:
        return iter(self.every.values())

    def to(self, device: str, non_blocking: bool = False) -> Model:
        self.device = device
        for buffer in self.buffers():
            buffer.data = buffer.to(device)
        return self

    def to_empty(self, device: str) -> Model:
        for buffer in self.to(device).buffers():
            buffer.fill_(UNINITIALISED)
        return self


class Seen(NamedTuple):
    """What one rank did."""

    model: Model
    broadcast: list[tuple[Tensor, int]]
    """The buffers in order, each with its source."""
    loaded: list[Any]
    between: set[tuple[int, str]]
    """How much was loaded, and where the model was, when a buffer was broadcast."""


def run_rank(source: Source, setting: Setting, rank: int) -> Seen:
    """Run the function as one rank."""
    turn = rank % (len(setting.buffers) or 1) if setting.differ else 0
    names = (setting.buffers[turn:] + setting.buffers[:turn])[:: -1 if turn % 2 else 1]
    sizes = {name: 64 if setting.alike else SIZES[name] for name in names}
    model = Model({it: Tensor(it, "float32", "before", {it}, (size,)) for it, size in sizes.items()})
    seen = Seen(model, [], [], set())

    def broadcast(tensor: Tensor, src: int) -> None:
        seen.broadcast.append((tensor, src))
        seen.between.add((len(seen.loaded), model.device))

    checkpoint = StandIn(
        "state_dict",
        StateDictOptions=lambda **options: tuple(sorted(options.items())),
        set_model_state_dict=lambda model, model_state_dict, options: seen.loaded.append((model_state_dict, options)),
    )
    dist = StandIn(
        "dist", get_rank=lambda group=None: rank, get_world_size=lambda group=None: setting.ranks, broadcast=broadcast
    )
    cuda = StandIn("torch.cuda", current_device=lambda: "device")
    name = "torch.distributed.checkpoint.state_dict"
    stand_ins = {
        "__builtins__": importing({name: checkpoint, f"verl.third_party.{name}": checkpoint}),
        "dist": dist,
        "torch": torch(__version__=setting.torch, cuda=cuda, distributed=dist),
        "version": StandIn("version", parse=lambda version: [int(part) for part in version.split(".")]),
        "get_device_id": lambda: "device",
    }
    called(source, stand_ins)(model, "weights" if rank == 0 else {}, None, "policy" if setting.offload else None)
    return seen


class LoadFullStateDict(EndState):
    """The end state of fsdp2_load_full_state_dict."""

    varied: ClassVar[dict[str, str]] = {
        "cpu_offload": "offload",
        "dist.get_rank": "every rank",
        **dict.fromkeys(("torch.__version__", "version.parse"), "torch"),
    }
    without: ClassVar[dict[str, Any]] = {"differ": False}

    def configurations(self, function: Function) -> Iterator[Setting]:
        names = tuple(SIZES)
        torches = ("2.6.0", "2.7.0") if "torch.__version__" in branches(function) else ("2.7.0",)
        off_on = (False, True)
        for ranks, count in itertools.product((1, 2, 4), (0, 1, 2, 3, 5)):
            for others in itertools.product(off_on, off_on, off_on, torches):
                yield Setting(ranks, names[:count], *others)

    def concerned(self, configuration: Setting) -> bool:
        return configuration.differ and configuration.ranks > 1 and len(configuration.buffers) > 1

    def observe(self, source: Source, configuration: Setting) -> Outcome:
        seen = [run_rank(source, configuration, rank) for rank in range(configuration.ranks)]
        faults = frozenset(_played(seen))
        ends = [
            (
                one.loaded,
                sorted(one.between),
                sorted((name, str(it.described())) for name, it in one.model.named_buffers()),
                one.model.device,
            )
            for one in seen
        ]
        # in which order does not matter, if it is one order
        return Outcome(faults, repr((ends, [sorted(map(str, [it.origin for it, _ in one.broadcast])) for one in seen])))


def _played(seen: Sequence[Seen]) -> Iterator[str]:
    """Move the values as the broadcasts do, and yield what is wrong."""
    if len({len(one.broadcast) for one in seen}) > 1:
        yield "a rank makes fewer broadcasts"
    for step in zip(*(one.broadcast for one in seen)):
        if {source for _, source in step} != {0}:
            yield "the source is not rank 0"
        if len({buffer.shape for buffer, _ in step}) > 1:
            yield "buffers of different sizes meet in one broadcast"
        for buffer, _ in step[1:]:
            buffer.values_ = [*step[0][0].values_]
    for name, buffer in (pair for one in seen for pair in one.model.named_buffers()):
        if {*buffer.values_} != {name} or buffer.origin != {name}:
            yield "a buffer holds the values of another one, or none"
        if buffer.device != "device":
            yield "a buffer is not on the device"


END_STATES = {"fsdp2_load_full_state_dict": LoadFullStateDict()}
