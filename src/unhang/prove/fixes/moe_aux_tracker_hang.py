"""megatron-core: the real routers and the real ``track_moe_metrics``, on the stages of a real pipeline.

The routers of each stage with MoE layers route random tokens, and so record their losses. Then every stage tracks them
as ``training_log`` of Megatron-LM does. The rest of the model is left out. gloo aborts an all-reduce of two sizes. What
NCCL does with one, a CPU cannot show.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..cases import CRASHED, HUNG, MISMATCH, PASSED, Case, Outcome, Topology
from ..ranks import routers

if TYPE_CHECKING:
    from collections.abc import Mapping

_REDUCE = "reduce_aux_losses_tracker_across_ranks"
_NO_MTP, _MOE = {"mtp": None}, {"dense": 0}
_PP3, _MANY = Topology(pp=3), Topology(tp=2, pp=4, cp=2, dp=2)
CASES = (
    Case("pp3", _PP3, "ranks", CRASHED, _REDUCE, core=True),
    Case("pp3-two-mtp-layers", _PP3, "ranks", HUNG, _REDUCE, {"mtp": 2}),
    Case("pp3-two-dense-stages", _PP3, "ranks", CRASHED, _REDUCE, {"dense": 2}),
    Case("tp2-pp2-dp2", Topology(tp=2, pp=2, dp=2), "ranks", CRASHED, _REDUCE),
    Case("pp3-no-mtp", _PP3, "ranks", PASSED, options=_NO_MTP, core=True),
    Case("pp3-moe-on-all-stages", _PP3, "ranks", PASSED, options=_MOE, core=True),
    Case("pp1", Topology(dp=2), "ranks", PASSED, options=_MOE),
    Case("schedule-32", _MANY, "schedule", MISMATCH, _REDUCE, core=True),
    Case("schedule-32-no-mtp", _MANY, "schedule", PASSED, options=_NO_MTP, core=True),
    Case("schedule-256", Topology(tp=4, pp=8, dp=8), "schedule", MISMATCH, _REDUCE),
)
_LAYERS = 8
YOURS = Case("yours", Topology(), "schedule", MISMATCH, _REDUCE)  # one MTP layer, no MoE layer on the first stage
RULED_OUT = ("pp", "with PP 1 there is one stage, and it has MoE layers")


def caveat(case: Case) -> str:
    """Return what the case supposes of the user's model."""
    return "supposes multi-token prediction, and no MoE layer on the first stage" if case.name == "yours" else ""


def prepare() -> None:
    """Import megatron-core for a CPU."""
    routers.on_cpu()


class Seen(NamedTuple):
    """What one rank did in one step."""

    recorded: Mapping[str, float]
    """The sum of the losses that its routers recorded, by name."""
    logged: Mapping[str, float]
    total: Mapping[str, float]
    per_layer: int
    """How many values it logged for single layers."""


def run(case: Case, deadline_s: float) -> Outcome:
    """Run two steps on every rank. With real ranks, compare what is logged with what the routers recorded."""
    # what is logged depends on what is reduced, and no collective on that
    declared = {"track_moe_metrics": [1.0] * _LAYERS, **dict.fromkeys(routers.READS, 1.0)}
    return routers.run(case, _steps, _wrong, declared, deadline_s)


def _steps(case: Case) -> list[Seen]:
    from megatron.core.transformer.moe import moe_utils

    layers = routers.make(_frequencies(case), _mtp(case))
    seen = []
    for step in range(routers.STEPS):
        recorded = routers.train(layers)
        logged: dict[str, Any] = {}
        total: dict[str, Any] = {}
        moe_utils.track_moe_metrics(
            loss_scale=1 / routers.MICRO_BATCHES,
            iteration=step,
            writer=SimpleNamespace(add_scalar=lambda name, value, _: logged.update({name: value})),  # noqa: B023
            total_loss_dict=total,
            per_layer_logging=True,
            force_initialize=True,
            track_names=list(routers.NAMES),
            num_layers=_LAYERS,
            moe_layer_freq=_frequencies(case),
            mtp_num_layers=_mtp(case),
        )
        ours, theirs = routers.logged(logged), routers.logged(total)
        seen.append(Seen(recorded, ours, theirs, sum(name.startswith("moe/") for name in logged)))
    return seen


def _mtp(case: Case) -> int | None:
    mtp: int | None = case.options.get("mtp", 1)
    return mtp


def _frequencies(case: Case) -> list[int]:
    """Return 1 for each layer with experts: those of the first stages have none."""
    dense = _LAYERS // case.topology.pp * int(case.options.get("dense", 1))
    return [int(layer >= dense) for layer in range(_LAYERS)]


def _wrong(case: Case, ranks: list[list[Seen]]) -> str:
    """Return what is wrong; empty where every rank logs, in each step, the mean of what the layers recorded."""
    mtp = _mtp(case) or 0
    for rank, steps in enumerate(ranks):
        for seen in steps:
            if seen.logged != seen.total:
                return f"rank {rank} logs {seen.logged}, but adds {seen.total}"
            if seen.per_layer != len(routers.NAMES) * (_LAYERS + mtp):
                return f"rank {rank} logs {seen.per_layer} values of layers"
    return routers.off_the_mean(case, ranks, sum(_frequencies(case)) + mtp)
