"""fused-head-no-gradient: TODO: what each rank does, and what is wrong with it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

from unhang.compat.endstates.endstate import EndState, Outcome, Source, called
from unhang.compat.endstates.standin import StandIn
from unhang.shapes.shape import Function

_RANKS = 2


class BackwardSetting(NamedTuple):
    """One job."""

    # TODO: the values that matter of each condition; sizes, names, groups and ranks in more than one value
    ctx_needs_input_grad: bool = False
    dentropy: bool = False
    dlog_probs: bool = False
    hidden_states_requires_grad: bool = False
    orig_ndim: bool = False
    vocab_weights_requires_grad: bool = False


class Backward(EndState):
    """The end state of the function."""

    varied: ClassVar[dict[str, str]] = {
        "ctx.needs_input_grad": "ctx_needs_input_grad",
        "dentropy": "dentropy",
        "dlog_probs": "dlog_probs",
        "hidden_states.requires_grad": "hidden_states_requires_grad",
        "orig_ndim": "orig_ndim",
        "vocab_weights.requires_grad": "vocab_weights_requires_grad",
    }
    held: ClassVar[dict[str, str]] = {}
    # TODO: what a setting has without the defect, by dimension; or a method ``control``, where that depends
    without: ClassVar[dict[str, Any]] = {}

    def configurations(self, function: Function) -> Iterator[BackwardSetting]:
        for chosen in itertools.product((False, True), repeat=len(self.varied)):
            yield BackwardSetting(*chosen)

    def concerned(self, configuration: BackwardSetting) -> bool:
        raise NotImplementedError("TODO: whether the fix plays a part here")

    def observe(self, source: Source, configuration: BackwardSetting) -> Outcome:
        ranks = [self.did(source, configuration, rank) for rank in range(_RANKS)]
        # TODO: compare what they compute, beside what is right. Upstream's own fix has no fault, the untouched function has some.
        faults = {"the ranks do not do the same"} if any(rank != ranks[0] for rank in ranks) else set()
        return Outcome(frozenset(faults), repr(ranks))

    def did(self, source: Source, setting: BackwardSetting, rank: int) -> list[Any]:
        """Run the function as one rank. Return what it did, and then what it returned."""
        did: list[Any] = []
        # TODO: a value for each None, and what each function returns; what stays is noted. What is missing is a gap.
        names = {
            "_fused_linear_for_ppo_bwd": lambda dlog_probs=None, dentropy=None, hidden_states=None, vocab_weights=None, input_ids=None, temperature=None: did.append(("_fused_linear_for_ppo_bwd", dlog_probs, dentropy, hidden_states, vocab_weights, input_ids, temperature)),
            "torch": StandIn("torch", **{
                "zeros_like": lambda hidden_states: did.append(("zeros_like", hidden_states)),
            }),
        }
        value = called(source, names)(
            **{
                "ctx": StandIn("ctx", **{
                    "chunk_size": None,
                    "needs_input_grad": setting.ctx_needs_input_grad,
                    "orig_batch_size": None,
                    "orig_ndim": None,
                    "saved_tensors": None,
                    "temperature": None,
                }),
                "dlog_probs": StandIn("dlog_probs", **{
                    "flatten": lambda: did.append(("flatten",)),
                }),
                "dentropy": StandIn("dentropy", **{
                    "flatten": lambda: did.append(("flatten",)),
                }),
            }
        )
        return [*did, value]


END_STATES = {
    "FusedLinearForPPOFunction.backward": Backward(),
}
