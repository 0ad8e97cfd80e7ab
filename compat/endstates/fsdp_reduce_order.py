"""fsdp-reduce-order: which buckets each rank reduces, in which order, and how."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

from unhang.compat.endstates.endstate import EndState, Outcome, Source, called, parameters
from unhang.compat.endstates.standin import StandIn
from unhang.shapes.shape import Function

_SIZES = (2, 1, 3, 2, 1, 2)
_NOW, _EARLY, _NEVER = "now", "early", "never"


class Setting(NamedTuple):
    """One job: its ranks, and what is left over at the end of a backward pass."""

    ranks: int = 2
    buckets: tuple[int, ...] = _SIZES
    """The number of parameters of each."""
    differ: bool = False
    """Whether each rank has the parameters in another order."""
    rest: str = _NOW
    """When a bucket, and one parameter of another, come: in an earlier call; or that parameter never comes."""
    together: bool = False
    """Whether the second bucket and the last one are reduced as one."""
    frozen: bool = False
    """Whether the third needs no gradient."""
    outer: bool = False
    """Whether there are outer groups, a queue with a limit, and an iterator in place of a list."""


class Param(StandIn):
    """A parameter: its hash is another one on each rank, and its place in memory follows the order of the rank."""

    def __init__(self, bucket: int, number: int, rank: int, requires_grad: bool) -> None:
        super().__init__("param", bucket=bucket, number=number, rank=rank, requires_grad=requires_grad)

    def __hash__(self) -> int:
        return int((self.bucket + 7 * self.number) * (2 * self.rank + 1) % 61)


def run_rank(source: Source, setting: Setting, rank: int) -> list[tuple[Any, ...]]:
    """Run the function as one rank. Return each reduction: its buckets, and all else that is given for it."""
    last, buckets = len(setting.buckets) - 1, range(len(setting.buckets))
    turn = rank + 1 if setting.differ else 1
    places = sorted((number, -bucket) for bucket in buckets for number in range(setting.buckets[bucket]))
    places = (places[turn:] + places[:turn])[:: -1 if turn % 2 else 1]
    params = [Param(-bucket, number, rank, not (setting.frozen and bucket == -2)) for number, bucket in places]
    of = [[one for one in params if one.bucket == bucket] for bucket in buckets]
    groups = [StandIn("group", params=each, requires_grad=all(one.requires_grad for one in each)) for each in of]
    ready: list[set[Param]] = [set() for _ in buckets]
    did: list[tuple[Any, ...]] = []
    waited: list[Any] = []

    def group_of(bucket_id: int) -> list[int] | None:
        group = sorted({1, last}) if setting.together and bucket_id in (1, last) and last else [bucket_id]
        return group if all(len(ready[it]) == len(of[it]) for it in group) else None

    def reduce(group: list[int] | None, *how: Any) -> None:
        if group:
            did.append((tuple(group), *how, *waited[-1:]))
            waited.clear()

    def reduce_group(
        bucket_group: list[int],
        async_op: bool = False,
        inter_fsdp_group_grad_reduce: bool = False,
        outer_fsdp_group_grad_reduce: bool = False,
    ) -> None:
        reduce(bucket_group, async_op, inter_fsdp_group_grad_reduce, outer_fsdp_group_grad_reduce)

    def mark(
        bucket_id: int, inter_fsdp_group_grad_reduce: bool = False, async_op: bool = True, async_rs: bool = False
    ) -> None:
        reduce(group_of(bucket_id), inter_fsdp_group_grad_reduce, async_op, async_rs)

    itself = StandIn(
        "self",
        buffer=StandIn(
            "self.buffer",
            param_to_param_group={one: one.bucket for one in params},
            param_to_name={one: f"layers.{-one.bucket}.{one.number}" for one in params},
            parameter_groups=groups,
        ),
        bucket_grad_ready_params=ready,
        wait_for_previous_grad_reduce=lambda suggested_queue_capacity=None: waited.append(suggested_queue_capacity),
        get_ready_bucket_group_for_reduction=group_of,
        _bucket_group_gradient_reduce=reduce_group,
        mark_bucket_ready=mark,
        _mark_bucket_ready=mark,
    )
    known = parameters(source.function)
    options: dict[str, Any] = {name: True for name in known if setting.outer and name.endswith("_group_grad_reduce")}
    options |= {"suggested_queue_capacity": 7} if setting.outer else {}
    options |= {"async_grad_reduce": False} if "async_grad_reduce" in known and setting.outer else {}
    first = [one for one in params if one in of[-1][:1] or (one in of[0] and setting.rest == _EARLY)]
    left = [one for one in params if one not in first]
    distributed = StandIn("torch.distributed", get_rank=lambda group=None: rank)
    function = called(source, {"torch": StandIn("torch", distributed=distributed)})
    for some in {_NOW: [params], _EARLY: [first, left], _NEVER: [left]}[setting.rest]:
        function(itself, iter(some) if setting.outer else some, **options)
    return did


def _expected(setting: Setting) -> list[int]:
    """Return the buckets that are reduced once."""
    last = len(setting.buckets) - 1
    without = {2} if setting.frozen else set()
    without |= {last} if setting.rest == _NEVER else set()
    if setting.together and {1, last} & without:
        without |= {1, last}
    return [bucket for bucket in range(last + 1) if bucket not in without]


class ReduceGradients(EndState):
    """The end state of GradReducePipeline.reduce_gradients."""

    varied: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("bucket_group", "len", "bucket_id", "param_group.params"), "buckets, rest and together"),
        "self.bucket_grad_ready_params": "buckets and rest",
        "param.requires_grad": "frozen",
    }
    held: ClassVar[dict[str, str]] = {}

    def configurations(self, function: Function) -> Iterator[Setting]:
        off_on = (False, True)
        for ranks, count, differ in itertools.product((1, 2, 4), (0, 1, 2, 3, 6), off_on):
            for others in itertools.product((_NOW, _EARLY, _NEVER), off_on, off_on, off_on):
                yield Setting(ranks, _SIZES[:count], differ, *others)

    def concerned(self, configuration: Setting) -> bool:
        return configuration.differ and configuration.ranks > 1 and len(configuration.buckets) > 1

    def control(self, configuration: Setting) -> Setting | None:
        return configuration._replace(differ=False) if self.concerned(configuration) else None

    def observe(self, source: Source, configuration: Setting) -> Outcome:
        did = [run_rank(source, configuration, rank) for rank in range(configuration.ranks)]
        orders = [[group for group, *_ in one] for one in did]
        faults = {"the ranks reduce in different orders"} if any(it != orders[0] for it in orders) else set()
        if any(sorted(bucket for group in order for bucket in group) != _expected(configuration) for order in orders):
            faults.add("a bucket is not reduced once")
        # in which order does not matter, if it is one order
        return Outcome(frozenset(faults), repr([sorted(map(repr, one)) for one in did]))


END_STATES = {
    "GradReducePipeline.reduce_gradients": ReduceGradients(),
}
