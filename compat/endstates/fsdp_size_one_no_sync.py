"""fsdp-size-one-no-sync: over how many ranks FSDP shards and averages, with the strategy that the function chooses.

Of FSDP it knows what is in torch's ``_init_utils.py``: a hybrid strategy shards in the last dimension of the mesh, any
other one in the first. Where one rank is all of the group that shards, FSDP makes NO_SHARD of the strategy, and
averages in that group alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import ClassVar, NamedTuple

from unhang.compat.endstates.endstate import EndState, Outcome, Source, called, importing, parameters
from unhang.compat.endstates.standin import StandIn
from unhang.shapes.shape import Function

HYBRID = ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")
GATHERED_ONCE = ("SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2")
"""The strategies that keep the weights whole from the forward pass to the backward pass."""
STRATEGIES = (*HYBRID, "FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")


class Setting(NamedTuple):
    """One mesh: replicas and shards, or shards alone; and whether the weights are gathered twice."""

    shape: tuple[int, ...] = (2, 1)
    zero3: bool = True


class Mesh(StandIn):
    """A device mesh."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        names = ("ddp", "fsdp", "tp")[: len(shape)] if len(shape) > 1 else ("fsdp",)
        super().__init__("device_mesh", ndim=len(shape), shape=shape, mesh_dim_names=names)

    def size(self, mesh_dim: int | None = None) -> int:
        return math.prod(self.shape) if mesh_dim is None else int(self.shape[mesh_dim])


class Made(NamedTuple):
    """What FSDP makes of a strategy."""

    shards: int
    averaged: int
    """Over how many ranks gradients are averaged."""
    is_gathered_once: bool


class GetShardingStrategy(EndState):
    """The end state of the function."""

    varied: ClassVar[dict[str, str]] = {
        "device_mesh.ndim": "shape",
        "device_mesh.size": "shape",
        "zero3_enable": "zero3",
    }

    def configurations(self, function: Function) -> Iterator[Setting]:
        shapes = [(2,), (8,), *itertools.product((2, 4, 8), (1, 2, 4)), (2, 2, 2), (2, 1, 1)]
        for chosen in itertools.product(shapes, (True, False) if "zero3_enable" in parameters(function) else (True,)):
            yield Setting(*chosen)

    def concerned(self, configuration: Setting) -> bool:
        return len(configuration.shape) == 2 and configuration.shape[1] == 1

    def control(self, configuration: Setting) -> Setting | None:
        return configuration._replace(shape=(configuration.shape[0], 2)) if self.concerned(configuration) else None

    def observe(self, source: Source, configuration: Setting) -> Outcome:
        ranks = [_chosen(source, configuration, rank) for rank in (0, 1)]
        return Outcome(frozenset(_faults(configuration, ranks)), repr(ranks))


def _chosen(source: Source, setting: Setting, rank: int) -> str | None:
    """Return the strategy that the function chooses on a rank; None where it refuses the mesh."""
    fsdp = StandIn("torch.distributed.fsdp", ShardingStrategy=SimpleNamespace(**{name: name for name in STRATEGIES}))
    names = {
        "__builtins__": importing({"torch.distributed.fsdp": fsdp}),
        "torch": StandIn("torch", distributed=StandIn("torch.distributed", get_rank=lambda: rank)),
    }
    given = {"zero3_enable": setting.zero3} if "zero3_enable" in parameters(source.function) else {}
    try:
        chosen: str = called(source, names)(Mesh(setting.shape), **given)
    except NotImplementedError:
        return None
    return chosen


def made(shape: tuple[int, ...], strategy: str) -> Made:
    """Return what FSDP makes of a strategy with a mesh of this shape."""
    is_once = strategy in GATHERED_ONCE
    if strategy in HYBRID:
        replicas, shards = shape
        return Made(shards, replicas * shards, is_once) if shards > 1 else Made(1, 1, is_once)
    return Made(1 if strategy == "NO_SHARD" else shape[0], shape[0], is_once)


def _faults(setting: Setting, ranks: list[str | None]) -> Iterator[str]:
    strategy = ranks[0]
    if ranks != [strategy] * len(ranks):
        yield "the ranks choose different strategies"
    elif (strategy is None) != (len(setting.shape) > 2):
        yield "a mesh that FSDP knows is refused, or another one is not"
    elif strategy is not None and (strategy not in STRATEGIES or (strategy in HYBRID and len(setting.shape) != 2)):
        yield "FSDP knows no such strategy for this mesh"
    elif strategy is not None:
        yield from _of_fsdp(setting, strategy)


def _of_fsdp(setting: Setting, strategy: str) -> Iterator[str]:
    """Yield what is wrong with what FSDP does then."""
    found = made(setting.shape, strategy)
    if found.averaged != math.prod(setting.shape):
        yield f"gradients are averaged over {'one rank' if found.averaged == 1 else 'some ranks'}"
    if found.shards != setting.shape[-1]:
        yield "weights are sharded over another number of ranks"
    elif found.shards > 1 and found.is_gathered_once == setting.zero3:
        yield "weights are gathered more or less often than they should"


END_STATES = {"get_sharding_strategy": GetShardingStrategy()}
