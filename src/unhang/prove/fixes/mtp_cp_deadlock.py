"""verl: the real ``forward_backward_batch``, with the real megatron-core below it.

A stand-in for the pipeline schedule saves the loss of each micro-batch on the last stage, as a model with multi-token
prediction does. The gate, the all-reduce behind it and the groups are upstream's. Other stand-ins split the batch, and
merge the routes of experts: neither has a part in the loss.
"""

from __future__ import annotations

import importlib
from itertools import product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import MagicMock

from ..cases import CRASHED, HUNG, PASSED, Case, Topology, reduced
from ..ranks import megatron, shims

if TYPE_CHECKING:
    import ast
    from collections.abc import Collection, Mapping, Sequence
    from types import ModuleType

CHUNKS = True
WARM = ("transformers", "ray", "datasets", "peft", "accelerate", "tensordict")
_REDUCE = "reduce_loss_in_tracker"
_NONE, _OFF = {"micro_batches": 0}, {"mtp": False}
_CP, _SMALL = Topology(cp=2), Topology(tp=2, pp=2, cp=2)
CASES = (
    Case("cp2", _CP, HUNG, _REDUCE, core=True),
    Case("dp2", Topology(dp=2), PASSED, core=True),
    Case("tp2-pp2-cp2", _SMALL, HUNG, _REDUCE),
    Case("tp2-pp2-cp2-virtual", _SMALL, HUNG, _REDUCE, {"chunks": 2}),
    Case("tp2-pp2-dp2", Topology(tp=2, pp=2, dp=2), PASSED),
    Case("tp2-pp4-cp2", Topology(tp=2, pp=4, cp=2), HUNG, _REDUCE),
    Case("no-micro-batch", _CP, CRASHED, "get_megatron_mtp_loss", _NONE, core=True),
    Case("one-micro-batch", _SMALL, HUNG, _REDUCE, {"micro_batches": 1}, core=True),
    Case("mtp-off", _SMALL, PASSED, options=_OFF, core=True),
)
_ONE, _FOUR, _FORWARD = {"micro_batches": 1}, {"micro_batches": 4}, {"forward": True}
_REPLAY, _RECORDS, _DYNAMIC = {"replay": "R3"}, {**_FORWARD, "replay": "R2"}, {"dynamic": "zigzag"}
_PIPELINE = Topology(cp=2, pp=2)
_VIRTUAL = [{"chunks": 2, "looks": looks, **more} for looks in (True, False) for more in ({}, _RECORDS, _OFF)]
_EACH: Sequence[tuple[Topology, Sequence[dict[str, Any]]]] = (
    *product((Topology(), Topology(tp=2), Topology(dp=2)), [(_OFF, _FOUR, {**_FORWARD, **_ONE})]),
    (Topology(pp=2), ({}, _FOUR, {**_OFF, **_RECORDS})),
    (_CP, ({}, _OFF, _ONE, _FOUR, _FORWARD, _NONE, _REPLAY, _RECORDS, {**_RECORDS, "bsz": True})),
    (_CP, ({**_REPLAY, **_FORWARD}, {"replay": "R2"}, {"bsz": True}, {**_OFF, "data": "plain"})),
    (_CP, [{"data": data} for data in ("plain, per-token", "padded, per-token", "plain, padded", "per-token")]),
    (_CP, (_DYNAMIC, {**_DYNAMIC, **_RECORDS}, {**_DYNAMIC, "data": "per-token"}, {"dynamic": "contiguous"})),
    (_CP, ({"dynamic": "fused"},)),
    *product((Topology(tp=2, cp=2), Topology(cp=2, dp=2)), [({}, _FOUR)]),
    (_PIPELINE, ({}, _FOUR, {**_DYNAMIC, **_RECORDS}, *_VIRTUAL)),
    (Topology(cp=3), ({}, {**_FOUR, **_FORWARD})),
)
GRID = [
    Case(
        f"{topology.text()}, {options}",
        topology,
        CRASHED if options == _NONE else HUNG if topology.cp > 1 and options.get("mtp", True) else PASSED,
        options={**options, "beyond": options == _NONE},  # upstream divides by no micro-batches
    )
    for topology, each in _EACH
    for options in each
]
HELD = {
    "vpp_size > 1": "of virtual stages there are two or more",
    "tf_config is not None|topk_idx_list": "upstream's engine has them",
    r"indices is not None|data\.(keys|get)": "the data and their indices are there",
}
_METRIC = "mtp_losses/mtp_1_loss"
_OWN, _OF_LOSS = "pg_loss", 0.5  # a metric of the job's own loss, which must survive
BESIDE = {"verl": ("megatron-core",)}


def case_for(topology: Topology, upstream: str, shapes: Collection[str]) -> Case:
    """Return the case of a user's job, which hangs with context parallelism."""
    topology = reduced(topology)
    chunks = {"chunks": topology.vpp} if topology.vpp > 1 else {}
    if topology.cp > 1:
        return Case("yours", topology, HUNG, _REDUCE, chunks)
    return Case("yours", topology, PASSED, options=chunks)


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of such a job sets."""
    return {
        "mtp.enable": case.options.get("mtp", True),
        "context_parallel_size": case.topology.cp,
        "use_legacy_worker_impl": "disable",
    }


def has_feature(function: ast.FunctionDef) -> bool:
    """Return whether the method asks for multi-token prediction; one that does not must never call the reduction."""
    import ast

    return "self.model_config.mtp.enable" in ast.unparse(function)


def prepare() -> None:
    """Import the upstreams for a CPU."""
    shims.cuda_on_cpu()
    engine, balance = _engine_module(), importlib.import_module("verl.utils.seqlen_balancing")
    vars(engine)["get_device_id"] = vars(balance)["get_device_name"] = lambda: shims.DEVICE


class Seen(NamedTuple):
    """What one rank did in one call."""

    calls: tuple[int, ...]
    """The number of micro-batches that each call of the reduction got."""
    metrics: Mapping[str, list[float]]
    """What it reports, a value for each micro-batch that has one."""
    losses: list[float]
    """Those that it returns."""


def _in_turn(case: Case) -> list[Case]:
    """Return the calls of one engine: the second one has another number of micro-batches."""
    other = {0: 0, 2: 4 if "chunks" in case.options else 1}.get(_micro_batches(case), 2)
    return [case, case._replace(options={**case.options, "micro_batches": other})]


def on_rank(case: Case, rank: int) -> list[Seen]:
    """Return what this rank does in the real method, called twice."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.transformer.multi_token_prediction import MTPLossLoggingHelper
    from verl.utils import megatron_utils

    shims.gloo_as_nccl()
    megatron.initialize(case.topology, chunks=case.options.get("chunks"))
    MTPLossLoggingHelper.tracker = {}
    module = _engine_module()
    engine = _engine(module, case)
    seen: list[Seen] = []
    calls: list[int] = []

    def reduced(n_micro_batch: int) -> Any:
        calls.append(n_micro_batch)
        if hasattr(megatron_utils, "get_megatron_mtp_loss"):
            return megatron_utils.get_megatron_mtp_loss(n_micro_batch)
        found: dict[str, Any] = {}  # a release without it is the closest to some commits with it
        MTPLossLoggingHelper.track_mtp_metrics(1 / n_micro_batch, 0, None, total_loss_dict=found)
        return {f"mtp_losses/{name.replace(' ', '_')}": float(loss) for name, loss in found.items()}

    def schedule(num_microbatches: int, **_: object) -> list[dict[str, Any]]:
        if not parallel_state.is_pipeline_last_stage(ignore_virtual=True):
            return []
        group = parallel_state.get_data_parallel_group(with_context_parallel=True)
        loss = torch.tensor(1.0 + rank + 2 * len(seen))
        for _batch in range(num_microbatches if engine.model_config.mtp.enable else 0):
            if hasattr(MTPLossLoggingHelper, "save_loss_to_tracker"):
                MTPLossLoggingHelper.save_loss_to_tracker(loss, 0, 1, avg_group=group)
            else:
                MTPLossLoggingHelper.save_metrics_to_tracker(loss, loss, loss, 0, 1, avg_group=group)
        losses: list[dict[str, Any]] = [{"model_output": {}, "loss": 1.0 + at} for at in range(num_microbatches)]
        for one in losses[-_own(num_microbatches) :]:
            one["metrics"] = {_OWN: [_OF_LOSS]}
        return losses

    def is_last_stage(ignore_virtual: bool = not case.options.get("looks"), vp_stage: int | None = None) -> bool:
        """Return whether it is, as the real one: its default changed between releases."""
        last = parallel_state.get_pipeline_model_parallel_rank() == case.topology.pp - 1
        return last and (ignore_virtual or "chunks" not in case.options)

    parallel_state.is_pipeline_last_stage = is_last_stage
    vars(module).update(get_megatron_mtp_loss=reduced, get_forward_backward_func=lambda: schedule)
    routes = torch.nested.as_nested_tensor([torch.ones(3, 2, 1)] * 4, layout=torch.jagged)
    for each in _in_turn(case):
        calls.clear()
        engine.mini_layer_topk_idx_list = [routes]
        vars(module).update(_stand_ins(each))
        output = engine.forward_backward_batch(_data(each), None, forward_only=case.options.get("forward", False))
        metrics = {name: _flat(values) for name, values in sorted(output.get("metrics", {}).items())}
        seen.append(Seen(tuple(calls), metrics, _flat(output.get("loss", []))))
    return seen


def _own(count: int) -> int:
    """Return how many micro-batches of so many have metrics of their own: all, or, of four, the last one."""
    return count if count < 4 else 1


def _micro_batches(case: Case) -> int:
    return int(case.options.get("micro_batches", 2))


def _data(case: Case, samples: int = 4) -> Any:
    """Return a batch, or a micro-batch, of so many samples."""
    import torch
    from tensordict import TensorDict
    from verl.utils import tensordict_utils

    lengths = [torch.ones(3, dtype=torch.int64)] * samples
    nested = torch.nested.as_nested_tensor(lengths, layout=torch.jagged)
    tokens = torch.stack(lengths) if "plain" in case.options.get("data", "") else nested
    masked = {"attention_mask": tokens} if "padded" in case.options.get("data", "") else {}
    data = TensorDict({"loss_mask": tokens, "input_ids": tokens, **masked}, batch_size=samples)
    tensordict_utils.assign_non_tensor(
        data,
        use_dynamic_bsz="bsz" in case.options,
        max_token_len_per_gpu=12 // (_micro_batches(case) or 1) // case.topology.cp,
        enable_routing_replay="replay" in case.options,
        sp_size=1,
    )
    return data


def _stand_ins(case: Case) -> dict[str, Any]:
    """Return what the method's module has instead in a case, and what it has in any other case."""
    import torch
    from verl.workers.engine import utils

    count = _micro_batches(case)

    def micro_batches(*_: object, **__: object) -> Any:
        return [_data(case, 4 // count) for _micro_batch in range(count)]

    def collected(output_lst: Any, *_: object, **__: object) -> Any:
        return utils.postprocess_batch_func(output_lst=output_lst, indices=None, data=_data(case))

    def merged(layers: Any, *_: object) -> Any:
        return layers[0].to(torch.int16)

    prepared = utils.prepare_micro_batches if "bsz" in case.options else lambda **_: (micro_batches(), None)
    return {
        "prepare_micro_batches": prepared,
        "postprocess_batch_func": utils.postprocess_batch_func if count else lambda **_: {},
        "DynamicCPScheduler": lambda **_: SimpleNamespace(schedule=micro_batches),
        "postprocess_dynamic_cp_batch": collected,
        "_attach_dcp_recorded_routes": lambda losses, routes: None,
        **dict.fromkeys(("RouterReplay", "RouterReplayAction"), MagicMock()),
        "RouterReplayHelper": SimpleNamespace(
            is_r2_record_action=lambda config: _RECORDS.items() <= case.options.items()
        ),
        "merge_nested_router_maps": merged,
        "reorder_and_merge_vpp_layers": merged,
    }


def _engine(module: ModuleType, case: Case) -> Any:
    """Return a real engine without its ``__init__``, which would read a checkpoint."""
    import torch
    from megatron.core.transformer.transformer_config import TransformerConfig

    topology, options, chunks = case.topology, case.options, case.options.get("chunks")
    data, dynamic = options.get("data", ""), options.get("dynamic", "")
    enable = bool(options.get("mtp", True))
    engine: Any = object.__new__(type("Engine", (module.MegatronEngine,), {"__init__": lambda self: None}))
    engine.model_config = SimpleNamespace(
        mtp=SimpleNamespace(enable=enable, enable_train=enable), model_type="language_model", hf_config=None
    )
    engine.engine_config = SimpleNamespace(
        context_parallel_size=topology.cp,
        router_replay=SimpleNamespace(mode=options.get("replay", "disabled")),
        dynamic_context_parallel=bool(dynamic),
        max_seqlen_per_dp_cp_rank=8,
        pad_bshd_to_minibatch_max="padded" in data,
        use_remove_padding="padded" not in data,
        use_fused_kernels=dynamic == "fused",
        pad_to_length=None,
        virtual_pipeline_model_parallel_size=None,
    )
    engine.tf_config = TransformerConfig(
        num_layers=2 * topology.pp,
        hidden_size=8,
        num_attention_heads=2,
        pipeline_model_parallel_size=topology.pp,
        virtual_pipeline_model_parallel_size=chunks,
        pipeline_dtype=torch.float32,
        use_cpu_initialization=True,
        calculate_per_token_loss="per-token" in data,
    )
    vars(engine.tf_config).update(
        csa_window_size=4,
        experimental_attention_variant="dsv4_hybrid" if dynamic in ("contiguous", "fused") else None,
    )
    engine.module = [torch.nn.Linear(1, 1) for _chunk in range(chunks or 1)]
    return engine


def wrong(case: Case, seen: Sequence[list[Seen]]) -> str:
    """Return what is wrong; empty where the last stage reduces, and the source ranks, and no others, report the mean.

    A control's untouched source lets only the source ranks reduce, which is right too without context parallelism.
    """
    found = (_wrong(each, turn, [one[turn] for one in seen]) for turn, each in enumerate(_in_turn(case)))
    return next(filter(None, found), "")


def _wrong(case: Case, turn: int, seen: Sequence[Seen]) -> str:
    size, count = case.topology, _micro_batches(case)
    last = range(size.world - size.world // size.pp, size.world)
    source = [rank for rank in last if rank % size.tp == 0 and rank // size.tp % size.cp == 0]
    reduces = count > 0 and case.options.get("mtp", True) and case.options.get("feature", True)
    for rank, one in enumerate(seen):
        joins = [1] if reduces and rank in (source if case.is_control else last) else [0]
        joins += [1] if reduces and rank in last else []
        if len(one.calls) not in joins or set(one.calls) - {count}:
            return f"rank {rank} of {size.world} joins {len(one.calls)} reductions, of {[*one.calls]} micro-batches"
        if (_METRIC in one.metrics) != (reduces and rank in source):
            return f"rank {rank} is {'a' if rank in source else 'no'} source rank, but reports {dict(one.metrics)}"
        if count and rank in last and one.metrics.get(_OWN) != [_OF_LOSS] * _own(count):
            return f"rank {rank} loses the metrics of its own loss: {dict(one.metrics)}"
        if count and one.losses != ([1.0 + at for at in range(count)] if rank in last else []):
            return f"rank {rank} returns the losses {one.losses}"
    for rank in source if reduces else ():
        group = [other for other in last if other % size.tp == rank % size.tp]
        mean = sum(1.0 + other for other in group) / len(group) + 2 * turn
        if seen[rank].metrics[_METRIC] != [mean]:
            return f"rank {rank} reports {seen[rank].metrics[_METRIC]}, but the mean is {mean}"
    return ""


def right(case: Case, seen: Sequence[list[Seen]]) -> str:
    """Return what was seen."""
    return "only the source ranks report the metric, and it is the mean"


def _flat(values: Any) -> list[float]:
    return [number for value in values for number in _flat(value)] if isinstance(values, (list, tuple)) else [values]


def _engine_module() -> Any:
    import verl.workers.engine.megatron.transformer_impl as module

    return module
