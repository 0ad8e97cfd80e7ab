"""mean-metric-dtype: which dtype each rank of a group reduces, and what it returns."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

from unhang.compat.endstates.endstate import EndState, Outcome, Source, code_of, defined
from unhang.shapes.shape import Function


class Float64(float):
    """A ``numpy.float64``: what the sum of ``numpy.bool_`` makes of the state."""


STATES: dict[str, tuple[float, int]] = {
    "nothing": (0.0, 0),
    "floats": (3.0, 4),
    "numpy": (Float64(1.0), 2),
    "numpy zero": (Float64(0.0), 2),
}
"""State and count of a rank: fresh, or after updates."""


class Setting(NamedTuple):
    """One job of two ranks, and what each of them has counted."""

    first: str = "numpy"
    second: str = "nothing"
    distributed: bool = True
    nan_value: int | None = 0
    device: str = "cuda:0"

    @property
    def states(self) -> list[tuple[float, int]]:
        return [STATES[name] for name in (self.first, self.second)]


class Tensor:
    """A vector on a device, or one element of it."""

    def __init__(self, values: list[float], dtype: str, device: str) -> None:
        self.values, self.dtype, self.device = values, dtype, device

    def __getitem__(self, index: int) -> Tensor:
        return Tensor([self.values[index]], self.dtype, self.device)

    def __truediv__(self, other: Tensor) -> Tensor:
        return Tensor([self.item() / other.item()], self.dtype, self.device)

    def item(self) -> float:
        (value,) = self.values
        return float(value)


def tensor(values: list[float], dtype: str | None = None, device: str = "cpu") -> Tensor:
    """Return a tensor; without a dtype, its values decide, as in ``torch.tensor``."""
    kinds = {type(value) for value in values}
    inferred = "float64" if Float64 in kinds else "float32" if float in kinds else "int64"
    return Tensor(list(values), dtype or inferred, device)


class Compute(EndState):
    """The end state of MeanMetric.compute."""

    varied: ClassVar[dict[str, str]] = {"dist.is_initialized": "distributed", "self.count": "first"}
    held: ClassVar[dict[str, str]] = {}

    def configurations(self, function: Function) -> Iterator[Setting]:
        for chosen in itertools.product(STATES, STATES, (True, False), (0, None), ("cuda:0", "npu:0")):
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
    metric = SimpleNamespace(
        state=state, count=count, nan_value=setting.nan_value, device=setting.device, group="group"
    )
    reduced: list[tuple[str, list[float], str, str, str | None]] = []

    def all_reduce(given: Tensor, op: str = "sum", group: str | None = None) -> None:
        reduced.append((given.dtype, list(map(float, given.values)), given.device, op, group))
        for _, values, *_ in peer[len(reduced) - 1 : len(reduced)]:
            given.values = [one + other for one, other in zip(given.values, values)]

    namespace = {
        "torch": SimpleNamespace(tensor=tensor, float32="float32", float64="float64"),
        "dist": SimpleNamespace(
            is_initialized=lambda: setting.distributed,
            all_reduce=all_reduce,
            get_rank=lambda group=None: rank,
            ReduceOp=SimpleNamespace(SUM="sum", MAX="max"),
        ),
    }
    value = defined(code_of(source), source.function.name, namespace)(metric)
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
        if (device, op, group) != (setting.device, "sum", "group"):
            yield "a rank reduces otherwise"
        if dtype == "float64" and device == "npu:0":
            yield "an NPU has no float64"
        if dtype == "int64":
            yield "a rank reduces integers"


END_STATES = {"MeanMetric.compute": Compute()}
