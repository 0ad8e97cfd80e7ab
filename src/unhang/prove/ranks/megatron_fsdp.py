"""Megatron-FSDP on a CPU, with gloo: what its scenes share."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import shims

if TYPE_CHECKING:
    from collections.abc import Callable


def prepare() -> None:
    """Import Megatron-FSDP for a CPU, whose name stands for a device's number, too."""
    shims.cuda_on_cpu()
    import torch
    from torch.distributed import device_mesh

    here = type("Here", (str,), {"__format__": lambda *_: "0"})(shims.DEVICE)
    torch.cuda.current_device = lambda: here
    vars(device_mesh._mesh_resources).setdefault("child_to_root_mapping", {})
    module()


def module() -> Any:
    """Return the module of Megatron-FSDP that wraps models and optimizers."""
    return importlib.import_module("megatron.core.distributed.fsdp.src.megatron_fsdp.fully_shard")


def scale_what_is_reduced() -> None:
    """Let gloo take NCCL's sum of what each rank scales first. Call it once in a process."""
    import torch.distributed as dist

    dist._make_nccl_premul_sum = float
    for name in ("all_reduce", "reduce_scatter_tensor"):
        setattr(dist, name, _scaling(getattr(dist, name)))


def _scaling(reduce: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of torch.distributed which also takes a factor. An input that is not the output stays."""

    def scaled(*tensors: Any, op: Any = None, **given: Any) -> Any:
        if isinstance(op, float):
            for tensor in tensors:
                tensor.mul_(op)
            given |= {name: it * op for name, it in given.items() if name == "input"}
            op = None
        return reduce(*tensors, **given, **({} if op is None else {"op": op}))

    return scaled
