"""sft-packed-seq-broadcast: what TP rank 0 sends against what the other ranks receive, on every pipeline stage."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from functools import cache
from typing import Any, ClassVar, NamedTuple

from unhang.compat.endstates.endstate import EndState, Outcome, Source, called, parameters
from unhang.compat.endstates.standin import StandIn
from unhang.compat.endstates.tensors import UNINITIALISED, Misfit, Tensor, torch
from unhang.shapes.branches import branches
from unhang.shapes.shape import Function

METADATA = ("cu_seqlens", "max_seqlen")
FIELDS: tuple[str, ...] = ("tokens", "labels", "loss_mask", "position_ids", "attention_mask", "padding_mask")
FIELDS += (*METADATA, "cu_seqlens_padded", "local_cp_size")
NEEDED = {
    "whole": {"tokens", "labels", "loss_mask", "position_ids", "attention_mask", "padding_mask", "local_cp_size"},
    "first": {"tokens", "position_ids", "attention_mask", "padding_mask"},
    "last": {"labels", "loss_mask", "attention_mask", "padding_mask"},
    "middle": {"padding_mask"},
}
"""The fields that a stage needs, besides the metadata."""


class Setting(NamedTuple):
    """One model chunk on one pipeline stage of one job."""

    stages: int = 1
    stage: int = 0
    chunks: int = 1
    chunk: int = 0
    """Of the virtual pipeline stages on this rank."""
    tp: int = 2
    length: int = 8
    """Of the sequences."""
    cp: int = 1
    replica: int = 0
    """The data-parallel rank."""
    mtp: bool = False
    sft: bool = True
    dynamic: bool = False
    """hybrid_context_parallel, or dynamic_context_parallel as newer shapes call it."""
    attention_mask: bool = False
    padding_mask: bool = False
    graph: bool = False
    """Whether the whole iteration is one CUDA graph; upstream asserts that there is no metadata then."""

    @property
    def is_first(self) -> bool:
        return self.stage == 0 and self.chunk == 0

    @property
    def is_last(self) -> bool:
        return self.stage == self.stages - 1 and self.chunk == self.chunks - 1

    @property
    def place(self) -> str:
        if self.stages == 1 or self.mtp:
            return "whole"
        return "first" if self.is_first else "last" if self.is_last else "middle"


def data_of(setting: Setting) -> dict[str, Tensor]:
    """Return what the data loader gives on TP rank 0. A tensor of the data is told by its origin."""
    length = setting.length
    shape = (length,) if setting.dynamic else (1, length)
    data: dict[str, tuple[Any, str, Any]] = {
        "tokens": (shape, "int64", range(length)),
        "labels": (shape, "int64", range(length, 0, -1)),
        "loss_mask": (shape, "float32", 1.0),
        "position_ids": (shape, "int64", range(length)),
    }
    if setting.attention_mask:
        data["attention_mask"] = ((1, 1, length, length), "bool", True)
    if setting.padding_mask:
        data["padding_mask"] = (shape, "bool", False)
    if setting.sft or setting.dynamic:
        data["cu_seqlens"] = ((1, 3), "int32", [0, 5, length])
        data["max_seqlen"] = ((1,), "int32", 5)
    if setting.dynamic:
        data["local_cp_size"] = ((1,), "int32", 2)
    return {name: Tensor(values, dtype, "cpu", {name}, shape) for name, (shape, dtype, values) in data.items()}


def _sent(item: Tensor) -> tuple[int, str, int]:
    """Return what both sides of a broadcast must agree on. A collective sees elements, not dimensions."""
    return item.numel(), item.dtype, item.dim() if item.numel() > 1 else 1


class Did(NamedTuple):
    """What one TP rank did."""

    events: list[Any]
    """What both sides of each broadcast must agree on."""
    names: list[str]
    """The fields that the sender broadcast."""
    batch: dict[str, Any]


def _rank(source: Source, setting: Setting, tp_rank: int, queue: list[Tensor]) -> Did:
    """Run one TP rank: the sender fills the queue, a receiver takes its broadcasts from it."""
    events: list[Any] = []
    names: list[str] = []

    def broadcast(item: Tensor, rank: int, group: str) -> None:
        if (rank, group) != (0, "tp"):
            raise Misfit(f"a broadcast from rank {rank} in {group}")
        events.append(_sent(item))
        if item.device != "cuda":
            raise Misfit(f"a broadcast of a tensor on {item.device}")
        if tp_rank == 0:
            names.extend(map(str, item.origin))
            queue.append(item.clone())
            return
        if not queue:
            raise Misfit("a receiver waits for a broadcast that no rank sends")
        sent = queue.pop(0)
        if _sent(sent) != _sent(item):
            raise Misfit(f"sent {_sent(sent)}, expected {_sent(item)}")
        item.values_ = list(sent.values_)

    distributed = StandIn("torch.distributed", broadcast=broadcast)
    mpu = StandIn(
        "mpu",
        get_tensor_model_parallel_rank=lambda: tp_rank,
        get_tensor_model_parallel_src_rank=lambda: 0,
        get_tensor_model_parallel_group=lambda: "tp",
        get_tensor_model_parallel_world_size=lambda: setting.tp,
        get_data_parallel_rank=lambda: setting.replica,
        get_pipeline_model_parallel_rank=lambda: setting.stage,
        get_pipeline_model_parallel_world_size=lambda: setting.stages,
        get_context_parallel_world_size=lambda: setting.cp,
        is_pipeline_first_stage=lambda ignore_virtual=False: (
            setting._replace(chunk=0).is_first if ignore_virtual else setting.is_first
        ),
        is_pipeline_last_stage=lambda ignore_virtual=False: (
            setting._replace(chunk=0, chunks=1).is_last if ignore_virtual else setting.is_last
        ),
    )
    arguments = StandIn(
        "args",
        pipeline_model_parallel_size=setting.stages,
        tensor_model_parallel_size=setting.tp,
        context_parallel_size=setting.cp,
        virtual_pipeline_model_parallel_size=setting.chunks if setting.chunks > 1 else None,
        sft=setting.sft,
        hybrid_context_parallel=setting.dynamic,
        dynamic_context_parallel=setting.dynamic,
        create_attention_mask_in_dataloader=setting.attention_mask,
        cuda_graph_impl="full_iteration" if setting.graph else "none",
        mtp_num_layers=1 if setting.mtp else None,
        micro_batch_size=1,
        seq_length=setting.length,
    )
    data = data_of(setting)
    given = {
        "data_iterator": iter([data]) if tp_rank == 0 else None,
        "mtp_on_this_rank": setting.mtp,
        "needs_padding_mask": setting.padding_mask,
        # since 0.18 the caller asks for all of this, and pads the sequences itself
        "batch": {**dict.fromkeys(FIELDS), **_padded(data, setting)} if tp_rank == 0 else {},
        **dict.fromkeys(("is_sft", "has_cu_seqlens"), setting.sft),
        "is_hybrid_cp": setting.dynamic,
        "create_attention_mask_in_dataloader": setting.attention_mask,
        "broadcast_src_rank": 0,
        "broadcast_group": "tp",
        "cp_size": setting.cp,
        "tp_rank": tp_rank,
        "micro_batch_size": 1,
        "seq_length": setting.length,
        "pipeline_model_parallel_size": setting.stages,
        "is_pipeline_first_stage": setting.is_first,
        "is_pipeline_last_stage": setting.is_last,
    }
    cuda = StandIn("torch.cuda", current_device=lambda: "cuda")
    stand_ins = {"torch": torch(cuda=cuda, distributed=distributed), "mpu": mpu, "get_args": lambda: arguments}
    function = called(source, stand_ins)
    return Did(events, names, function(**{name: given[name] for name in parameters(source.function)}))


def _padded(data: dict[str, Tensor], setting: Setting) -> dict[str, Tensor]:
    """Return the data with a batch dimension, and with the padded lengths that context parallelism needs."""
    found = {name: (it.unsqueeze(0) if it.shape == (setting.length,) else it).cuda() for name, it in data.items()}
    if setting.cp > 1 and "cu_seqlens" in data:
        found["cu_seqlens_padded"] = found["cu_seqlens"].detach()
    return found


class GetBatch(EndState):
    """The end state of get_batch_on_this_tp_rank, in each file that has it."""

    varied: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("args.sft", "is_sft", "has_cu_seqlens"), "sft"),
        **dict.fromkeys(("args.dynamic_context_parallel", "args.hybrid_context_parallel", "is_hybrid_cp"), "dynamic"),
        "cp_size": "cp",
        **dict.fromkeys(("mtp_on_this_rank", "args.mtp_num_layers"), "mtp"),
        **dict.fromkeys(("args.pipeline_model_parallel_size", "pipeline_model_parallel_size"), "stages"),
        **dict.fromkeys(("mpu.is_pipeline_first_stage", "mpu.is_pipeline_last_stage"), "stage and chunk"),
        **dict.fromkeys(("is_pipeline_first_stage", "is_pipeline_last_stage"), "stage and chunk"),
        **dict.fromkeys(("mpu.get_tensor_model_parallel_rank", "tp_rank"), "tp: each rank of it runs"),
        **dict.fromkeys(
            ("args.create_attention_mask_in_dataloader", "create_attention_mask_in_dataloader"), "attention_mask"
        ),
        "needs_padding_mask": "padding_mask",
        **dict.fromkeys(("args", "getattr"), "graph: getattr(args, 'cuda_graph_impl', ...)"),
    }
    held: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("cu_seqlens", "n", "item", "data"), "what is there, which `sft` and the masks decide"),
        "data_iterator": "None except on TP rank 0",
    }
    without: ClassVar[dict[str, Any]] = {"sft": False}

    def configurations(self, function: Function) -> Iterator[Setting]:
        conditions = set(branches(function))
        flags = {
            "sft": conditions,  # the data may have metadata, whatever the function asks
            "dynamic": {name for name, dimension in self.varied.items() if dimension == "dynamic"},
            "attention_mask": {name for name, dimension in self.varied.items() if dimension == "attention_mask"},
            "padding_mask": {"needs_padding_mask"},
            "graph": {"getattr"},
        }
        mtp = (False, True) if conditions & {"mtp_on_this_rank", "args.mtp_num_layers"} else (False,)
        cps = (1, 2) if "cp_size" in conditions else (0,)
        places = [(1, 0, 1, 0), *((4, stage, 1, 0) for stage in range(4))]
        places += [(2, stage, 2, chunk) for stage in (0, 1) for chunk in (0, 1)]
        choices = {name: (False, True) if reads & conditions else (False,) for name, reads in flags.items()}
        if choices["attention_mask"] == (False,):
            choices["attention_mask"] = (True,)  # it is always there
        values = list(itertools.product(*choices.values()))
        jobs = ((1, 8, 1, 0), (2, 12, 1, 1), (4, 8, 2, 0))
        for place, chosen, on_rank, job, cp in itertools.product(places, values, mtp, jobs, cps):
            tp, length, with_tp, replica = job
            setting = Setting(*place, tp, length, cp or with_tp, replica, on_rank, **dict(zip(flags, chosen)))
            if setting.graph and (setting.sft or setting.dynamic):
                continue  # upstream asserts on the first stage of such a job that there is no metadata
            if on_rank and "args.mtp_num_layers" in conditions and not setting.is_last:
                continue  # before the argument came, MTP was on the last stage alone
            yield setting

    def has_feature(self, source: Source) -> bool:
        return _names_metadata(source)

    def concerned(self, configuration: Setting) -> bool:
        return configuration.sft

    def observe(self, source: Source, configuration: Setting) -> Outcome:
        queue: list[Tensor] = []
        sender = _rank(source, configuration, 0, queue)
        ranks = [sender]
        for rank in range(1, configuration.tp):
            left = [item.clone() for item in queue]
            ranks.append(_rank(source, configuration, rank, left))
            if left:
                raise Misfit(f"TP rank {rank} does not receive {len(left)} broadcasts")
        feature = self.has_feature(source)
        faults = {fault for rank in ranks for fault in _faults(configuration, sender.batch, rank.batch, feature)}
        if configuration.sft:
            place, sizes = configuration.place, {"local_cp_size"}
            needless = NEEDED["whole"] - NEEDED[place] - sizes  # these have a value for each token
            faults |= {f"{place}: {name} is sent" for name in sender.names if name in needless}
            if _has_own_arm(source):  # elsewhere, the other fields stay as they were
                faults |= {fault for rank in ranks[1:] for fault in _left(configuration, rank.batch)}
        return Outcome(frozenset(faults), (tuple(sender.events), repr([rank.batch for rank in ranks])))

    def same(self, before: Any, after: Any) -> bool:
        """Return whether the batches are the same, with no more broadcasts: in 0.16 the rewrite drops some."""
        left = iter(before[0])
        return before[1] == after[1] and all(event in left for event in after[0])


def _faults(setting: Setting, sender: dict[str, Any], batch: dict[str, Any], feature: bool) -> Iterator[str]:
    wanted = NEEDED[setting.place] & set(data_of(setting))
    if not feature and any(batch.get(name) is not None for name in METADATA):
        yield f"{setting.place}: there is metadata, which the function does not name"
    for name in sorted(wanted | ({*METADATA} if setting.sft and feature else set())):
        there, here = sender.get(name), batch.get(name)
        if there is None or here is None:
            yield f"{setting.place}: {name} is None"
        elif here.values_ != data_of(setting)[name].values_ or here.shape != there.shape:
            yield f"{setting.place}: {name} is not the data's"


def _left(setting: Setting, batch: dict[str, Any]) -> Iterator[str]:
    """Yield the buffers that a middle stage hands on without having received anything."""
    for name, item in batch.items():
        if setting.place == "middle" and item is not None and UNINITIALISED in item.values_:
            yield f"middle: {name} is uninitialised"


@cache
def _has_own_arm(source: Source) -> bool:
    """Return whether the middle stages of an SFT job have an arm, as in our rewrite for 0.17."""
    return "elif args.sft:" in ast.unparse(source.function)


@cache
def _names_metadata(source: Source) -> bool:
    """Return whether the function names any metadata; one that does not must hand none on."""
    return METADATA[0] in ast.unparse(source.function)


END_STATES = {"get_batch_on_this_tp_rank": GetBatch()}
