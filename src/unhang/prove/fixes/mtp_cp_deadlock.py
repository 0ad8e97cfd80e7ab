"""verl: the real ``forward_backward_batch``, with the real megatron-core below it.

A stand-in for the pipeline schedule saves the loss of each micro-batch on the last stage, as a model with multi-token
prediction does. The gate, the all-reduce behind it and the groups are upstream's.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ..cases import CRASHED, DIFFERS, HUNG, PASSED, Case, Outcome, Topology
from ..ranks import gloo, megatron, schedule, shims

if TYPE_CHECKING:
    from collections.abc import Collection
    from types import ModuleType

WARM = ("torch", "transformers", "ray", "datasets", "peft", "accelerate", "tensordict")
_REDUCE = "reduce_loss_in_tracker"
_FEW = 8
_NONE = {"micro_batches": 0}
CASES = (
    Case("cp2", Topology(cp=2), "ranks", HUNG, _REDUCE, core=True),
    Case("dp2", Topology(dp=2), "ranks", PASSED, core=True),
    Case("tp2-pp2-cp2", Topology(tp=2, pp=2, cp=2), "ranks", HUNG, _REDUCE),
    Case("tp2-pp2-dp2", Topology(tp=2, pp=2, dp=2), "ranks", PASSED),
    Case("tp2-pp4-cp2-dp4", Topology(tp=2, pp=4, cp=2, dp=4), "ranks", HUNG, _REDUCE),
    Case("no-micro-batch", Topology(cp=2), "ranks", CRASHED, "get_megatron_mtp_loss", _NONE, core=True),
    Case("schedule-32", Topology(tp=2, pp=4, cp=2, dp=2), "schedule", HUNG, _REDUCE, core=True),
    Case("schedule-32-cp1", Topology(tp=2, pp=4, dp=4), "schedule", PASSED, core=True),
    Case("schedule-256", Topology(tp=4, pp=4, cp=4, dp=4), "schedule", HUNG, _REDUCE),
    Case("schedule-1024", Topology(tp=4, pp=8, cp=2, dp=16), "schedule", HUNG, _REDUCE),
)
_METRIC = "mtp_losses/mtp_1_loss"
BESIDE = {"verl": ("megatron-core",)}


def case_for(topology: Topology, upstream: str, shapes: Collection[str]) -> Case:
    """Return the case of a user's job, which hangs with context parallelism. Up to 8 ranks are real."""
    harness = "ranks" if topology.world <= _FEW else "schedule"
    if topology.cp > 1:
        return Case("yours", topology, harness, HUNG, _REDUCE)
    return Case("yours", topology, harness, PASSED)


def prepare() -> None:
    """Import the upstreams for a CPU."""
    shims.cuda_on_cpu()
    engine = _engine_module()
    engine.get_device_id = lambda: "cpu"


def run(case: Case, deadline_s: float) -> Outcome:
    """Run one case. With real ranks, the metrics are compared too."""
    if case.harness == "schedule":
        return _scheduled(case)

    def body(rank: int) -> dict[str, float] | None:
        shims.gloo_as_nccl()
        megatron.initialize(case.topology)
        return _forward_backward(case, rank)

    world = gloo.run(case.topology.world, body, deadline_s=deadline_s)
    if world.status != PASSED:
        return Outcome(world.status, world.text())
    if wrong := _wrong_metrics(case, [rank.value for rank in world.ranks]):
        return Outcome(DIFFERS, wrong)
    return Outcome(PASSED, "only the source ranks report the metric, and it is the mean")


def _scheduled(case: Case) -> Outcome:
    from megatron.core.transformer import multi_token_prediction

    restore = megatron.restorer()

    def fresh(_: int) -> None:
        restore()
        multi_token_prediction.MTPLossLoggingHelper.tracker = {}
        megatron.initialize(case.topology)

    # the number of tokens and the metric decide no collective, as the cases of real ranks show
    declared = {"forward_backward_batch": 12.0 * case.topology.dp, "_number": 1.0}
    world = case.topology.world
    found = schedule.check(world, fresh, lambda rank: bool(_forward_backward(case, rank)), declared=declared)
    return Outcome(found.status, "; ".join(filter(None, (found.text(), found.times()))))


def _forward_backward(case: Case, rank: int) -> dict[str, float] | None:
    """Return the metrics that this rank reports, from the real method; None where it reports none."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.transformer import multi_token_prediction
    from tensordict import TensorDict
    from verl.utils import tensordict_utils

    module = _engine_module()
    engine = _engine(module, case.topology)

    def schedule(num_microbatches: int, **_: object) -> list[dict[str, Any]]:
        if not parallel_state.is_pipeline_last_stage(ignore_virtual=True):
            return []
        group = parallel_state.get_data_parallel_group(with_context_parallel=True)
        for _batch in range(num_microbatches):
            multi_token_prediction.MTPLossLoggingHelper.save_loss_to_tracker(
                torch.tensor(1.0 + rank), 0, 1, avg_group=group
            )
        return [{"model_output": {}, "loss": 1.0, "metrics": {}} for _batch in range(num_microbatches)]

    module.get_forward_backward_func = lambda: schedule
    if case.options.get("micro_batches") == 0:
        module.prepare_micro_batches = lambda **_: ([], None)
        module.postprocess_batch_func = lambda **_: {}
    samples = 4
    lengths = [torch.ones(3, dtype=torch.int64)] * samples
    fields = {name: torch.nested.as_nested_tensor(lengths, layout=torch.jagged) for name in ("loss_mask", "input_ids")}
    data = TensorDict(fields, batch_size=samples)
    tensordict_utils.assign_non_tensor(data, use_dynamic_bsz=False, micro_batch_size_per_gpu=2, sp_size=1)
    output = engine.forward_backward_batch(data, loss_function=None, forward_only=False)
    metrics = output.get("metrics", {})
    return {name: _number(value) for name, value in metrics.items() if name.startswith("mtp")} or None


def _engine(module: ModuleType, topology: Topology) -> Any:
    """Return a real engine without its ``__init__``, which would read a checkpoint."""
    import torch
    from megatron.core.transformer.transformer_config import TransformerConfig

    engine: Any = object.__new__(type("Engine", (module.MegatronEngine,), {"__init__": lambda self: None}))
    engine.model_config = SimpleNamespace(mtp=SimpleNamespace(enable=True, enable_train=True))
    engine.engine_config = SimpleNamespace(
        context_parallel_size=topology.cp, router_replay=SimpleNamespace(mode="disabled")
    )
    engine.tf_config = TransformerConfig(
        num_layers=2 * topology.pp,
        hidden_size=8,
        num_attention_heads=2,
        pipeline_model_parallel_size=topology.pp,
        pipeline_dtype=torch.float32,
        use_cpu_initialization=True,
    )
    engine.module = [torch.nn.Linear(1, 1)]
    return engine


def _wrong_metrics(case: Case, metrics: list[dict[str, float] | None]) -> str:
    """Return what is wrong with the metrics; empty where the source ranks, and no others, report the mean."""
    size = case.topology
    per_stage = size.world // size.pp
    source = list(range(size.world - per_stage, size.world))  # the last stage
    source = [rank for rank in source if rank % size.tp == 0 and rank // size.tp % size.cp == 0]
    if case.options.get("micro_batches") == 0:
        source = []
    for rank, found in enumerate(metrics):
        if (found is not None) != (rank in source):
            return f"rank {rank} is {'a' if rank in source else 'no'} source rank, but reports {found}"
    for rank in source:
        group = [other for other in range(size.world - per_stage, size.world) if other % size.tp == rank % size.tp]
        mean = sum(1.0 + other for other in group) / len(group)
        if metrics[rank] != {_METRIC: mean}:
            return f"rank {rank} reports {metrics[rank]}, but the mean is {mean}"
    return ""


def _number(value: Any) -> float:
    while isinstance(value, (list, tuple)):
        (value,) = value
    return float(value)


def _engine_module() -> Any:
    import verl.workers.engine.megatron.transformer_impl as module

    return module
