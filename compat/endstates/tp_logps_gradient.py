"""tp-logps-gradient: the log probabilities of each shard of a vocabulary, and where their gradients go.

A number knows its value, and the way back of its gradient: a weight for each logit, on any rank. As in torch, a plain
all-reduce changes values alone. The ranks run in rounds: each meets what its peers gave in the round before.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

from unhang.compat.endstates.endstate import EndState, Outcome, Source, called, importing
from unhang.compat.endstates.standin import StandIn
from unhang.compat.endstates.tensors import Tensor, torch
from unhang.shapes.shape import Function

WIDTH = 2
_COLLECTIVES = 3  # a maximum, a sum, and the sum of its gradient
_UPSTREAMS = "_AllReduceAcrossVocabShards"
Ways = dict[tuple[int, int], float]
"""By rank and place of a logit: how much of a gradient reaches it."""


class Setting(NamedTuple):
    """One job, and the logits of each rank."""

    tp: int = 2
    grad: bool = True
    """Whether the caller wants a gradient. For old and reference log probabilities none does."""
    shape: tuple[int, ...] = (2, 2)
    """Of the logits, without the vocabulary."""
    order: str = "rising"
    dtype: str = "float32"

    def logit(self, rank: int, place: int) -> float:
        at = (place // WIDTH) * WIDTH * self.tp + rank * WIDTH + place % WIDTH  # row by row over all ranks
        return {"rising": at / 3, "falling": -at / 3, "tied": place // WIDTH / 3, "far": 1000 + math.sin(at)}[
            self.order
        ]


class LogSoftmax(EndState):
    """The end state of vocab_parallel_log_softmax."""

    varied: ClassVar[dict[str, str]] = {"tp_size": "tp"}
    without: ClassVar[dict[str, Any]] = {"grad": False}

    def configurations(self, function: Function) -> Iterator[Setting]:
        orders, dtypes = ("rising", "falling", "tied", "far"), ("float32", "bfloat16")
        for chosen in itertools.product((1, 2, 4), (True, False), ((3,), (1, 2), (2, 2)), orders, dtypes):
            yield Setting(*chosen)

    def concerned(self, configuration: Setting) -> bool:
        return configuration.tp > 1 and configuration.grad

    def observe(self, source: Source, configuration: Setting) -> Outcome:
        peers: list[Rank] = []
        for _ in range(_COLLECTIVES + 1):
            peers = [Rank(configuration, rank, peers) for rank in range(configuration.tp)]
            for rank in peers:
                rank.run(source)
        faults = frozenset(_faults(configuration, peers))
        return Outcome(faults, repr([(rank.result, rank.logits, rank.issued) for rank in peers]))


class Number:
    """An element of a tensor."""

    def __init__(self, rank: Rank, value: float, ways: Ways) -> None:
        self.rank, self.value, self.ways = rank, value, ways if rank.has_graph else {}

    def __repr__(self) -> str:
        return f"{self.value!r} {sorted(self.ways.items())}"

    def __add__(self, other: Number | float) -> Number:
        return self._with(other, 1)

    def __sub__(self, other: Number | float) -> Number:
        return self._with(other, -1)

    def _with(self, other: Number | float, sign: int) -> Number:
        number = other if isinstance(other, Number) else Number(self.rank, other, {})
        return Number(self.rank, self.value + sign * number.value, total([(1, self.ways), (sign, number.ways)]))


class Logits(Tensor):
    """A tensor whose last dimension is the vocabulary; its elements are numbers with ways."""

    def max(self, dim: int, keepdim: bool = False) -> Any:  # type: ignore[override]
        return self._reduced(dim, keepdim, lambda row: max(row, key=lambda it: it.value)), None

    def sum(self, dim: int, keepdim: bool = False) -> Any:  # type: ignore[override]
        return self._reduced(dim, keepdim, lambda row: sum(row[1:], row[0]))

    def detach(self) -> Any:
        return like(self, [Number(it.rank, it.value, {}) for it in self.values_])

    def _reduced(self, dim: int, keepdim: bool, reduce: Callable[[list[Number]], Number]) -> Logits:
        if dim not in (-1, len(self.shape) - 1):
            raise ValueError(f"reduced over the dimension {dim}")
        width = self.shape[-1]
        rows = [reduce(self.values_[at : at + width]) for at in range(0, len(self.values_), width)]
        fresh = [Number(it.rank, it.value, it.ways) for it in rows]  # without ways where no graph is kept
        return like(self, fresh, (*self.shape[:-1], *[1] * keepdim))


def like(other: Tensor, values: list[Number], shape: Sequence[int] | None = None) -> Logits:
    """Return a tensor with the dtype and the device of another, and with its shape if none is given."""
    return Logits(values, other.dtype, other.device, shape=other.shape if shape is None else shape)


def total(parts: Sequence[tuple[float, Ways]]) -> Ways:
    """Return the sum of ways, each of a weight."""
    places = {place for _, ways in parts for place in ways}
    return {place: math.fsum(weight * ways.get(place, 0.0) for weight, ways in parts) for place in places}


class Rank:
    """What one rank did. Its peers are those of the round before, itself among them."""

    def __init__(self, setting: Setting, number: int, peers: Sequence[Rank]) -> None:
        self.setting, self.number, self.peers = setting, number, peers
        self.has_graph = setting.grad
        self.given: list[list[Number]] = []
        self.issued: list[tuple[str, str]] = []
        shape = (*setting.shape, WIDTH)
        values = [Number(self, setting.logit(number, at), {(number, at): 1.0}) for at in range(math.prod(shape))]
        self.logits = Logits(values, setting.dtype, shape=shape)
        self.result: Any = None

    def run(self, source: Source) -> None:
        """Run the function as this rank."""
        setting, reduce = self.setting, self.sum_forward
        both = {"apply": lambda given, group: self.sum_backward(reduce(given, group), group)}
        region = "{}_tensor_model_parallel_region"
        tensor_parallel = StandIn(
            "tensor_parallel",
            **{region.format("reduce_from"): lambda input_, group="tp": reduce(input_, group)},
            **{region.format("copy_to"): lambda input_, group="tp": self.sum_backward(input_, group)},
        )
        distributed = StandIn(
            "torch.distributed",
            ReduceOp=StandIn("ReduceOp", SUM="sum", MAX="max", MIN="min"),
            all_reduce=lambda tensor, op="sum", group="world": self.reduce(tensor, op, group),
            get_rank=lambda group="world": self.number,
        )
        names = {
            "__builtins__": importing({"megatron.core": SimpleNamespace(tensor_parallel=tensor_parallel)}),
            "mpu": StandIn(
                "mpu",
                get_tensor_model_parallel_world_size=lambda: setting.tp,
                get_tensor_model_parallel_group=lambda: "tp",
                get_data_parallel_group=lambda: "dp",
            ),
            "torch": torch(
                distributed=distributed,
                no_grad=self.no_grad,
                exp=self.exp,
                log=self.log,
                nn=SimpleNamespace(functional=StandIn("functional", log_softmax=self.log_softmax)),
            ),
            **({_UPSTREAMS: StandIn(_UPSTREAMS, **both)} if _UPSTREAMS in source.bound else {}),
        }
        self.result = called(source, names)(self.logits)

    @contextmanager
    def no_grad(self) -> Iterator[None]:
        before, self.has_graph = self.has_graph, False
        yield
        self.has_graph = before

    def exp(self, given: Tensor) -> Logits:
        values = [(math.exp(it.value), it.ways) for it in given.values_]
        return like(given, [Number(self, value, total([(value, ways)])) for value, ways in values])

    def log(self, given: Tensor) -> Logits:
        values = [Number(self, math.log(it.value), total([(1 / it.value, it.ways)])) for it in given.values_]
        return like(given, values)

    def log_softmax(self, given: Logits, dim: int) -> Any:
        moved = given - given.detach().max(dim, True)[0]
        return moved - self.log(self.exp(moved).sum(dim, True))

    def reduce(self, tensor: Any, op: str, group: str) -> None:
        """Reduce values in place, of which autograd knows nothing."""
        combine: dict[str, Callable[[list[float]], float]] = {"sum": math.fsum, "max": max, "min": min}
        for at, peers in enumerate(zip(*self.met(op, group, tensor.values_))):
            tensor.values_[at] = copy(tensor.values_[at])
            tensor.values_[at].value = combine[op]([it.value for it in peers])

    def sum_forward(self, given: Any, group: str) -> Any:
        self.reduce(given, "sum", group)
        return given

    def sum_backward(self, given: Any, group: str) -> Any:
        if not self.has_graph:
            return given
        rows = zip(*self.met("sum of gradients", group, given.values_))
        ways = [total([(1, it.ways) for it in peers]) for peers in rows]
        return like(given, [Number(self, it.value, way) for it, way in zip(given.values_, ways)])

    def met(self, kind: str, group: str, values: Sequence[Number]) -> list[list[Number]]:
        """Give the ranks of a group some numbers; return those of each of them, as far as they came."""
        self.issued.append((kind, group))
        self.given.append([*values])
        at = len(self.given) - 1
        others = [it.given[at] for it in self.peers if it.number != self.number and len(it.given) > at]
        return [self.given[at], *others]


def _faults(setting: Setting, ranks: Sequence[Rank]) -> Iterator[str]:
    due = [("max", "tp"), ("sum", "tp"), ("sum of gradients", "tp")]
    if any(rank.issued != ranks[0].issued for rank in ranks):
        yield "the ranks issue other collectives"
    if any(rank.issued.count(it) > (it in due and setting.tp > 1) for rank in ranks for it in rank.issued):
        yield "a rank reduces more than a maximum, a sum and its gradient in the group of the shards"
    for rank in ranks:
        fresh = Rank(setting, rank.number, ())
        if repr(rank.logits) != repr(fresh.logits):
            yield "the logits change"
        if (rank.result.shape, rank.result.dtype) != (fresh.logits.shape, setting.dtype):
            yield "the result has another shape or dtype"
            return
        for place, number in enumerate(rank.result.values_):
            yield from _of_number(setting, rank.number, place, number)


def _of_number(setting: Setting, rank: int, place: int, number: Number) -> Iterator[str]:
    """Yield what is wrong with one log probability."""
    row = place // WIDTH * WIDTH
    whole = {(it, at): setting.logit(it, at) for it in range(setting.tp) for at in range(row, row + WIDTH)}
    shift = max(whole.values())
    norm = math.log(math.fsum(math.exp(it - shift) for it in whole.values())) + shift
    if not math.isclose(number.value, whole[rank, place] - norm, abs_tol=1e-9):
        yield "a log probability is wrong"
    due = {it: float(it == (rank, place)) - math.exp(logit - norm) for it, logit in whole.items()}
    if setting.grad and any(
        not math.isclose(number.ways.get(it, 0.0), due.get(it, 0.0), abs_tol=1e-9) for it in {*due, *number.ways}
    ):
        yield "the gradient of a log probability is wrong"


END_STATES = {"vocab_parallel_log_softmax": LogSoftmax()}
