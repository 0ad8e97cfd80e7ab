"""reduce-noncontiguous: what each rank gets for its part of a sum, in which memory, and by how many copies."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

from unhang.compat.endstates.endstate import EndState, Outcome, Source, called, parameters
from unhang.compat.endstates.standin import StandIn
from unhang.compat.endstates.tensors import Misfit
from unhang.shapes.shape import Function


class Setting(NamedTuple):
    """The size of the group, and whether the tensor of each rank is contiguous."""

    ranks: int = 2
    contiguous: bool = True


class Part(StandIn):
    """A tensor of one value."""

    value: int

    def __init__(self, value: int, is_contiguous: bool, made: list[Part]) -> None:
        super().__init__("input_", value=value, is_contiguous=lambda: is_contiguous, made=made)
        made.append(self)

    def contiguous(self) -> Part:
        return self if self.is_contiguous() else self.clone()

    def clone(self) -> Part:
        return Part(self.value, True, self.made)


class Rank(NamedTuple):
    """What one rank did."""

    summed: list[int]
    """What it gave to each all-reduce in the group."""
    returned: int
    given: int
    """The value of the tensor that it got, after the call."""
    tensors: int
    """How many there are, with the copies."""
    is_same: bool
    """Whether it returned the tensor that it got."""


class Reduce(EndState):
    """The end state of the function."""

    varied: ClassVar[dict[str, str]] = {"get_tensor_model_parallel_world_size": "ranks", "group.size": "ranks"}
    without: ClassVar[dict[str, Any]] = {"contiguous": True}

    def configurations(self, function: Function) -> Iterator[Setting]:
        yield from itertools.starmap(Setting, itertools.product((1, 2, 4), (True, False)))

    def concerned(self, configuration: Setting) -> bool:
        return configuration.ranks > 1 and not configuration.contiguous

    def observe(self, source: Source, configuration: Setting) -> Outcome:
        parts = [10**rank for rank in range(configuration.ranks)]
        ranks = [_ran(source, configuration, rank, sum(parts)) for rank in range(configuration.ranks)]
        is_summed = configuration.ranks > 1
        faults = set()
        if any(rank.returned != sum(parts) for rank in ranks):
            faults.add("a rank does not return the sum")
        if any(rank.summed != [part] * is_summed for rank, part in zip(ranks, parts)):
            faults.add("the parts are not summed once")
        if any(rank.tensors != 1 + self.concerned(configuration) for rank in ranks):
            faults.add("more copies than one of a tensor that is not contiguous")
        return Outcome(frozenset(faults), repr(ranks))


def _ran(source: Source, setting: Setting, rank: int, total: int) -> Rank:
    """Run the function as one rank."""
    summed: list[int] = []
    group = StandIn("group", size=lambda: setting.ranks, rank=lambda: rank)

    def all_reduce(tensor: Part, op: str = "sum", group: object = None, async_op: bool = False) -> None:
        if not tensor.is_contiguous() or group is not groups["group"] or op != "sum" or async_op:
            raise Misfit("a tensor that is not contiguous, another group, another operation, or no wait")
        summed.append(tensor.value)
        tensor.value = total

    groups = {"group": group}
    distributed = StandIn("torch.distributed", all_reduce=all_reduce, get_rank=lambda group=None: rank)
    names = {
        "torch": StandIn("torch", distributed=distributed),
        "get_tensor_model_parallel_world_size": lambda: setting.ranks,
        "get_tensor_model_parallel_group": lambda: group,
    }
    made: list[Part] = []
    given = Part(10**rank, setting.contiguous, made)
    returned = called(source, names)(given, *[group] * ("group" in parameters(source.function)))
    return Rank(summed, returned.value, given.value, len(made), returned is given)


END_STATES = {"_reduce": Reduce()}
