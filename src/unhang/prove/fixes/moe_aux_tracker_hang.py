"""megatron-core: the real routers and the real ``track_moe_metrics``, on the stages of a real pipeline.

The routers of each stage with MoE layers route random tokens, and so record their losses. Then every stage tracks them
as ``training_log`` of Megatron-LM does. The rest of the model is left out. gloo aborts an all-reduce of two sizes. What
NCCL does with one, a CPU cannot show.
"""

from __future__ import annotations

import importlib
import inspect
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..cases import CRASHED, DIFFERS, HUNG, PASSED, Case, Outcome, Topology
from ..ranks import gloo, megatron, schedule, shims

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

WARM = ("torch", "numpy")
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
    Case("schedule-32", _MANY, "schedule", HUNG, _REDUCE, core=True),
    Case("schedule-32-no-mtp", _MANY, "schedule", PASSED, options=_NO_MTP, core=True),
    Case("schedule-256", Topology(tp=4, pp=8, dp=8), "schedule", HUNG, _REDUCE),
)
_LAYERS, _EXPERTS, _HIDDEN, _MICRO_BATCHES, _STEPS = 8, 4, 8, 2, 2
_NAMES = ("load_balancing_loss", "z_loss")


def ruled_out(topology: Topology) -> str:
    """Return why the defect cannot occur; empty where it can."""
    return "with PP 1 there is one stage, and it has MoE layers" if topology.pp == 1 else ""


def case_for(topology: Topology, upstream: str, shapes: Collection[str]) -> Case:
    """Return the case of a user's job: one MTP layer, and no MoE layer on the first stage."""
    return Case("yours", topology, "schedule", HUNG, _REDUCE)


def caveat(case: Case) -> str:
    """Return what the case supposes of the user's model."""
    return "supposes multi-token prediction, and no MoE layer on the first stage" if case.name == "yours" else ""


def prepare() -> None:
    """Import megatron-core for a CPU."""
    import torch

    shims.cuda_on_cpu()
    real = torch.zeros

    def zeros(*size: Any, device: Any = None, **others: Any) -> Any:
        return real(*size, device="cpu" if device == "cuda" else device, **others)

    torch.zeros = zeros  # type: ignore[assignment]
    moe_utils: Any = importlib.import_module("megatron.core.transformer.moe.moe_utils")
    vars(moe_utils).setdefault("te_general_gemm", None)
    importlib.import_module("megatron.core.transformer.moe.router")


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
    if case.harness == "schedule":
        restore = megatron.restorer()

        def fresh(_: int) -> None:
            restore()
            _tracker().clear()
            megatron.initialize(case.topology)

        found = schedule.check(case.topology.world, fresh, lambda rank: _steps(case))
        return Outcome(found.status, f"{found.text() or 'the stages reduce the same'}; {found.times()}")

    def body(rank: int) -> list[Seen]:
        shims.gloo_as_nccl()
        megatron.initialize(case.topology)
        return _steps(case)

    world = gloo.run(case.topology.world, body, deadline_s=deadline_s)
    if world.status != PASSED:
        return Outcome(world.status, world.text())
    if wrong := _wrong(case, [rank.value for rank in world.ranks]):
        return Outcome(DIFFERS, wrong)
    return Outcome(PASSED, "every stage logs the mean of what the routers recorded")


def _tracker() -> Any:
    from megatron.core.transformer.moe import moe_utils

    return moe_utils.get_moe_layer_wise_logging_tracker()


def _steps(case: Case) -> list[Seen]:
    import torch
    from megatron.core import parallel_state
    from megatron.core.transformer.moe import moe_utils, router

    stage = parallel_state.get_pipeline_model_parallel_rank()
    torch.manual_seed(stage)
    routers = [_router(case, number) for number in _moe_layers(case, stage)]
    recorded: Counter[str] = Counter()

    def recording(name: str, loss: Any, *args: Any, **kwargs: Any) -> None:
        recorded[name] += loss.detach()
        moe_utils.save_to_aux_losses_tracker(name, loss, *args, **kwargs)

    router.save_to_aux_losses_tracker = recording  # type: ignore[attr-defined]
    seen = []
    for step in range(_STEPS):
        recorded.clear()
        for _batch in range(_MICRO_BATCHES):
            for one in routers:
                one(torch.randn(4, 1, _HIDDEN))
        logged: dict[str, Any] = {}
        total: dict[str, Any] = {}
        moe_utils.track_moe_metrics(
            loss_scale=1 / _MICRO_BATCHES,
            iteration=step,
            writer=SimpleNamespace(add_scalar=lambda name, value, _: logged.update({name: value})),  # noqa: B023
            total_loss_dict=total,
            per_layer_logging=True,
            force_initialize=True,
            track_names=list(_NAMES),
            num_layers=_LAYERS,
            moe_layer_freq=_frequencies(case),
            mtp_num_layers=_mtp(case),
        )
        layers = sum(name.startswith("moe/") for name in logged)
        ours = {name: float(logged[name]) for name in _NAMES}
        values = {name: float(recorded[name]) for name in _NAMES}
        seen.append(Seen(values, ours, {name: float(value) for name, value in total.items()}, layers))
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


def _router(case: Case, number: int) -> Any:
    """Return the real router of a layer."""
    from megatron.core.transformer.moe import moe_utils
    from megatron.core.transformer.moe.router import TopKRouter
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(
        num_layers=_LAYERS,
        hidden_size=_HIDDEN,
        num_attention_heads=2,
        num_moe_experts=_EXPERTS,
        moe_router_topk=2,
        moe_router_load_balancing_type="aux_loss",
        moe_aux_loss_coeff=0.01,
        moe_z_loss_coeff=0.001,
        mtp_num_layers=_mtp(case),
        add_bias_linear=False,
        use_cpu_initialization=True,
    )
    accepted = inspect.signature(TopKRouter).parameters
    groups = {
        name: getattr(moe_utils, f"get_default_{name}")()
        for name in ("model_comm_pgs", "pg_collection")
        if name in accepted
    }
    made = TopKRouter(config, **groups)
    made.set_layer_number(number)
    return made.train()


def _wrong(case: Case, ranks: list[list[Seen]]) -> str:
    """Return what is wrong; empty where every rank logs, in each step, the mean of what the layers recorded."""
    layers = sum(_frequencies(case)) + (_mtp(case) or 0)
    for step in range(_STEPS):
        for rank, steps in enumerate(ranks):
            seen = steps[step]
            if seen.logged != seen.total:
                return f"rank {rank} logs {seen.logged}, but adds {seen.total}"
            if seen.per_layer != len(_NAMES) * (_LAYERS + (_mtp(case) or 0)):
                return f"rank {rank} logs {seen.per_layer} values of layers"
            for name in _NAMES if case.topology.world == case.topology.pp else ():
                mean = sum(other[step].recorded[name] for other in ranks) / _MICRO_BATCHES / layers
                if abs(seen.logged[name] - mean) > 1e-5 * mean:
                    return f"rank {rank} logs {name} {seen.logged[name]}, but the mean is {mean}"
    return ""
