"""mean-metric-dtype: which dtype each rank of a group reduces, and what it returns."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

from unhang.compat.endstates.endstate import EndState, Outcome, Source, called
from unhang.compat.endstates.standin import StandIn
from unhang.compat.endstates.tensors import Float64, Tensor, torch
from unhang.shapes.shape import Function

STATES: dict[str, tuple[float, int]] = {
    "nothing": (0.0, 0),
    "floats": (3.0, 4),
    "numpy": (Float64(1.0), 2),
    "numpy zero": (Float64(0.0), 2),
}
"""State and count of a rank: fresh, or after updates. The sum of ``numpy.bool_`` is a ``numpy.float64``."""


class Setting(NamedTuple):
    """One job of two ranks, and what each of them has counted."""

    first: str = "numpy"
    second: str = "nothing"
    distributed: bool = True
    nan_value: int | None = 0
    device: str = "cuda:0"
    group: str | None = "group"

    @property
    def states(self) -> list[tuple[float, int]]:
        return [STATES[name] for name in (self.first, self.second)]


class Compute(EndState):
    """The end state of MeanMetric.compute."""

    varied: ClassVar[dict[str, str]] = {"dist.is_initialized": "distributed", "self.count": "first"}

    def configurations(self, function: Function) -> Iterator[Setting]:
        for chosen in itertools.product(STATES, STATES, (True, False), (0, None), ("cuda:0", "npu:0"), ("group", None)):
            yield Setting(*chosen)

    def has_feature(self, source: Source) -> bool:
        return "all_reduce" in ast.unparse(source.function)

    def concerned(self, configuration: Setting) -> bool:
        return configuration.distributed and any(isinstance(state, Float64) for state, _ in configuration.states)

    def control(self, configuration: Setting) -> Setting | None:
        plain = {"numpy": "floats", "numpy zero": "floats"}
        first, second = (plain.get(name, name) for name in (configuration.first, configuration.second))
        return configuration._replace(first=first, second=second) if self.concerned(configuration) else None

    def observe(self, source: Source, configuration: Setting) -> Outcome:
        given = [run(source, configuration, rank, []) for rank in (0, 1)]  # what each rank reduces
        ranks = [run(source, configuration, rank, given[1 - rank].reduced) for rank in (0, 1)]
        joins = self.has_feature(source) and configuration.distributed
        return Outcome(frozenset(_faults(configuration, ranks, joins)), repr(ranks))


class Rank(NamedTuple):
    """What one rank did: the tensors that it reduced, as they were, with how, and what it has then."""

    reduced: list[tuple[str, list[float], str, str, str | None]]
    value: dict[str, float | None]
    state: float
    counted: float


def run(source: Source, setting: Setting, rank: int, peer: list[Any]) -> Rank:
    """Run the method as one rank, whose peer reduces these tensors."""
    state, count = setting.states[rank]
    metric = StandIn(
        "self", state=state, count=count, nan_value=setting.nan_value, device=setting.device, group=setting.group
    )
    reduced: list[tuple[str, list[float], str, str, str | None]] = []

    def all_reduce(given: Tensor, op: str = "sum", group: str | None = None) -> None:
        reduced.append((given.dtype, list(map(float, given.values_)), given.device, op, group))
        for _, values, *_ in peer[len(reduced) - 1 : len(reduced)]:
            given.data = given + Tensor(values, given.dtype, given.device)

    distributed = StandIn(
        "dist",
        is_initialized=lambda: setting.distributed,
        all_reduce=all_reduce,
        get_rank=lambda group=None: rank,
        get_world_size=lambda group=None: 2,
        ReduceOp=StandIn("dist.ReduceOp", SUM="sum", MAX="max"),
    )
    value = called(source, {"torch": torch(distributed=distributed), "dist": distributed})(metric)
    return Rank(reduced, value, float(metric.state), float(metric.count))


def _faults(setting: Setting, ranks: list[Rank], joins: bool) -> Iterator[str]:
    if any(len(rank.reduced) != joins for rank in ranks):
        yield "a rank reduces other than once"
        return
    total = [sum(column) for column in zip(*setting.states)]
    for rank, own in zip(ranks, setting.states):
        state, count = total if joins else own
        mean = state / count if count else setting.nan_value
        if (rank.value, rank.state, rank.counted) != ({"value": mean}, state, count):
            yield "a rank returns another mean"
    for dtype, _, device, op, group in (reduced for rank in ranks for reduced in rank.reduced):
        if dtype != ranks[0].reduced[0][0]:
            yield "the ranks reduce different dtypes"
        if (device, op, group) != (setting.device, "sum", setting.group):
            yield "a rank reduces otherwise"
        if dtype == "float64" and device == "npu:0":
            yield "an NPU has no float64"
        if dtype == "int64":
            yield "a rank reduces integers"


END_STATES = {"MeanMetric.compute": Compute()}
