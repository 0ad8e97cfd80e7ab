"""Megatron-LM: what each rank of a pipeline receives of a batch of packed sequences, compared with the data.

Real: ``get_batch_on_this_tp_rank``, the groups and the stages. Stand-ins: the data (a micro-batch for each chunk and
data-parallel rank, on the ranks that have a data loader) and the arguments, which only these functions read. On a CPU
torch fills uninitialized memory with a fixed value, so that it always differs from data. Not shown: the effect of wrong
metadata on attention (a crash on the middle stages, a wrong loss on the last one), because no model runs.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

from ..cases import CRASHED, DIFFERS, PASSED, Case, Topology, reduced
from ..ranks import megatron, shims, sites
from ..ranks.rank_numbers import ranges

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

WARM = ("transformers",)
CHUNKS = True
BESIDE = {"megatron-lm": ("megatron-core",), "megatron-core": ("megatron-lm",)}
LAST, MIDDLE = "on the last stage cu_seqlens is None", "on the middle stage cu_seqlens is None"
OVERFLOW = "Storage size calculation overflowed"
_MTP, _MASK, _PLAIN, _HYBRID = {"mtp": True}, {"mask": True}, {"sft": False}, {"hybrid": True}
# The shapes of 0.16, and of newest dev: untouched and patched.
_SHAPES_0_16 = frozenset({"5e80042fa2c81f1e", "3e6887506a0fb6f4"})
_NULLING = frozenset({"2991e1d44541f615", "b9840013aa631b0a"})


def _case(name: str, size: Topology, options: Mapping[str, Any], shapes: Collection[str] = (), **more: Any) -> Case:
    """Return a case as it ends untouched, for these shapes of the function."""
    sft, untouched, at = options.get("sft", True), PASSED, MIDDLE if size.pp > 2 else LAST
    if sft and size.pp > 1 and (size.tp > 1 or (size.pp > 2 and not _NULLING.isdisjoint(shapes))):
        # in newest dev, middle stages lose the metadata on the sender too, so TP 1 is no control
        untouched = DIFFERS
    if sft and size.tp > 1 and not _SHAPES_0_16.isdisjoint(shapes):
        # sender and receivers issue different broadcasts on every stage, and gloo takes one for another
        untouched, at = CRASHED, OVERFLOW
    return Case(name, size, untouched, "" if untouched == PASSED else at, options, **more)


def cases_for(upstream: str, shapes: Collection[str]) -> tuple[Case, ...]:
    """Return the cases for these shapes of the function."""
    small = Topology(tp=2, pp=4)
    return (
        _case("tp2-pp2", Topology(tp=2, pp=2), {}, shapes, core=True),
        _case("tp2-pp4", small, {}, shapes, core=True),
        _case("tp2-pp4-virtual", small, {"chunks": 2}, shapes),
        _case("tp2-pp4-virtual-mtp", small, {"chunks": 2, **_MTP}, shapes),
        _case("tp2-pp3-cp2", Topology(tp=2, pp=3, cp=2), {}, shapes),
        _case("tp2-pp1", Topology(tp=2), {}, shapes, core=True),
        _case("tp1-pp4", Topology(pp=4), {}, shapes, core=True),
        _case("tp2-pp4-no-sft", small, _PLAIN, shapes, core=True),
    )


def case_for(topology: Topology, upstream: str, shapes: Collection[str]) -> Case:
    """Return the case of a user's job."""
    return _case("yours", reduced(topology), {"chunks": topology.vpp} if topology.vpp > 1 else {}, shapes)


CASES, CASES_0_16 = cases_for("", ()), cases_for("", _SHAPES_0_16)
_OPTIONS: Sequence[dict[str, Any]] = (
    *({}, _PLAIN, _HYBRID, _MTP, {**_MTP, **_PLAIN}, {**_MTP, **_HYBRID}, {"padding": True}),
    *({**_MASK, "length": 8}, {**_MASK, **_HYBRID}, {**_MASK, **_PLAIN, "micro": 2}),
    *({**_PLAIN, **_HYBRID, "padding": True}, {**_PLAIN, "packed": True}, {**_PLAIN, "graph": True}),
)
_OTHERS = ((1, 4), (4, 2), (2, 1, 2), (2, 4), (2, 3, 2), (2, 3, 1, 2))
"""Sizes of TP, PP, CP and DP."""
GRID = [_case(f"PP {it}, {options}", Topology(tp=2, pp=it), options) for it in (1, 2, 3) for options in _OPTIONS]
GRID += [_case(it.text(), it, {"chunks": 2} if it.pp > 3 else {}) for it in (Topology(*sizes) for sizes in _OTHERS)]
HELD = {
    r"data_iterator is not None": "the source always has a loader",
    r"item is not None|cu_seqlens is None|\bn (>|==) 0": "since 0.18 the arguments say what the data has",
}
_READ = {"hybrid": "(hybrid|dynamic)_c", "padding": "needs_padding_mask", "mtp": "mtp_"}
"""How a function reads an option that older ones do not know."""
_METADATA = ("cu_seqlens", "max_seqlen", "cu_seqlens_padded")
_NEEDED = {
    "whole": {"tokens", "labels", "loss_mask", "position_ids", "attention_mask", "padding_mask", "local_cp_size"},
    "first": {"tokens", "position_ids", "attention_mask", "padding_mask"},
    "last": {"labels", "loss_mask", "attention_mask", "padding_mask"},
    "middle": {"padding_mask"},
}
"""The fields that a stage needs, besides the metadata."""


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of a case's job sets."""
    return {
        "sft": case.options.get("sft", True),
        "tensor_model_parallel_size": case.topology.tp,
        "pipeline_model_parallel_size": case.topology.pp,
        "version megatron-lm": "0.16.1" if case.untouched == CRASHED else "0.17.1",
    }


def caveat(case: Case) -> str:
    """Return what a case leaves open; empty where that is nothing."""
    has_cp = case.topology.cp > 1 and case.options.get("sft", True)
    stays = "GPT with packed SFT and CP > 1 stays broken in 0.16.x and 0.17.x: no code makes its cu_seqlens_padded"
    return f"not shown: context parallelism itself; each rank gets the metadata, but {stays}" if has_cp else ""


def has_feature(function: ast.FunctionDef) -> bool:
    """Return whether the function names the metadata; one that does not must hand none on."""
    return _METADATA[0] in ast.unparse(function)


class _Length(int):
    """A length that is its own first element: upstream's receivers take one for the mask, with hybrid CP."""

    def __getitem__(self, _: int) -> _Length:
        return self


def prepare() -> None:
    """Import Megatron-LM for a CPU."""
    import torch

    shims.newer_typing()
    torch.use_deterministic_algorithms(True, warn_only=True)  # this also fills the result of torch.empty
    item = torch.Tensor.item
    torch.Tensor.item = lambda self: _Length(item(self)) if self.dtype == torch.int32 else item(self)
    shims.cuda_on_cpu()
    if sites.ROOTS:
        importlib.import_module("megatron.training.utils")


class Batch(NamedTuple):
    """What one rank has of a micro-batch, ``given`` by its loader, and ``got`` from the function."""

    place: str
    """The part of the pipeline that it is served as."""
    given: dict[str, Any]
    got: dict[str, Any]
    sent: list[str]
    """The fields that this rank broadcast, if it has a loader; empty names for what is no field."""
    kind: str
    """``trailing`` where the function sends the metadata after its arms, ``core`` where the caller gives the batch."""


def on_rank(case: Case, rank: int) -> list[Batch]:
    """Return what this rank gets for each chunk, the second in an evaluation, and still has when all are there."""
    batches = [_batch(case, rank, chunk) for chunk in range(case.options.get("chunks", 1))]
    return [batch._replace(got=_plain(batch.got)) for batch in batches]


def _batch(case: Case, rank: int, chunk: int) -> Batch:
    import torch
    from megatron.core import parallel_state as mpu

    size, module = case.topology, importlib.import_module(case.options.get("module", "megatron.training.utils"))
    function = module.get_batch_on_this_tp_rank
    text, takes = inspect.getsource(function), inspect.signature(function).parameters
    # a shape that asks for a stage of virtual ones does not say which, as newer groups want it to
    megatron.initialize(size, chunks=None if "ignore_virtual=False" in text else case.options.get("chunks"))
    options = {name: it for name, it in case.options.items() if re.search(_READ.get(name, ""), text)}
    options |= {} if "in_dataloader" in text else _MASK  # once it was always there
    kind = "trailing" if re.search(r"^ {8}_broadcast_cu_seqlens\(\w+\[", text, re.MULTILINE) else "arms"
    kind = "core" if "batch" in takes else kind
    chunks, stage, is_source = options.get("chunks", 1), rank // (size.world // size.pp), rank % size.tp == 0
    has_mtp = "mtp" in options and stage == size.pp - 1 and chunk == chunks - 1
    place = "first" if stage == 0 else "last" if stage == size.pp - 1 else "middle"
    place = "whole" if size.pp == 1 or has_mtp else place
    args = {
        **dict.fromkeys(("sft", "is_sft", "has_cu_seqlens"), options.get("sft", True)),
        **dict.fromkeys(("hybrid_context_parallel", "dynamic_context_parallel", "is_hybrid_cp"), "hybrid" in options),
        **dict.fromkeys(("context_parallel_size", "cp_size"), size.cp),
        "tensor_model_parallel_size": size.tp,
        "pipeline_model_parallel_size": size.pp,
        "virtual_pipeline_model_parallel_size": options.get("chunks"),
        "micro_batch_size": options.get("micro", 1),
        "seq_length": options.get("length", 16),
        "create_attention_mask_in_dataloader": "mask" in options,
        "cuda_graph_impl": "full_iteration" if "graph" in options else "none",
        "mtp_num_layers": 1 if "mtp" in options else None,
        "mtp_on_this_rank": has_mtp,
        "needs_padding_mask": "padding" in options,
        "broadcast_src_rank": mpu.get_tensor_model_parallel_src_rank(),
        "broadcast_group": mpu.get_tensor_model_parallel_group(),
        "tp_rank": mpu.get_tensor_model_parallel_rank(),
        "is_pipeline_first_stage": mpu.is_pipeline_first_stage(),
        "is_pipeline_last_stage": mpu.is_pipeline_last_stage(),
    }
    number = rank // (size.tp * size.cp) % size.dp * chunks + chunk
    data = _data(args, options, number, is_flat="hybrid" in options and kind != "core")
    given = _plain(data)
    names, sent, real = {id(item): name for name, item in data.items()}, list[str](), torch.distributed.broadcast

    def broadcast(item: Any, *others: Any, **more: Any) -> Any:
        sent.extend([names.get(id(item), "")] if is_source else [])
        return real(item, *others, **more)

    args["data_iterator"] = iter([data]) if is_source else None
    args["batch"] = {**dict.fromkeys([*_NEEDED["whole"], *_METADATA]), **data} if is_source else {}
    function.__globals__["get_args"] = lambda: SimpleNamespace(**args)
    with mock.patch.object(torch.distributed, "broadcast", broadcast), torch.set_grad_enabled(chunk == 0):
        got = function(**{name: it for name, it in args.items() if name in takes})
    return Batch(place, given, got, sorted(sent), kind)


def _plain(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the device, type, sizes and values of each tensor."""
    tensors = {name: it for name, it in batch.items() if hasattr(it, "device")}
    plain = {name: (it.device.type, str(it.dtype), tuple(it.shape), it.tolist()) for name, it in tensors.items()}
    return {**batch, **plain}


def _data(args: Mapping[str, Any], options: Mapping[str, Any], number: int, is_flat: bool) -> dict[str, Any]:
    """Return a micro-batch, which differs from those of nearby numbers. Its tensors are new ones."""
    import torch

    length, micro, chunks = args["seq_length"], args["micro_batch_size"], options.get("chunks", 1)
    positions = torch.arange(length).expand((length,) if is_flat else (micro, length))
    fields = {
        "tokens": positions + 100 * number,
        "labels": positions + 100 * number + 1,
        "loss_mask": torch.full(positions.shape, 1.0 / (number + 1)),
        "position_ids": positions.clone(),
    }
    ends = [0, *(3 + number % chunks + at for at in range(1 + number // chunks % 8)), length]  # as many in each chunk
    longest = max(end - begin for begin, end in zip(ends, ends[1:]))
    has_lengths = args["sft"] or "hybrid" in options
    more = {
        "attention_mask": ("mask" in options, torch.ones(micro, 1, length, length).tril() < number % 2 + 0.5),
        "padding_mask": ("padding" in options, positions % 3 == 0),
        "cu_seqlens": (has_lengths or "packed" in options, torch.tensor([ends], dtype=torch.int32)),
        "max_seqlen": (has_lengths, torch.tensor([longest], dtype=torch.int32)),
        "cu_seqlens_padded": (has_lengths and args["context_parallel_size"] > 1, torch.tensor([ends]).int() + 1),
        "local_cp_size": ("hybrid" in options, torch.tensor([1], dtype=torch.int32)),
    }
    return {**fields, **{name: item for name, (is_there, item) in more.items() if is_there}}


def wrong(case: Case, ranks: Sequence[Sequence[Batch]]) -> str:
    """Return what is wrong with what the ranks have; empty where it is the data, and only what is needed was sent."""
    faults: dict[str, set[int]] = {}
    for rank, batches in enumerate(ranks):
        for batch, source in zip(batches, ranks[rank - rank % case.topology.tp]):
            if found := ", ".join(_faults(case, batch, source)):
                where = "" if batch.place == "whole" else f"on the {batch.place} stage "
                faults.setdefault(f"{where}{found}", set()).add(rank)
    return "; ".join(f"{fault} (rank {ranges(where)})" for fault, where in sorted(faults.items()))


def _faults(case: Case, batch: Batch, source: Batch) -> Iterator[str]:
    place, sft, has_feature = batch.place, case.options.get("sft", True), case.options.get("feature", True)
    due = sorted(_NEEDED[place] & source.given.keys())
    metadata = [name for name in _METADATA if name in source.given and (name in source.got or name != _METADATA[2])]
    needed = [*due, *metadata] if sft and has_feature else due
    for name in needed:
        if batch.got.get(name) != source.given[name]:
            yield f"{name} is " + ("None" if batch.got.get(name) is None else "not the data's")
    if not has_feature and any(batch.got.get(name) is not None for name in _METADATA):
        yield "there is metadata, which the function does not name"
    if batch is source:
        fields = [name for name in batch.sent if name and name not in _METADATA]
        if len(fields) > len({*fields}) or not {*fields} <= {*due}:
            yield f"{', '.join(fields)} is sent"
        is_more = len(batch.sent) > len(due) + ("hybrid" in case.options)  # whose length is no field
        if is_more and batch.kind != "trailing" and not sft and place in ("middle", "last"):
            yield f"without --sft, {batch.sent} is sent"
    elif batch.kind == "arms":  # nothing that was not sent to it; without --sft upstream's middle stages keep buffers
        empty = {"last": _METADATA, "middle": batch.got if sft and has_feature else ()}.get(place, ())
        if left := [name for name in empty if batch.got.get(name) is not None and name not in needed]:
            yield f"{', '.join(left)} is not None"


def right(case: Case, ranks: Sequence[Sequence[Batch]]) -> str:
    """Return what was seen."""
    what = "packed-sequence metadata" if case.options.get("sft", True) else "batch"
    return f"the data's own {what} in each of {sum(map(len, ranks))} chunks on {len(ranks)} ranks"
