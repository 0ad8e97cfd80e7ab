"""Data: cases and variants that a release does not have or that end otherwise there, and why."""

from __future__ import annotations

from unhang.prove.cases import CRASHED, HUNG

_EMPTY = "empty-expert-hang"
_RECOMPUTE = [
    f"{dispatcher}-recompute-{end}" for dispatcher in ("alltoall", "allgather") for end in ("cuts", "keeps", "same")
]
_NO_RECOMPUTE = dict.fromkeys(_RECOMPUTE, "its config cannot recompute only the activation of an MoE layer")
_NO_ON_INPUT = dict.fromkeys(("on-input-cuts", "on-input-keeps"), "its config cannot apply probabilities on input")
_ONE_GROUP = {"the order of odd ranks reversed": "it warms up a single group, so there is no order"}
_NO_PROBS = {"half: rows without probabilities": "its experts get no probabilities"}
_NO_FP4_LINES = ("0.12.3", "0.13.1", "0.14.0", "0.15.0rc0", "0.15.0rc4", "0.15.3")
_NO_FP4 = {"calls-fp4-aligned": "its experts know no fp4"}

LACKING: dict[tuple[str, str], dict[str, str]] = {
    (_EMPTY, "0.10.0"): {**_NO_RECOMPUTE, **_NO_ON_INPUT, **_NO_PROBS, **_NO_FP4},
    (_EMPTY, "0.11.0"): {**_NO_RECOMPUTE, **_NO_ON_INPUT, **_NO_PROBS, **_NO_FP4},
    (_EMPTY, "0.12.0"): {**_NO_PROBS, **_NO_FP4},
    **{(_EMPTY, version): _NO_FP4 for version in _NO_FP4_LINES},
    **{("expert-dp-warmup", version): _ONE_GROUP for version in ("0.10.0", "0.11.0", "0.12.3")},
}
"""By fix and version: the cases and variants that cannot run on it, and why."""

# Up to 0.12.0 the probabilities bypass the experts, so that the router has a gradient without them. So the empty rank
# gets further: with all-gather to another collective of the same group, where gloo aborts; with data parallelism to the
# reduction of gradients, where it waits.
_BACKWARD = "in the dispatcher's backward pass"
_PAST_THE_EXPERTS = {
    "allgather-cuts": (CRASHED, _BACKWARD),
    "allgather-recompute-cuts": (CRASHED, _BACKWARD),
    "ddp-cuts": (HUNG, "finish_grad_sync"),
}
OTHERWISE: dict[tuple[str, str], dict[str, tuple[str, str]]] = {
    (_EMPTY, version): _PAST_THE_EXPERTS for version in ("0.10.0", "0.11.0", "0.12.0")
}
"""By fix and version: how the untouched source ends there, and what its outcome must name."""
