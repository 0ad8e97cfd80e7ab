"""Shims that let code for CUDA run on a CPU. They last for the life of the process, so use them in a fork."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DEVICE = "cpu"
"""Where the tensors of a scene are. With ``cuda`` its ranks speak NCCL and not gloo, and nothing here does anything."""


def cuda_on_cpu() -> None:
    """Make ``cuda`` devices the CPU, and streams and events do nothing. Call it before the upstream is imported.

    It does nothing where ``DEVICE`` is a GPU.
    """
    import torch
    from torch.utils import cpp_extension

    torch.set_num_threads(1)
    if DEVICE != "cpu":
        return
    cpp_extension.CUDA_HOME = None  # otherwise an import may compile for GPUs, of which torch then sees none
    torch.cuda.current_device = lambda: "cpu"  # as a device=, it makes a tensor on the CPU
    for name in ("synchronize", "set_device", "empty_cache", "manual_seed", "manual_seed_all", "set_rng_state"):
        setattr(torch.cuda, name, _nothing())
    torch.cuda.get_rng_state = torch.cuda.random.get_rng_state = lambda *_, **__: torch.get_rng_state()
    torch.Tensor.cuda = lambda self, *_, **__: self
    torch.nn.Module.cuda = lambda self, *_, **__: self
    torch.cuda.Stream, torch.cuda.Event = type("Stream", (Stream,), {}), type("Event", (Stream,), {})
    torch.cuda.current_stream = lambda *_, **__: Stream()
    torch.cuda.default_stream = lambda *_, **__: Stream()
    torch.cuda.stream = lambda *_: contextlib.nullcontext()


@contextlib.contextmanager
def on_cpu() -> Iterator[None]:
    """Make tensors on the CPU that are asked for on a GPU; a tensor's type says that it is on one."""
    import torch
    from torch.overrides import TorchFunctionMode

    class OnCpu(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            named = dict(kwargs or {})
            if str(named.get("device")).startswith("cuda"):
                named["device"] = DEVICE
            result = function(*args, **named)
            if function is torch.Tensor.type and isinstance(result, str):
                return f"torch.cuda.{result.rpartition('.')[2]}"  # Megatron's optimizer takes no others
            return result

    with OnCpu():
        yield


def newer_typing() -> None:
    """Let ``typing`` have ``override`` before Python 3.12, which upstream requires."""
    import typing

    import typing_extensions

    if not hasattr(typing, "override"):
        typing.override = typing_extensions.override  # type: ignore[attr-defined]


def gloo_as_nccl() -> None:
    """Add what gloo lacks: ReduceOp.AVG (a sum, then divided), and split sizes as tensors. Call it in each rank."""
    import torch
    import torch.distributed as dist

    all_reduce, all_to_all_single = dist.all_reduce, dist.all_to_all_single
    if hasattr(all_reduce, "averages") or DEVICE != "cpu":  # done in this process, or not needed
        return

    def averaging(tensor: Any, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Any:
        if op != dist.ReduceOp.AVG:
            return all_reduce(tensor, op=op, group=group, async_op=async_op)
        all_reduce(tensor, group=group)
        tensor.div_(dist.get_world_size(group))
        return None

    def with_lists(
        output: Any,
        input: Any,
        output_split_sizes: Any = None,
        input_split_sizes: Any = None,
        group: Any = None,
        async_op: bool = False,
    ) -> Any:
        given = output_split_sizes, input_split_sizes
        splits = [sizes.tolist() if torch.is_tensor(sizes) else sizes for sizes in given]
        return all_to_all_single(output, input, *splits, group=group, async_op=async_op)

    averaging.averages = True  # type: ignore[attr-defined]
    for module in (dist, dist.distributed_c10d):
        module.all_reduce, module.all_to_all_single = averaging, with_lists


class Stream:
    """A stream or event on which everything is done."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def record_event(self, *_: object) -> Stream:
        """Return itself, as an event that is done."""
        return self

    def query(self) -> bool:
        """Return True."""
        return True

    def wait_stream(self, *_: object) -> None:
        """Do nothing."""

    wait_event = wait = record = synchronize = wait_stream


def _nothing() -> Callable[..., None]:
    """Return a new function that does nothing: torch's compiler knows functions by their identity."""
    return lambda *_, **__: None
