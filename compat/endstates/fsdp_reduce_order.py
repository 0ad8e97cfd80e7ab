"""fsdp-reduce-order: TODO: what each rank does, and what is wrong with it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

from unhang.compat.endstates.endstate import EndState, Outcome, Source, called
from unhang.compat.endstates.standin import StandIn
from unhang.shapes.shape import Function

_RANKS = 2


class ReduceGradientsSetting(NamedTuple):
    """One job."""

    # TODO: the values that matter of each condition; sizes, names, groups and ranks in more than one value
    bucket_group: bool = False
    param_requires_grad: bool = False


class ReduceGradients(EndState):
    """The end state of the function."""

    varied: ClassVar[dict[str, str]] = {
        "bucket_group": "bucket_group",
        "param.requires_grad": "param_requires_grad",
    }
    held: ClassVar[dict[str, str]] = {}

    def configurations(self, function: Function) -> Iterator[ReduceGradientsSetting]:
        for chosen in itertools.product((False, True), repeat=len(self.varied)):
            yield ReduceGradientsSetting(*chosen)

    def concerned(self, configuration: ReduceGradientsSetting) -> bool:
        raise NotImplementedError("TODO: whether the fix plays a part here")

    def control(self, configuration: ReduceGradientsSetting) -> ReduceGradientsSetting | None:
        raise NotImplementedError("TODO: the same setting without the defect; None where the fix plays no part")

    def observe(self, source: Source, configuration: ReduceGradientsSetting) -> Outcome:
        ranks = [self.did(source, configuration, rank) for rank in range(_RANKS)]
        # TODO: compare what they wait in. Upstream's own fix has no fault, the untouched function has some.
        faults = {"the ranks do not do the same"} if any(rank != ranks[0] for rank in ranks) else set()
        return Outcome(frozenset(faults), repr(ranks))

    def did(self, source: Source, setting: ReduceGradientsSetting, rank: int) -> list[Any]:
        """Run the function as one rank. Return what it did, and then what it returned."""
        did: list[Any] = []
        # TODO: a value for each None, and what each function returns; what stays is noted. What is missing is a gap.
        names = {}
        value = called(source, names)(
            **{
                "self": StandIn("self", **{
                    "_bucket_group_gradient_reduce": lambda bucket_group, async_op=None, outer_fsdp_group_grad_reduce=None: did.append(("_bucket_group_gradient_reduce", bucket_group, async_op, outer_fsdp_group_grad_reduce)),
                    "bucket_grad_ready_params": None,
                    "buffer": StandIn("self.buffer", **{
                        "param_to_name": None,
                        "param_to_param_group": None,
                        "parameter_groups": None,
                    }),
                    "get_ready_bucket_group_for_reduction": lambda bucket_id: did.append(("get_ready_bucket_group_for_reduction", bucket_id)),
                    "wait_for_previous_grad_reduce": lambda suggested_queue_capacity=None: did.append(("wait_for_previous_grad_reduce", suggested_queue_capacity)),
                }),
                "params": None,
                "suggested_queue_capacity": None,
                "outer_fsdp_group_grad_reduce": None,
            }
        )
        return [*did, value]


END_STATES = {
    "GradReducePipeline.reduce_gradients": ReduceGradients(),
}
