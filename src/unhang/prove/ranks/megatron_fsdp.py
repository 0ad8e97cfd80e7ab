"""Megatron-FSDP on a CPU, with gloo: what its scenes share."""

from __future__ import annotations

import gc
import importlib
import inspect
from typing import TYPE_CHECKING, Any

from . import shims

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


def prepare() -> None:
    """Import Megatron-FSDP for a CPU, whose name stands for a device's number, too.

    It collects garbage twice for each model. Here that takes a fifth of the time, and frees next to nothing.
    """
    shims.cuda_on_cpu()
    import torch
    from torch.distributed import device_mesh

    if shims.DEVICE == "cpu":
        here = type("Here", (str,), {"__format__": lambda *_: "0"})("cpu")
        torch.cuda.current_device = lambda: here
    gc.collect = lambda *_: 0
    vars(device_mesh._mesh_resources).setdefault("child_to_root_mapping", {})
    module()


def module() -> Any:
    """Return the module of Megatron-FSDP that wraps models and optimizers."""
    return importlib.import_module("megatron.core.distributed.fsdp.src.megatron_fsdp.fully_shard")


def wrapped(model: Any, ep: int = 1, outer: int = 1, apart: int = 1, **given: Any) -> Any:
    """Return a model under Megatron-FSDP over all ranks, or those of one of ``apart`` parts; a child's class a unit.

    ``ep`` and ``outer`` are the sizes of these groups. Of what is ``given``, a release gets what it takes.
    """
    import torch
    from torch.distributed.device_mesh import init_device_mesh

    def mesh(ep: int) -> Any:
        ep *= apart
        sizes = {"ep": ep, "outer": outer, "dp": torch.distributed.get_world_size() // outer // ep, "tp": 1}
        return init_device_mesh(shims.DEVICE, (*sizes.values(),), mesh_dim_names=(*sizes,))["outer", "dp", "tp"]

    if outer > 1:
        given |= dict.fromkeys(("hybrid_fsdp_group", "hybrid_fsdp_expt_group"), torch.distributed.group.WORLD)
        given["dp_outer_dim"] = "outer"
    given = {
        **{"device_mesh": mesh(1), "expt_device_mesh": mesh(ep), "dp_shard_dim": "dp", "tp_dim": "tp"},
        **{"fsdp_unit_modules": [type(next(model.children()))], "device": torch.device(shims.DEVICE)},
        **{"preproc_state_dict_for_dcp_ckpt": False, **given, "module": model},
        **{"sync_grads_each_step": given.get("sync_model_each_microbatch", True)},  # the names before 0.15
        **{"dp_inter_dim": given.get("dp_outer_dim"), "use_hybrid_fsdp": outer > 1},
    }
    found = _wrapper()(**{name: given[name] for name in given if takes(name)})
    return found[0] if isinstance(found, tuple) else found  # it came with an optimizer then


def takes(name: str) -> bool:
    """Return whether a release takes an argument of this name for a model."""
    return name in inspect.signature(_wrapper()).parameters


def _wrapper() -> Any:
    return getattr(module(), "fully_shard_model", None) or module().fully_shard


def gradients(model: Any) -> dict[str, list[float]]:
    """Finish the gradients of a step. Return this rank's part of each, by the weight's name; empty without one."""
    model.finish_grad_sync()
    parts = {name.removeprefix("module."): it.grad for name, it in model.named_parameters()}
    return {name: [] if it is None else it._local_tensor.float().flatten().tolist() for name, it in parts.items()}


def differing(ranks: Sequence[Mapping[str, list[float]]], due_of: Callable[[str], Any], rtol: float = 0.02) -> str:
    """Return which gradient, its parts on all ranks in a row, is not the flat one that is due; empty if none is."""
    import torch

    for name in ranks[0]:
        found, due = torch.tensor([value for it in ranks for value in it[name]]), due_of(name)
        due = due.repeat(max(1, len(found) // len(due)))  # each rank may have the whole
        if found.shape != due.shape or not torch.allclose(found, due, rtol=rtol, atol=0):
            return f"the gradient of {name} is {found.tolist()}, due {due.tolist()}"
    return ""


def scale_what_is_reduced() -> None:
    """Let gloo take NCCL's mean, and its sum of what each rank scales first. Call it once in a process."""
    import torch.distributed as dist

    if shims.DEVICE != "cpu":
        return
    dist._make_nccl_premul_sum = float
    for name in ("all_reduce", "reduce_scatter_tensor"):
        setattr(dist, name, _scaling(getattr(dist, name)))


def _scaling(reduce: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of torch.distributed which also takes a factor. An input that is not the output stays."""
    import torch.distributed as dist

    def scaled(*tensors: Any, op: Any = None, **given: Any) -> Any:
        if op == dist.ReduceOp.AVG:
            op = 1 / dist.get_world_size(given.get("group"))
        if isinstance(op, float):
            for tensor in tensors:
                tensor.mul_(op)
            given |= {name: it * op for name, it in given.items() if name == "input"}
            op = None
        return reduce(*tensors, **given, **({} if op is None else {"op": op}))

    return scaled
