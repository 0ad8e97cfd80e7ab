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
    from collections.abc import Collection, Mapping

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
_LAYERS, _MICRO_BATCHES, _STEPS = 8, 2, 2


def ruled_out(topology: Topology) -> str:
    """Return why the defect cannot occur; empty where it can."""
    return "with PP 1 there is one stage, and it has MoE layers" if topology.pp == 1 else ""


def case_for(topology: Topology, upstream: str, shapes: Collection[str]) -> Case:
    """Return the case of a user's job: one MTP layer, and no MoE layer on the first stage."""
    return Case("yours", topology, "schedule", MISMATCH, _REDUCE)


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
    import torch
    from megatron.core import parallel_state
    from megatron.core.transformer.moe import moe_utils

    stage = parallel_state.get_pipeline_model_parallel_rank()
    torch.manual_seed(stage)
    layers = routers.make(_moe_layers(case, stage), _LAYERS, _mtp(case))
    seen = []
    for step in range(_STEPS):
        for _batch in range(_MICRO_BATCHES):
            for router in layers:
                router(torch.randn(4, 1, routers.HIDDEN))
        recorded = routers.recorded()
        logged: dict[str, Any] = {}
        total: dict[str, Any] = {}
        moe_utils.track_moe_metrics(
            loss_scale=1 / _MICRO_BATCHES,
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


def _moe_layers(case: Case, stage: int) -> list[int]:
    """Return the numbers of a stage's layers with experts, from 1 on. The last stage has the MTP layers too."""
    each, last = _LAYERS // case.topology.pp, stage == case.topology.pp - 1
    end = _LAYERS if last else each * (stage + 1)
    layers = [layer + 1 for layer in range(each * stage, end) if _frequencies(case)[layer]]
    return [*layers, *(_LAYERS + 1 + layer for layer in range(_mtp(case) or 0) if last)]


def _wrong(case: Case, ranks: list[list[Seen]]) -> str:
    """Return what is wrong; empty where every rank logs, in each step, the mean of what the layers recorded."""
    layers = sum(_frequencies(case)) + (_mtp(case) or 0)
    for step in range(_STEPS):
        for rank, steps in enumerate(ranks):
            seen = steps[step]
            if seen.logged != seen.total:
                return f"rank {rank} logs {seen.logged}, but adds {seen.total}"
            if seen.per_layer != len(routers.NAMES) * (_LAYERS + (_mtp(case) or 0)):
                return f"rank {rank} logs {seen.per_layer} values of layers"
            for name in routers.NAMES if case.topology.world == case.topology.pp else ():
                mean = sum(other[step].recorded[name] for other in ranks) / _MICRO_BATCHES / layers
                if abs(seen.logged[name] - mean) > 1e-5 * mean:
                    return f"rank {rank} logs {name} {seen.logged[name]}, but the mean is {mean}"
    return ""
