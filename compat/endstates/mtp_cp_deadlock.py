"""mtp-cp-deadlock: which ranks of a grid join which collective, and which report the loss."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache, partial
from typing import Any, ClassVar, NamedTuple

from unhang.compat.endstates.endstate import EndState, Outcome, Source, called
from unhang.compat.endstates.standin import StandIn
from unhang.compat.endstates.tensors import Nested, Tensor, torch
from unhang.shapes.branches import branches
from unhang.shapes.shape import Function

METRICS = {"mtp_losses/mtp_1_loss": 0.5}
OWN = {"actor/loss": 2.0}
"""What a loss reports already."""


class Rank(NamedTuple):
    """A rank's place in the grid."""

    tp: int
    cp: int
    dp: int
    pp: int


class Setting(NamedTuple):
    """One job: its grid, and the settings of the method."""

    tp: int = 1
    cp: int = 1
    dp: int = 1
    pp: int = 1
    virtual: int | None = None
    looks_at_virtual: bool = True
    """Whether ``is_pipeline_last_stage`` looks at virtual stages by default, as in some releases."""
    mtp: bool = True
    batches: int = 4
    forward_only: bool = False
    replay: str = "off"
    dynamic_cp: bool = False
    dynamic_bsz: bool = True
    data: str = "plain"
    """``nested`` masks, ``padded`` to the mini-batch, ``per-token`` loss, or ``fused`` kernels of ``dsv4_hybrid``."""

    def ranks(self) -> list[Rank]:
        return [Rank(*place) for place in itertools.product(*map(range, (self.tp, self.cp, self.dp, self.pp)))]


GRIDS = (
    Setting(),
    Setting(tp=2),
    Setting(cp=2),
    Setting(dp=2),
    Setting(pp=2),
    Setting(tp=2, cp=2, dp=2, pp=2),
    Setting(cp=4, pp=3),
    Setting(tp=2, cp=2, pp=2, virtual=2),
    Setting(cp=2, pp=2, virtual=2, looks_at_virtual=False),
)


class Batch(StandIn):
    """A batch, or a micro-batch. There are no routed experts in it: then there is nothing to record."""

    def __init__(self, setting: Setting) -> None:
        super().__init__("data")
        self.fields = {
            name: Nested([3, 5]) if setting.data in ("nested", "padded") else Tensor(1, "int64", "cpu", shape=(2, 4))
            for name in ("input_ids", "loss_mask")
        }

    def get(self, key: str, default: object = None) -> Any:
        return self.fields.get(key, default)

    def keys(self) -> Any:
        return self.fields.keys()

    def __getitem__(self, name: str) -> Tensor:
        return self.fields[name]

    def __len__(self) -> int:
        return 2


class Seen(NamedTuple):
    """What one rank did."""

    collectives: list[tuple[str, str | None]]
    """The kind and the group of each, in order."""
    counts: list[int]
    """The argument of each call of the loss."""
    reported: list[Any]
    """The metrics of each loss."""
    output: Any


def run_rank(source: Source, setting: Setting, rank: Rank) -> Seen:
    """Run the method as one rank of the grid."""
    last = rank.pp == setting.pp - 1
    collectives: list[tuple[str, str | None]] = []
    counts: list[int] = []
    # as the real schedules do, only the last stage returns losses; the last of them has metrics already
    losses: list[dict[str, Any]] = [{"loss": index} for index in range(setting.batches)] if last else []
    if losses:
        losses[-1]["metrics"] = dict(OWN)

    def is_pipeline_last_stage(
        ignore_virtual: bool = not setting.looks_at_virtual, vp_stage: int | None = None
    ) -> bool:
        # a schedule leaves a virtual rank that is not the last one
        return last and (ignore_virtual or setting.virtual is None)

    def joined(kind: str, group: str | None, result: Any) -> Any:
        collectives.append((kind, group))
        return result

    def loss(count: int) -> dict[str, float]:
        counts.append(count)
        return joined("mtp loss", "dp-cp", dict(METRICS))  # type: ignore[no-any-return]

    def finished(output_lst: Any, indices: Any, data: Any) -> dict[str, Any]:
        return {"losses": output_lst, "model_output": {}}

    asked = {"enable_routing_replay": setting.replay != "off", "use_dynamic_bsz": setting.dynamic_bsz}
    batches = [Batch(setting) for _ in range(setting.batches)]
    recording = setting.replay == "R2" and setting.forward_only
    fused = setting.data == "fused"
    routes = [Nested([3, 5], "int64")]

    def prepare_micro_batches(
        data: Batch,
        dp_group: str | None = None,
        num_batches_divided_by: int | None = None,
        same_micro_num_in_dp: bool = True,
        min_num_micro_batch: int | None = None,
    ) -> Any:
        joined(f"count {num_batches_divided_by, same_micro_num_in_dp, min_num_micro_batch}", dp_group, None)
        return batches, [0] if setting.dynamic_bsz else None

    def schedule(
        forward_step_func: Any = None,
        data_iterator: Any = None,
        model: Any = None,
        num_microbatches: int = 0,
        seq_length: int = 0,
        micro_batch_size: int = 0,
        forward_only: bool = False,
    ) -> Any:
        return losses

    engine = StandIn(
        "self",
        engine_config=StandIn(
            "self.engine_config",
            context_parallel_size=setting.cp,
            dynamic_context_parallel=setting.dynamic_cp,
            max_seqlen_per_dp_cp_rank=8,
            pad_bshd_to_minibatch_max=setting.data == "padded",
            use_remove_padding=setting.data != "padded",
            use_fused_kernels=fused,
            router_replay=StandIn("self.engine_config.router_replay", mode=setting.replay),
        ),
        tf_config=StandIn(
            "self.tf_config",
            microbatch_group_size_per_vp_stage=1,
            virtual_pipeline_model_parallel_size=setting.virtual,
            calculate_per_token_loss=setting.data == "per-token",
            experimental_attention_variant="dsv4_hybrid" if fused else None,
            csa_window_size=4,
        ),
        model_config=StandIn("self.model_config", mtp=StandIn("self.model_config.mtp", enable=setting.mtp)),
        module=[object()] * (setting.virtual or 1),
        mini_layer_topk_idx_list=routes,
        get_data_parallel_group=lambda: "dp",
        get_data_parallel_size=lambda: setting.dp,
        postprocess_micro_batch_func=lambda output, data: None,
        forward_step=lambda batch_iter, model: None,
        is_mp_src_rank_with_outputs=lambda: last and rank.tp == 0 and rank.cp == 0,
        _routed_num_tokens=lambda data: data["loss_mask"].sum(),
    )
    names: dict[str, Any] = {
        "tu": StandIn(
            "tu",
            assign_non_tensor=lambda tensor_dict, **values: None,
            get_non_tensor_data=lambda data, key, default: asked.get(key, default),
        ),
        "torch": torch(
            distributed=StandIn(
                "torch.distributed",
                all_reduce=lambda tensor, op, group: joined(f"all-reduce {op}", group, None),
                ReduceOp=StandIn("torch.distributed.ReduceOp", SUM="sum"),
            ),
            nested=StandIn("torch.nested", as_nested_tensor=lambda tensors, layout: tensors[0]),
            jagged="jagged",
        ),
        "mpu": StandIn(
            "mpu",
            get_virtual_pipeline_model_parallel_world_size=lambda: setting.virtual,
            is_pipeline_last_stage=is_pipeline_last_stage,
            get_data_parallel_group=lambda with_context_parallel=False: "dp-cp" if with_context_parallel else "dp",
            get_data_parallel_world_size=lambda with_context_parallel=False: (
                setting.dp * (setting.cp if with_context_parallel else 1)
            ),
            get_context_parallel_world_size=lambda: setting.cp,
            get_tensor_model_parallel_world_size=lambda: setting.tp,
            get_tensor_model_parallel_rank=lambda: rank.tp,
            get_context_parallel_rank=lambda: rank.cp,
            get_data_parallel_rank=lambda: rank.dp,
            get_pipeline_model_parallel_rank=lambda: rank.pp,
            get_pipeline_model_parallel_world_size=lambda: setting.pp,
            is_pipeline_first_stage=lambda ignore_virtual=False: rank.pp == 0,
        ),
        "RouterReplay": StandIn(
            "RouterReplay",
            set_global_router_replay_action=lambda action: None,
            clear_global_indices=lambda: None,
            clear_global_router_replay_action=lambda: None,
        ),
        "RouterReplayAction": StandIn("RouterReplayAction", REPLAY_FORWARD="replay", RECORD="record"),
        "RouterReplayHelper": StandIn("RouterReplayHelper", is_r2_record_action=lambda config: recording),
        "DynamicCPScheduler": lambda **_: StandIn("DynamicCPScheduler", schedule=lambda *_, **__: batches),
        "partial": partial,
        "get_device_id": lambda: "cuda",
        "prepare_micro_batches": prepare_micro_batches,
        "get_forward_backward_func": lambda: schedule,
        "make_batch_generator": lambda batches, vpp_size: iter(batches),
        "get_megatron_mtp_loss": loss,
        "pp_gather": lambda given, config: joined("gather", "pp", given),
        "reorder_and_merge_vpp_layers": lambda layers, count, vp_size, group_size: layers[0],
        "merge_nested_router_maps": lambda layers: layers[0],
        "restore_dynamic_batch": lambda given, indices: given,
        "_check_dcp_unsupported_features": lambda *_, **__: None,
        "_attach_dcp_recorded_routes": lambda losses, routes: None,
        "postprocess_batch_func": finished,
        "postprocess_dynamic_cp_batch": lambda losses, count, group, include_model_output: joined(
            "gather", group, finished(losses, None, None)
        ),
    }
    output = called(source, names)(engine, Batch(setting), None, setting.forward_only)
    return Seen(collectives, counts, [it.get("metrics", {}) for it in losses], output)


class ForwardBackwardBatch(EndState):
    """The end state of MegatronEngine.forward_backward_batch."""

    varied: ClassVar[dict[str, str]] = {
        "self.model_config.mtp.enable": "mtp",
        **dict.fromkeys(("self.is_mp_src_rank_with_outputs", "mpu.is_pipeline_last_stage"), "every rank of the grid"),
        **dict.fromkeys(("vpp_size", "num_batches_divided_by"), "virtual"),
        "self.tf_config.virtual_pipeline_model_parallel_size": "virtual",
        "losses_reduced": "batches",
        "forward_only": "forward_only",
        **dict.fromkeys(("enable_routing_replay", "self.engine_config.router_replay.mode"), "replay"),
        **dict.fromkeys(("RouterReplayHelper.is_r2_record_action", "record_r2_routes"), "replay and forward_only"),
        **dict.fromkeys(("use_dynamic_bsz", "indices"), "dynamic_bsz"),
        **dict.fromkeys(("self.engine_config.dynamic_context_parallel", "dcp_group"), "dynamic_cp"),
        **dict.fromkeys(("pad_bshd_to_minibatch_max", "self.engine_config.use_remove_padding"), "data"),
        **dict.fromkeys(("global_max_seqlen", "input_ids_for_max.is_nested", "loss_mask.is_nested"), "data"),
        **dict.fromkeys(("self.engine_config.use_fused_kernels", "cp_layout"), "data"),
        "self.tf_config.calculate_per_token_loss": "data",
    }
    held: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("self.tf_config", "getattr"), "names no setting"),
        "data.keys": "there is always an input",
        "data.get": "no routed experts are given: then there is nothing to record",
        "self.mini_layer_topk_idx_list": "upstream raises if it is empty",
    }

    def configurations(self, function: Function) -> Iterator[Setting]:
        dimensions = {self.varied.get(name) for name in branches(function)}
        choices: dict[str, tuple[Any, ...]] = {
            "mtp": (False, True),
            "batches": (0, 1, 4),
            "forward_only": (False, True),
            "replay": ("off", "R2", "R3") if "replay" in dimensions else ("off",),
            "dynamic_cp": (False, True) if "dynamic_cp" in dimensions else (False,),
            "dynamic_bsz": (True, False) if "dynamic_bsz" in dimensions else (True,),
            "data": ("plain", "nested", "padded", "per-token", "fused") if "data" in dimensions else ("plain",),
        }
        for grid, values in itertools.product(GRIDS, itertools.product(*choices.values())):
            yield grid._replace(**dict(zip(choices, values)))

    def has_feature(self, source: Source) -> bool:
        return _asks(source)

    def concerned(self, configuration: Setting) -> bool:
        return configuration.mtp

    def control(self, configuration: Setting) -> Setting | None:
        # without a micro-batch there is no loss to report; upstream's own fix fails there too
        return configuration._replace(mtp=False) if configuration.mtp and configuration.batches else None

    def observe(self, source: Source, configuration: Setting) -> Outcome:
        seen = {rank: run_rank(source, configuration, rank) for rank in configuration.ranks()}
        asks = configuration.mtp and self.has_feature(source)
        return Outcome(frozenset(_faults(configuration, seen, asks)), repr(sorted(seen.items())))


def _faults(setting: Setting, seen: dict[Rank, Seen], asks: bool) -> Iterator[str]:
    for group, fixed in (("dp", ("tp", "cp", "pp")), ("dp-cp", ("tp", "pp")), ("pp", ("tp", "cp", "dp"))):
        orders: dict[tuple[int, ...], set[tuple[str, ...]]] = {}
        for rank, what in seen.items():
            key = tuple(getattr(rank, name) for name in fixed)
            orders.setdefault(key, set()).add(tuple(kind for kind, of in what.collectives if of == group))
        if any(len(found) > 1 for found in orders.values()):
            yield f"ranks of one {group} group do not make the same collectives"
    for rank, what in seen.items():
        last = rank.pp == setting.pp - 1
        if what.counts and not (last and what.counts == [setting.batches]):
            yield "the loss is called on another stage, more than once, or with another count"
        if asks and setting.batches and last and not what.counts:
            yield "a rank of the last stage leaves its loss in the tracker"
        reports = asks and setting.batches and last and rank.tp == rank.cp == 0
        wanted = [*[{}] * (setting.batches - 1), OWN] if last and setting.batches else []
        if reports:
            wanted[0] = {**wanted[0], **METRICS}
        if what.reported != wanted:
            yield "not the source ranks, and only these, report, beside what is there"
        if [loss["loss"] for loss in what.output.get("losses", ())] != list(range(setting.batches if last else 0)):
            yield "the last stage does not return its losses"


@cache
def _asks(source: Source) -> bool:
    """Return whether the method asks for multi-token prediction; one that does not must never call the loss."""
    return "self.model_config.mtp.enable" in branches(source.function)


END_STATES = {"MegatronEngine.forward_backward_batch": ForwardBackwardBatch()}
