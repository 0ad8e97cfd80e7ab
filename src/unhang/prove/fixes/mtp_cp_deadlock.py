"""verl: the real ``forward_backward_batch``, with the real megatron-core below it.

A stand-in for the pipeline schedule saves the loss of each micro-batch on the last stage, as a model with multi-token
prediction does. The gate, the all-reduce behind it and the groups are upstream's.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..cases import CRASHED, DIFFERS, FEW, HUNG, PASSED, Case, Outcome, Topology
from ..ranks import gloo, megatron, schedule, shims

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from types import ModuleType

CHUNKS = True
WARM = ("transformers", "ray", "datasets", "peft", "accelerate", "tensordict")
_REDUCE = "reduce_loss_in_tracker"
_NONE = {"micro_batches": 0}
_SMALL = Topology(tp=2, pp=2, cp=2)
CASES = (
    Case("cp2", Topology(cp=2), "ranks", HUNG, _REDUCE, core=True),
    Case("dp2", Topology(dp=2), "ranks", PASSED, core=True),
    Case("tp2-pp2-cp2", _SMALL, "ranks", HUNG, _REDUCE),
    Case("tp2-pp2-cp2-virtual", _SMALL, "ranks", HUNG, _REDUCE, {"chunks": 2}),
    Case("tp2-pp2-dp2", Topology(tp=2, pp=2, dp=2), "ranks", PASSED),
    Case("tp2-pp4-cp2-dp4", Topology(tp=2, pp=4, cp=2, dp=4), "ranks", HUNG, _REDUCE),
    Case("no-micro-batch", Topology(cp=2), "ranks", CRASHED, "get_megatron_mtp_loss", _NONE, core=True),
    Case("schedule-one-micro-batch", _SMALL, "schedule", HUNG, _REDUCE, {"micro_batches": 1}, core=True),
    Case("schedule-virtual", _SMALL, "schedule", HUNG, _REDUCE, {"chunks": 2}, core=True),
    Case("schedule-mtp-off", _SMALL, "schedule", PASSED, options={"mtp": False}, core=True),
    Case("schedule-32", Topology(tp=2, pp=4, cp=2, dp=2), "schedule", HUNG, _REDUCE, core=True),
    Case("schedule-32-cp1", Topology(tp=2, pp=4, dp=4), "schedule", PASSED, core=True),
    Case("schedule-256", Topology(tp=4, pp=4, cp=4, dp=4), "schedule", HUNG, _REDUCE),
    Case("schedule-1024", Topology(tp=4, pp=8, cp=2, dp=16), "schedule", HUNG, _REDUCE),
)
_METRIC = "mtp_losses/mtp_1_loss"
_OWN, _OF_LOSS = "pg_loss", 0.5  # a metric of the job's own loss, which must survive
BESIDE = {"verl": ("megatron-core",)}


def case_for(topology: Topology, upstream: str, shapes: Collection[str]) -> Case:
    """Return the case of a user's job, which hangs with context parallelism. Up to 8 ranks are real."""
    harness = "ranks" if topology.world <= FEW else "schedule"
    chunks = {"chunks": topology.vpp} if topology.vpp > 1 else {}
    if topology.cp > 1:
        return Case("yours", topology, harness, HUNG, _REDUCE, chunks)
    return Case("yours", topology, harness, PASSED, options=chunks)


def prepare() -> None:
    """Import the upstreams for a CPU."""
    shims.cuda_on_cpu()
    engine = _engine_module()
    engine.get_device_id = lambda: "cpu"


class Seen(NamedTuple):
    """What one rank did."""

    calls: tuple[int, ...]
    """The number of micro-batches that each call of the reduction got."""
    metrics: Mapping[str, list[float]]
    """What it reports, a value for each micro-batch that has one."""


def run(case: Case, deadline_s: float) -> Outcome:
    """Run one case, and compare which ranks join the reduction and report. With real ranks, values are compared too."""
    if case.harness == "schedule":
        return _scheduled(case)

    def body(rank: int) -> Seen:
        shims.gloo_as_nccl()
        megatron.initialize(case.topology, chunks=case.options.get("chunks"))
        return _forward_backward(case, rank)

    world = gloo.run(case.topology.world, body, deadline_s=deadline_s)
    return world.outcome(
        lambda ranks: _wrong(case, dict(enumerate(ranks))),
        lambda _: "only the source ranks report the metric, and it is the mean",
    )


def _scheduled(case: Case) -> Outcome:
    from megatron.core.transformer import multi_token_prediction

    restore = megatron.restorer()

    def fresh(_: int) -> None:
        restore()
        multi_token_prediction.MTPLossLoggingHelper.tracker = {}
        megatron.initialize(case.topology, chunks=case.options.get("chunks"))

    # the number of tokens and the metric decide no collective, as the cases of real ranks show
    declared = {"forward_backward_batch": 12.0 * case.topology.dp, "get_megatron_mtp_loss": 1.0}
    found = schedule.check(case.topology.world, fresh, lambda rank: _forward_backward(case, rank), declared=declared)
    status, text = found.status, found.text()
    if status == PASSED:
        wrong = _wrong(case, found.values)
        status, text = (DIFFERS, wrong) if wrong else (PASSED, "only the source ranks report the metric")
    return Outcome(status, f"{text}; {found.times()}")


def _forward_backward(case: Case, rank: int) -> Seen:
    """Return what this rank does in the real method."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.transformer import multi_token_prediction
    from tensordict import TensorDict
    from verl.utils import megatron_utils, tensordict_utils

    module = _engine_module()
    engine = _engine(module, case)
    calls: list[int] = []

    def reduced(n_micro_batch: int) -> Any:
        calls.append(n_micro_batch)
        return megatron_utils.get_megatron_mtp_loss(n_micro_batch)

    def schedule(num_microbatches: int, **_: object) -> list[dict[str, Any]]:
        if not parallel_state.is_pipeline_last_stage(ignore_virtual=True):
            return []
        group = parallel_state.get_data_parallel_group(with_context_parallel=True)
        for _batch in range(num_microbatches if engine.model_config.mtp.enable else 0):
            multi_token_prediction.MTPLossLoggingHelper.save_loss_to_tracker(
                torch.tensor(1.0 + rank), 0, 1, avg_group=group
            )
        return [{"model_output": {}, "loss": 1.0, "metrics": {_OWN: [_OF_LOSS]}} for _batch in range(num_microbatches)]

    module.get_megatron_mtp_loss = reduced
    module.get_forward_backward_func = lambda: schedule
    if _micro_batches(case) == 0:
        module.prepare_micro_batches = lambda **_: ([], None)
        module.postprocess_batch_func = lambda **_: {}
    samples = 4
    lengths = [torch.ones(3, dtype=torch.int64)] * samples
    fields = {name: torch.nested.as_nested_tensor(lengths, layout=torch.jagged) for name in ("loss_mask", "input_ids")}
    data = TensorDict(fields, batch_size=samples)
    size = samples // max(1, _micro_batches(case))
    tensordict_utils.assign_non_tensor(data, use_dynamic_bsz=False, micro_batch_size_per_gpu=size, sp_size=1)
    output = engine.forward_backward_batch(data, loss_function=None, forward_only=False)
    return Seen(tuple(calls), {name: _flat(values) for name, values in output.get("metrics", {}).items()})


def _micro_batches(case: Case) -> int:
    return int(case.options.get("micro_batches", 2))


def _engine(module: ModuleType, case: Case) -> Any:
    """Return a real engine without its ``__init__``, which would read a checkpoint."""
    import torch
    from megatron.core.transformer.transformer_config import TransformerConfig

    topology, chunks = case.topology, case.options.get("chunks")
    enable = bool(case.options.get("mtp", True))
    engine: Any = object.__new__(type("Engine", (module.MegatronEngine,), {"__init__": lambda self: None}))
    engine.model_config = SimpleNamespace(mtp=SimpleNamespace(enable=enable, enable_train=enable))
    engine.engine_config = SimpleNamespace(
        context_parallel_size=topology.cp, router_replay=SimpleNamespace(mode="disabled")
    )
    engine.tf_config = TransformerConfig(
        num_layers=2 * topology.pp,
        hidden_size=8,
        num_attention_heads=2,
        pipeline_model_parallel_size=topology.pp,
        virtual_pipeline_model_parallel_size=chunks,
        pipeline_dtype=torch.float32,
        use_cpu_initialization=True,
    )
    engine.module = [torch.nn.Linear(1, 1) for _chunk in range(chunks or 1)]
    return engine


def _wrong(case: Case, seen: Mapping[int, Seen]) -> str:
    """Return what is wrong; empty where the last stage reduces, and the source ranks, and no others, report the mean.

    A control's untouched source lets only the source ranks reduce, which is right too without context parallelism.
    """
    size, count = case.topology, _micro_batches(case)
    last = range(size.world - size.world // size.pp, size.world)
    source = [rank for rank in last if rank % size.tp == 0 and rank // size.tp % size.cp == 0]
    reduces = count > 0 and case.options.get("mtp", True)
    for rank, one in seen.items():
        joins = [1] if reduces and rank in (source if case.is_control else last) else [0]
        joins += [1] if reduces and rank in last else []
        if len(one.calls) not in joins or set(one.calls) - {count}:
            return f"rank {rank} of {size.world} joins {len(one.calls)} reductions, of {[*one.calls]} micro-batches"
        if (_METRIC in one.metrics) != (reduces and rank in source):
            return f"rank {rank} is {'a' if rank in source else 'no'} source rank, but reports {dict(one.metrics)}"
        if count and rank in last and one.metrics.get(_OWN) != [_OF_LOSS] * count:
            return f"rank {rank} loses the metrics of its own loss: {dict(one.metrics)}"
    for rank in source if reduces and case.harness == "ranks" else ():
        group = [other for other in last if other % size.tp == rank % size.tp]
        mean = sum(1.0 + other for other in group) / len(group)
        if seen[rank].metrics[_METRIC] != [mean]:
            return f"rank {rank} reports {seen[rank].metrics[_METRIC]}, but the mean is {mean}"
    return ""


def _flat(values: Any) -> list[float]:
    return [number for value in values for number in _flat(value)] if isinstance(values, (list, tuple)) else [values]


def _engine_module() -> Any:
    import verl.workers.engine.megatron.transformer_impl as module

    return module
