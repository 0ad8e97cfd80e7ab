"""A small model with peft's LoRA in verl's real FSDP engine, under torch's real FSDP, on a CPU."""

from __future__ import annotations

import importlib
import sys
from collections import OrderedDict
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from ..cases import Case
from . import shims
from .around import Around, any_module

ENGINE, UTILS = "verl.workers.engine.fsdp.transformer_impl", "verl.utils.fsdp_utils"
RANK, _WIDTH = 4, 16
_MIXED: dict[Any, Any] = {"none": None, "{}": {}, "fp32": {"param_dtype": "fp32"}}


def prepare(*more: str) -> None:
    """Import the engine for a CPU; of verl, it, its utilities and these modules are real, and the others stand-ins."""
    shims.cuda_on_cpu()
    sys.meta_path.insert(0, Around("verl", (ENGINE, UTILS, "verl.utils.model", *more), any_module))
    engine, utils = module(ENGINE), module(UTILS)
    engine.get_device_id = lambda: shims.DEVICE
    engine.unfuse_moe_params = lambda params, model_type: params  # it splits the experts of some models
    utils.get_device_name, utils.get_torch_device = lambda: shims.DEVICE, MagicMock()
    if shims.DEVICE == "cuda":
        import torch

        utils.get_torch_device = module("verl.utils.device").get_torch_device = lambda: torch.cuda


def small_model(job: Any) -> Any:
    """Return a model of three layers, of which one has an adapter; and of a fourth one that has, if it is whole.

    If the job asks for buffers, one layer has some: as the router of experts has, and of other kinds.
    """
    import torch
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    names = ("q", "norm", *(["k"] if job.has_whole else []))
    layers: dict[str, Any] = {
        name: torch.nn.Linear(_WIDTH, _WIDTH) for name in ("q", "norm", "head", "k") if name in (*names, "head")
    }
    for number, dtype in enumerate((torch.float32, torch.long) if getattr(job, "has_buffers", False) else ()):
        layers["norm"].register_buffer(f"buffer{number}", torch.full([3] * (1 - number), 3.3, dtype=dtype))
    block = torch.nn.Sequential(OrderedDict([(name, layers[name]) for name in names]))
    model: Any = torch.nn.Sequential(OrderedDict(block=block, head=layers["head"]))
    model._checkpoint_conversion_mapping = {"^stem": "block"}  # as transformers renames weights
    if job.lora:
        model = get_peft_model(model, LoraConfig(r=RANK, target_modules=["q", "k"], init_lora_weights=False))
    return model.to(getattr(torch, job.dtype))


def fsdp_engine(case: Case, job: Any) -> Any:
    """Return an engine with a model under FSDP, as verl sets it up."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
    from torch.distributed.fsdp import (
        CPUOffloadPolicy,
        FullStateDictConfig,
        FullyShardedDataParallel,
        OffloadPolicy,
        ShardedStateDictConfig,
        StateDictType,
        fully_shard,
    )

    model, ranks = small_model(job), case.topology.world
    if shims.DEVICE == "cpu":
        mesh = init_device_mesh("cpu", (ranks,))
    else:  # verl's groups gather on a CPU, too
        mesh = DeviceMesh.from_group(dist.new_group(backend="cpu:gloo,cuda:nccl"), "cuda")
    if case.options.get("fsdp") == 1:
        module(UTILS).get_device_id = lambda: 0 if shims.DEVICE == "cpu" else torch.cuda.current_device()
        model = FullyShardedDataParallel(
            model, device_mesh=mesh, use_orig_params=True, device_id=torch.device(shims.DEVICE)
        )
        kinds = (StateDictType.FULL_STATE_DICT, FullStateDictConfig())
        if ranks > 1:
            kinds = (StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig())
        FullyShardedDataParallel.set_state_dict_type(model, *kinds)
    else:
        module(UTILS).get_device_id = lambda: shims.DEVICE
        policy = CPUOffloadPolicy(pin_memory=False) if case.options.get("policy") else OffloadPolicy()
        block = (model.base_model.model if hasattr(model, "peft_config") else model).block
        whole = {*block.k.parameters()} if case.options.get("whole") else None
        for part in (block, model):
            fully_shard(part, mesh=mesh, offload_policy=policy, ignored_params=whole)
    engine = object.__new__(module(ENGINE).FSDPEngine)
    engine.module, engine._is_offload_param = model, case.options.get("offload", False)
    engine.model_config = SimpleNamespace(lora={"merge": case.options.get("merge", True)}, hf_config=MagicMock())
    engine._uses_fsdp2_cpu_offload_policy = case.options.get("policy", False)
    engine._qat_enabled, mixed = bool(qat := case.options.get("qat")), _MIXED.get(qat)
    engine._qat_config, engine.engine_config = MagicMock(ignore_patterns=()), SimpleNamespace(mixed_precision=mixed)
    return engine


def parts(model: Any) -> list[Any]:
    """Return a copy of what this rank has of each weight, on the CPU: an offload may have taken it there."""
    return [getattr(it, "_local_tensor", it).detach().to("cpu", copy=True) for it in model.parameters()]


def wait() -> None:
    """Wait for the GPU, if there is one."""
    import torch

    torch.cuda.synchronize()


def grow(model: Any) -> None:
    """Make the adapters half as large again."""
    import torch

    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.mul_(1.5)


def module(name: str) -> Any:
    """Return the module of this name."""
    return importlib.import_module(name)
