"""pytest plugin (``-p unhang_on_cpu``): lets upstream's tests for GPUs run on a CPU, as far as they can.

It is never used on a GPU. The report shows what it changes, as "shims" in releases.json lists it. The shims of the
proofs, ``unhang.prove.ranks.shims``, are loaded from the file that ``UNHANG_SHIMS`` names, because unhang is not
installed here.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import types
import typing
from collections.abc import Callable
from typing import Any

_FACTORIES = ("tensor", "zeros", "ones", "empty", "rand", "randn", "randint", "arange", "full", "linspace", "eye")
_LIKE = ("zeros_like", "ones_like", "empty_like", "rand_like", "randn_like", "full_like", "randperm", "as_tensor")
_DATA = "tests.test_utils.python_scripts.download_unit_tests_dataset"


def _shared() -> Any:
    spec = importlib.util.spec_from_file_location("unhang_shims", os.environ["UNHANG_SHIMS"])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _on_cpu(value: Any) -> Any:
    return "cpu" if str(value).split(":")[0] == "cuda" else value


def _without_cuda(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*arguments: Any, **named: Any) -> Any:
        if "device" in named:
            named["device"] = _on_cpu(named["device"])
        return function(*arguments, **named)

    return wrapped


def _devices() -> None:
    import torch

    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    torch.cuda.device_count = lambda: ranks
    torch.cuda.get_device_capability = lambda *_, **__: (9, 0)
    for name in ("mark", "range_push", "range_pop", "range_start", "range_end"):
        setattr(torch.cuda.nvtx, name, lambda *_, **__: None)
    for name in (*_FACTORIES, *_LIKE):
        setattr(torch, name, _without_cuda(getattr(torch, name)))
    move, move_module = torch.Tensor.to, torch.nn.Module.to

    def to(self: Any, *arguments: Any, **named: Any) -> Any:
        return _without_cuda(move)(self, *[_as_cpu(one) for one in arguments], **named)

    def module_to(self: Any, *arguments: Any, **named: Any) -> Any:
        return _without_cuda(move_module)(self, *[_as_cpu(one) for one in arguments], **named)

    def _as_cpu(one: Any) -> Any:
        return _on_cpu(one) if isinstance(one, (str, torch.device)) else one

    torch.Tensor.to, torch.nn.Module.to = to, module_to


def _process_groups() -> None:
    import torch.distributed as dist
    from torch.distributed import device_mesh

    start, new_group, barrier, backend = dist.init_process_group, dist.new_group, dist.barrier, dist.get_backend

    def init_with_gloo(backend: Any = None, *arguments: Any, device_id: Any = None, **named: Any) -> Any:
        return start("gloo", *arguments, **named)

    def group_of_gloo(ranks: Any = None, timeout: Any = None, backend: Any = None, *_: Any, **named: Any) -> Any:
        named.pop("pg_options", None)
        return new_group(ranks, timeout, None if backend is None else "gloo", **named)

    def plain_barrier(group: Any = None, async_op: bool = False, device_ids: Any = None, **_: Any) -> Any:
        return barrier(group=group, async_op=async_op)

    def posing(group: Any = None) -> str:
        return "nccl" if backend(group) == "gloo" else str(backend(group))

    mesh = device_mesh.init_device_mesh
    dist.init_process_group, dist.barrier, dist.get_backend = init_with_gloo, plain_barrier, posing
    dist.new_group = dist.distributed_c10d.new_group = group_of_gloo  # torch's new_subgroups look it up there
    dist.init_device_mesh = device_mesh.init_device_mesh = lambda kind, *a, **k: mesh(_on_cpu(kind), *a, **k)


def _megatron() -> None:
    """Replace what Megatron-LM's tests download, and make a missing Transformer Engine an old one."""
    if importlib.util.find_spec("megatron") is None:
        return
    stub: Any = types.ModuleType(_DATA)
    stub.download_and_extract_asset = lambda *_, **__: None
    sys.modules[_DATA] = stub
    import megatron.core.utils as utils
    from packaging.version import Version

    if utils.get_te_version() is None:  # 0.16 compares it with a version, even None
        utils.get_te_version = lambda: Version("0")


def _apply() -> None:
    import typing_extensions

    if not hasattr(typing, "override"):
        typing.override = typing_extensions.override  # type: ignore[attr-defined]
    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1")):
        os.environ.setdefault(name, value)
    shared = _shared()
    shared.cuda_on_cpu()
    shared.gloo_as_nccl()
    _devices()
    _process_groups()
    _megatron()


_apply()
