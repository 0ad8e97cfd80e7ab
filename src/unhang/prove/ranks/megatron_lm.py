"""A Megatron-LM job on a CPU: the arguments, the config and the data of a rank, and the batch that it gets of them.

Stand-ins: the data, the arguments (only those that upstream's functions read) and the config, which does not follow
from the arguments.
"""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..cases import Case

_LENGTH = 16


def directly(iterator: Any, _config: Any, with_mtp: bool, _stage: int | None) -> dict[str, Any]:
    """Return the batch from the function itself."""
    utils: Any = importlib.import_module("megatron.training.utils")
    batch = utils.get_batch_on_this_tp_rank(iterator, mtp_on_this_rank=with_mtp)
    return {name: plain(item) for name, item in batch.items()}


def through_get_batch(iterator: Any, config: Any, _with_mtp: bool, stage: int | None) -> dict[str, Any]:
    """Return the batch that ``pretrain_gpt`` passes to the model, with the metadata from its attention parameters."""
    module: Any = importlib.import_module("pretrain_gpt")
    module.core_transformer_config_from_args = lambda *_, **__: config
    tokens, labels, loss_mask, _, position_ids, packed, *_ = module.get_batch(iterator, vp_stage=stage)
    given = {"tokens": tokens, "labels": labels, "loss_mask": loss_mask, "position_ids": position_ids}
    for name in "cu_seqlens", "max_seqlen":
        both = [plain(getattr(packed, f"{name}_{side}", None)) for side in ("q", "kv")]
        given[name] = both[0] if both[0] == both[1] else both
    return {name: plain(item) for name, item in given.items()}


def plain(item: Any) -> Any:
    """Return the flat values of a tensor, an int as a list, and anything else as it is."""
    return item.reshape(-1).tolist() if hasattr(item, "reshape") else [item] if isinstance(item, int) else item


def sample(number: int, case: Case) -> dict[str, Any]:
    """Return a batch of one sample, which differs from those of nearby numbers, with the fields that the case has."""
    import torch

    sft, packed, hybrid = (bool(case.options.get(name, name == "sft")) for name in ("sft", "packed", "hybrid"))
    shape = (_LENGTH,) if hybrid else (1, _LENGTH)
    tokens = torch.arange(_LENGTH).reshape(shape) + 100 * number
    fields = {
        "tokens": tokens,
        "labels": tokens + 1,
        "loss_mask": torch.full(shape, 1.0 / (number + 1)),
        "position_ids": torch.arange(_LENGTH).reshape(shape),
    }
    if case.options.get("mask"):
        fields["attention_mask"] = torch.ones(1, 1, _LENGTH, _LENGTH).tril() < number % 2 + 0.5
    if sft or packed or hybrid:  # two or more sequences
        ends: Sequence[int] = [0, *range(3, 4 + number % 8), _LENGTH]
        longest = max(end - begin for begin, end in zip(ends, ends[1:]))
        fields["cu_seqlens"] = torch.tensor([ends], dtype=torch.int32)
    if sft or hybrid:
        fields["max_seqlen"] = torch.tensor([longest], dtype=torch.int32)
    if hybrid:
        fields["local_cp_size"] = torch.tensor([1], dtype=torch.int32)
    return fields


def arguments(case: Case) -> SimpleNamespace:
    """Return the arguments of the command line that upstream reads."""
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


def config(case: Case) -> Any:
    """Return the config of a model with four layers in each stage."""
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
