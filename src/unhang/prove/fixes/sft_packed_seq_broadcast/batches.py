"""What one rank of a Megatron-LM job receives of a batch of packed sequences, and what is wrong with it.

It calls ``get_batch_on_this_tp_rank``, or in a source tree ``get_batch`` of ``pretrain_gpt``, with the real groups,
stages, global arguments and ``mtp_on_this_rank``.
"""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from ...ranks import shims

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ...cases import Case

_LENGTH = 16
_FIELDS = {
    "whole": ("tokens", "labels", "loss_mask", "position_ids"),
    "first": ("tokens", "position_ids"),
    "last": ("labels", "loss_mask"),
    "middle": (),
}


class Seen(NamedTuple):
    """What one rank received, chunk by chunk."""

    faults: tuple[str, ...]
    places: tuple[str, ...]
    """The part of the pipeline that each chunk was served as."""
    received: str
    """Everything that it received, as text."""


def batches(case: Case) -> Seen:
    """Return what this rank receives for each of its chunks, in order. Call it once the groups are made."""
    from megatron.core import parallel_state
    from megatron.core.transformer.multi_token_prediction import mtp_on_this_rank
    from megatron.training import global_vars

    chunks = int(case.options.get("chunks", 1))
    if global_vars._GLOBAL_ARGS is None:
        global_vars.set_args(_arguments(case))
    config = _config(case)
    through = _through_get_batch if case.options.get("through") else _directly
    faults, places, received = [], [], []
    for chunk in range(chunks):
        stage = chunk if chunks > 1 else None
        with_mtp = mtp_on_this_rank(config, ignore_virtual=False, vp_stage=stage)
        # the function only looks at the rank, pretrain_gpt at the chunk
        seen_as = {"ignore_virtual": False, "vp_stage": stage} if case.options.get("through") else {}
        place = _place(case.topology.pp == 1 or with_mtp, seen_as)
        data = _sample(parallel_state.get_data_parallel_rank() * chunks + chunk, case)
        has_loader = parallel_state.get_tensor_model_parallel_rank() == 0
        given = through(iter([data]) if has_loader else None, config, with_mtp, stage)
        if wrong := ", ".join(_faults(case, place, given, data, has_loader)):
            faults.append(wrong if place == "whole" else f"on the {place} stage {wrong}")
        places.append(place)
        received.append(repr(given))
    return Seen(tuple(faults), tuple(places), repr(received))


def _place(is_whole: bool, seen_as: Mapping[str, Any]) -> str:
    from megatron.core import parallel_state

    if is_whole:
        return "whole"
    if parallel_state.is_pipeline_first_stage(**seen_as):
        return "first"
    return "last" if parallel_state.is_pipeline_last_stage(**seen_as) else "middle"


def _directly(iterator: Any, _config: Any, with_mtp: bool, _stage: int | None) -> dict[str, Any]:
    """Return the batch from the function itself."""
    utils: Any = importlib.import_module("megatron.training.utils")
    batch = utils.get_batch_on_this_tp_rank(iterator, mtp_on_this_rank=with_mtp)
    return {name: _received(item) for name, item in batch.items()}


def _through_get_batch(iterator: Any, config: Any, _with_mtp: bool, stage: int | None) -> dict[str, Any]:
    """Return the batch that ``pretrain_gpt`` passes to the model, with the metadata from its attention parameters."""
    module: Any = importlib.import_module("pretrain_gpt")
    module.core_transformer_config_from_args = lambda *_, **__: config
    tokens, labels, loss_mask, _, position_ids, packed, *_ = module.get_batch(iterator, vp_stage=stage)
    given = {"tokens": tokens, "labels": labels, "loss_mask": loss_mask, "position_ids": position_ids}
    for name in "cu_seqlens", "max_seqlen":
        both = [_received(getattr(packed, f"{name}_{side}", None)) for side in ("q", "kv")]
        given[name] = both[0] if both[0] == both[1] else both
    return {name: _received(item) for name, item in given.items()}


def _faults(
    case: Case, place: str, given: Mapping[str, Any], data: Mapping[str, Any], has_loader: bool
) -> Iterable[str]:
    """Yield what is wrong with the fields that this rank received."""
    sft = case.options.get("sft", True)
    if case.options.get("packed") or (case.options.get("hybrid") and (has_loader or place not in ("first", "last"))):
        metadata: dict[str, Any] = {}  # unlike on its peers, or never sent: the untouched source is the model
    elif case.options.get("hybrid"):
        metadata = {name: _plain(data[name]) if place == "first" else None for name in ("cu_seqlens", "max_seqlen")}
    elif place == "middle" and case.options.get("middle") == "nothing":
        metadata = dict.fromkeys(("cu_seqlens", "max_seqlen"))
    else:
        metadata = {name: _plain(data[name]) if sft else None for name in ("cu_seqlens", "max_seqlen")}
    fields = {name: _plain(data[name]) for name in _FIELDS[place]}
    if place != "middle" and "attention_mask" in data:
        fields["attention_mask"] = _plain(data["attention_mask"])
    if sft and place == "middle" and not has_loader and "buffers" not in case.options:
        fields = {name: None for name in given if name not in metadata}  # only the metadata is sent there
    for name, value in {**metadata, **fields}.items():
        if given[name] != value:
            yield f"{name} is " + ("None" if given[name] is None else "not None" if value is None else "not the data's")


def _received(item: Any) -> Any:
    """Return the flat values of a tensor, or where it is, if that is not the job's device."""
    is_elsewhere = hasattr(item, "device") and item.device.type != shims.DEVICE
    return f"on {item.device}" if is_elsewhere else _plain(item)


def _plain(item: Any) -> Any:
    """Return the flat values of a tensor, an int as a list, and anything else as it is."""
    return item.reshape(-1).tolist() if hasattr(item, "reshape") else [item] if isinstance(item, int) else item


def _sample(number: int, case: Case) -> dict[str, Any]:
    """Return a batch of one sample, which differs from those of nearby numbers, with the fields that the case has."""
    import torch

    sft, packed, hybrid = (bool(case.options.get(name, name == "sft")) for name in ("sft", "packed", "hybrid"))
    shape = (_LENGTH,) if hybrid else (1, _LENGTH)
    tokens = torch.arange(_LENGTH).reshape(shape) + 100 * number
    sample = {
        "tokens": tokens,
        "labels": tokens + 1,
        "loss_mask": torch.full(shape, 1.0 / (number + 1)),
        "position_ids": torch.arange(_LENGTH).reshape(shape),
    }
    if case.options.get("mask"):
        sample["attention_mask"] = torch.ones(1, 1, _LENGTH, _LENGTH).tril() < number % 2 + 0.5
    if sft or packed or hybrid:  # two or more sequences
        ends: Sequence[int] = [0, *range(3, 4 + number % 8), _LENGTH]
        longest = max(end - begin for begin, end in zip(ends, ends[1:]))
        sample["cu_seqlens"] = torch.tensor([ends], dtype=torch.int32)
    if sft or hybrid:
        sample["max_seqlen"] = torch.tensor([longest], dtype=torch.int32)
    if hybrid:
        sample["local_cp_size"] = torch.tensor([1], dtype=torch.int32)
    return sample


def _arguments(case: Case) -> SimpleNamespace:
    return SimpleNamespace(
        sft=case.options.get("sft", True),
        tensor_model_parallel_size=case.topology.tp,
        pipeline_model_parallel_size=case.topology.pp,
        context_parallel_size=case.topology.cp,
        micro_batch_size=1,
        seq_length=_LENGTH,
        create_attention_mask_in_dataloader=bool(case.options.get("mask")),
        hybrid_context_parallel=bool(case.options.get("hybrid")),
        dynamic_context_parallel=bool(case.options.get("hybrid")),
        sequence_packing_scheduler=None,
        use_varlen_dataset=False,
        varlen_sbhd_validation=False,
        cuda_graph_impl="none",
    )


def _config(case: Case) -> Any:
    import torch
    from megatron.core.transformer.transformer_config import TransformerConfig

    return TransformerConfig(
        num_layers=4 * case.topology.pp,
        hidden_size=8,
        num_attention_heads=case.topology.tp,
        tensor_model_parallel_size=case.topology.tp,
        pipeline_model_parallel_size=case.topology.pp,
        pipeline_dtype=torch.float32,
        mtp_num_layers=1 if case.options.get("mtp") else None,
        use_cpu_initialization=True,
    )
