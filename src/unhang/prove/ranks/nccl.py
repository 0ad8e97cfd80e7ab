"""Ranks that speak NCCL, on the GPUs that this process sees: several on one where there are more ranks than GPUs.

NCCL refuses a second rank on a GPU because host and bus id are the same. With another ``NCCL_HOSTID`` for each rank it
takes them for ranks of other hosts, and they speak over sockets. NCCL's maintainers do not support that (their issue
418): it is a means for tests. Random numbers are drawn on the CPU, so that they are those of the same scene on gloo.
"""

from __future__ import annotations

import os
import shutil
import time
import traceback
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

KEPT = ""
"""The folder for what the ranks leave if they do not all end well; empty if nothing is to be kept."""
_DUMPS, _LOGS, _STACKS = "dumps", "logs", "stacks"
_LATER_S = 7.0  # the watchdog's timeout comes after our deadline: a stack is taken before it ends the rank
_DUMPS_S = 20.0  # for all ranks to write their dumps
ENVIRONMENT = {
    **{"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_MNNVL_ENABLE": "0", "NCCL_NVLS_ENABLE": "0"},
    **{"NCCL_MAX_NCHANNELS": "1", "NCCL_BUFFSIZE": "1048576"},  # less memory
    **{"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"},
}
"""What each rank sets before its first communicator."""


def start(rank: int, world: int, store: Any, deadline_s: float) -> None:
    """Make this process a rank: its GPU, the device of new tensors, and the default group. Raise what torch raises."""
    import torch
    import torch.distributed as dist

    gpu = rank % torch.cuda.device_count()
    os.environ.update(ENVIRONMENT, NCCL_HOSTID=f"node{rank}", LOCAL_RANK=str(gpu))
    if KEPT:
        os.environ.update(dict.fromkeys(("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"), _dump("")))
    timeout = timedelta(seconds=deadline_s + _LATER_S)
    new_group = dist.new_group

    def timed(*given: Any, **named: Any) -> Any:
        return new_group(*given, **{**named, "timeout": timeout})

    dist.new_group = dist.distributed_c10d.new_group = timed
    dist.distributed_c10d.default_pg_nccl_timeout = timeout  # of the groups of a mesh
    torch.cuda.set_device(gpu)
    torch.set_default_tensor_type(torch.cuda.FloatTensor)  # set_default_device would be on every stack
    _draw_on_the_cpu()
    dist.init_process_group("nccl", store=store, rank=rank, world_size=world, timeout=timeout)
    dist.all_reduce(one := torch.ones(1))
    assert one.item() == world


def _draw_on_the_cpu() -> None:
    import torch

    for name in ("rand", "randn", "randint", "randperm", "rand_like", "randn_like"):
        setattr(torch, name, _drawn(getattr(torch, name)))
    torch.multinomial = _sampled(torch.multinomial)
    for name in ("normal_", "uniform_", "random_", "bernoulli_"):
        setattr(torch.Tensor, name, _filled(getattr(torch.Tensor, name)))


def _drawn(draw: Any) -> Any:
    """Return a function of torch that draws a new tensor on the CPU, and moves it to where it is asked for."""
    import torch

    def drawn(*given: Any, device: Any = None, requires_grad: bool = False, **named: Any) -> Any:
        given = tuple(it.cpu() if torch.is_tensor(it) else it for it in given)
        return draw(*given, device="cpu", **named).to(device or "cuda").requires_grad_(requires_grad)

    return drawn


def _sampled(draw: Any) -> Any:
    """Return a function of torch that samples on the CPU from a tensor, and moves the sample to where that is."""

    def sampled(given: Any, *others: Any, **named: Any) -> Any:
        return draw(given.cpu(), *others, **named).to(given.device)

    return sampled


def _filled(fill: Any) -> Any:
    """Return a method of a tensor that fills it with numbers drawn on the CPU."""
    import torch

    def filled(self: Any, *given: Any, **named: Any) -> Any:
        if self.device.type != "cuda":
            return fill(self, *given, **named)
        return self.copy_(fill(torch.empty(self.shape, dtype=self.dtype, device="cpu"), *given, **named))

    return filled


def ended(value: Any) -> Any:
    """Wait for the GPU, and return what a rank returns with its tensors on the CPU.

    A tensor on a GPU would start CUDA in the process that forks the ranks, and then its next forks could not use it.
    """
    import torch
    from torch.utils._pytree import tree_map

    torch.cuda.synchronize()
    return tree_map(lambda it: it.detach().cpu() if torch.is_tensor(it) else it, value)


def used() -> int:
    """Return the bytes in use on this rank's GPU."""
    import torch

    free, total = torch.cuda.mem_get_info()
    return int(total - free)


def begin_to_keep() -> None:
    """Make the folders of what is kept."""
    for name in (_DUMPS, _LOGS, _STACKS) if KEPT else ():
        os.makedirs(os.path.join(KEPT, name), exist_ok=True)


def log(rank: int) -> str:
    """Return the file that a rank's output goes to."""
    return os.path.join(KEPT, _LOGS, f"rank_{rank}.log") if KEPT else os.devnull


def tell(error: BaseException) -> None:
    """Write the error of this rank to its log, as torch does where nobody catches it."""
    if KEPT:
        lines = "".join(traceback.format_exception(type(error), error, error.__traceback__)).splitlines()
        os.write(2, "".join(f"[rank{os.environ['RANK']}]: {line}\n" for line in lines).encode())


def keep(dumps: Mapping[int, str]) -> None:
    """Keep the stacks of the ranks that are alive, and wait until the watchdogs have written all dumps.

    ``dumps`` maps a rank to the file that faulthandler has written. A rank that waits in the first collective of a
    group writes no dump.
    """
    for rank, path in dumps.items() if KEPT else ():
        with open(path, errors="replace") as file, open(_stack(rank), "w") as kept:
            kept.write("".join(letter for letter in file.read() if letter.isprintable() or letter == "\n"))
    until = time.monotonic() + _DUMPS_S * bool(KEPT and dumps)
    while time.monotonic() < until and not all(_is_written(_dump(rank)) for rank in dumps):
        time.sleep(0.5)


def forget(states: Iterable[str]) -> None:
    """Remove what is kept if these are the states of ranks that are all done."""
    if KEPT and {*states} == {"done"}:
        shutil.rmtree(KEPT, ignore_errors=True)


def _dump(rank: object) -> str:
    return os.path.join(KEPT, _DUMPS, f"nccl_trace_rank_{rank}")


def _stack(rank: int) -> str:
    return os.path.join(KEPT, _STACKS, f"rank_{rank}.txt")


def _is_written(path: str) -> bool:
    try:
        return os.path.getsize(path) > 0
    except OSError:
        return False
