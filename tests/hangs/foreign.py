"""Jobs of our own making that hang, are slow or healthy, for reasons that no fix cures. Some look much like a fix's.

Each body runs on real ranks of gloo; what it calls is named as in a training loop, for the sake of the stacks.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Job(NamedTuple):
    """A job that is no fix's."""

    body: Callable[[int], object]
    culprits: tuple[int, ...] = ()  # the ranks to suspect
    world: int = 4


def _ones(*sizes: int, dtype: str = "float32") -> Any:
    import torch

    return torch.ones(*sizes, dtype=getattr(torch, dtype))


def _dist() -> Any:
    import torch.distributed

    return torch.distributed


def _reduce(*sizes: int, group: Any = None, dtype: str = "float32") -> None:
    _dist().all_reduce(_ones(*sizes, dtype=dtype), group=group)


def _barrier() -> None:
    _dist().barrier()


def _group(description: str, *parts: Sequence[int]) -> Any:
    """Make a group of each of these ranks; return the own one."""
    made = [_dist().new_group(list(part), group_desc=description) for part in parts]
    return next((group for group, part in zip(made, parts) if _dist().get_rank() in part), None)


def _train(steps: int, group: Any = None) -> None:
    """Take some steps that all ranks take."""
    for _step in range(steps):
        _reduce(16, group=group)


def _next_batch() -> None:
    """Wait for a data loader that brings nothing more."""
    queue.Queue[object]().get()


def _compile() -> None:
    """Wait for a compiler."""
    command = [sys.executable, "-S", "-c", "input()"]
    subprocess.run(command, stdin=os.pipe()[0], stderr=subprocess.DEVNULL, check=False)


def _tokenize() -> None:
    """Work for as long as it takes."""
    number = 0
    while True:
        number = (number * 31 + 7) % 1_000_003


def skipped_rank(rank: int) -> None:
    """One rank finds nothing to reduce, and goes on to the end of the step."""
    _train(2)
    if rank != 2:
        _reduce(8)
    _barrier()


def skipped_group(rank: int) -> None:
    """One rank of a data-parallel group does not average its loss."""
    group = _group("DATA_PARALLEL_GROUP_WITH_CP", range(4))
    _train(2, group)
    if rank != 3:
        _reduce(1, group=group)
    _barrier()


def first_use_skipped(rank: int) -> None:
    """The first all-reduce of a group, of one number, lacks a rank that waits for data."""
    group = _group("DATA_PARALLEL_GROUP_WITH_CP", range(4))
    _train(2)
    if rank == 1:
        _next_batch()
    _reduce(1, group=group)


def crashed_rank(rank: int) -> None:
    """One rank raises, and its peers wait for its gradients."""
    _train(2)
    if rank == 1:
        raise ValueError("loss is NaN at step 3")
    _train(1)


def out_of_memory(rank: int) -> None:
    """One rank has no memory for its tokens, and its peers wait to combine theirs."""
    group = _group("EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP", range(4))
    gathered = _ones(4 * 4, 8)
    _dist().all_gather_into_tensor(gathered, _ones(4, 8), group=group)
    if rank == 3:
        raise RuntimeError("CUDA out of memory. Tried to allocate 1.50 GiB.")
    _dist().reduce_scatter_tensor(_ones(4, 8), gathered, group=group)


def killed_rank(rank: int) -> None:
    """The kernel kills a rank, as when the host has no memory left."""
    _train(2)
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    _train(1)


def early_exit(rank: int) -> None:
    """One rank's data ends before that of the others, and it is done."""
    _train(2)
    if rank != 3:
        _train(1)


def uneven_loader(rank: int) -> None:
    """Rank 0 takes one step more than the others, which evaluate."""
    _train(3 + (rank == 0))
    _reduce(2)
    _barrier()


def uneven_loader_sharded(rank: int) -> None:
    """Rank 0 runs one micro-batch more of a sharded model than the others, which clip their gradients."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 16))
    mesh = init_device_mesh("cpu", (4,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for _batch in range(2 + (rank == 0)):
        model(_ones(2, 16)).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    _barrier()


def wrong_sizes(rank: int) -> None:
    """One rank reduces a longer tensor."""
    _train(2)
    _reduce(9 if rank == 0 else 8)


def wrong_sizes_in_pipeline(rank: int) -> None:
    """The stages of a pipeline reduce statistics of their own number of layers."""
    group = _group("PIPELINE_MODEL_PARALLEL_GROUP", range(4))
    _reduce(1, group=group)
    _reduce(3 if rank == 0 else 4, group=group)


def wrong_type(rank: int) -> None:
    """One rank reduces doubles."""
    _train(2)
    _reduce(4, dtype="float64" if rank == 3 else "float32")


def wrong_sizes_in_broadcast(rank: int) -> None:
    """The ranks hold tables of different sizes."""
    _train(1)
    _dist().broadcast(_ones(8 if rank == 0 else 6), src=0)


def two_collectives(rank: int) -> None:
    """One rank broadcasts what the others reduce."""
    _train(2)
    if rank == 0:
        _dist().broadcast(_ones(8), src=1)
    else:
        _reduce(8)


def two_sources(rank: int) -> None:
    """The ranks do not agree on the source of a broadcast, which no record has."""
    _train(1)
    _dist().broadcast(_ones(8), src=0 if rank in (1, 3) else 1)
    _barrier()


def two_orders(rank: int) -> None:
    """Two ranks use two groups in one order, two in the other."""
    tensor = _group("TENSOR_MODEL_PARALLEL_GROUP", (0, 1), (2, 3))
    data = _group("DATA_PARALLEL_GROUP", (0, 2), (1, 3))
    for group in (tensor, data) if rank in (0, 3) else (data, tensor):
        _reduce(8, group=group)


def missing_send(rank: int) -> None:
    """A stage waits for activations that the stage before it never sends. gloo records neither send nor receive."""
    group = _group("PIPELINE_MODEL_PARALLEL_GROUP", range(4))
    if rank > 0:
        _dist().recv(_ones(4, 8), src=rank - 1, group=group)
    if rank in (1, 2):
        _dist().send(_ones(4, 8), dst=rank + 1, group=group)
    _barrier()


def cold_compile(rank: int) -> None:
    """One rank compiles while its peers wait for its first gradients."""
    group = _group("DATA_PARALLEL_GROUP_WITH_CP", range(4))
    if rank == 0:
        _compile()
    _reduce(64, group=group)


def all_compile(rank: int) -> None:
    """All ranks compile."""
    _train(1)
    _compile()


def slow_rank(rank: int) -> None:
    """One rank is at work on its data while its peers wait."""
    _train(2)
    if rank == 3:
        _tokenize()
    _train(1)


def host_wait(rank: int) -> None:
    """One rank waits for data while its peers gather."""
    _train(1)
    if rank == 1:
        _next_batch()
    _dist().all_gather_into_tensor(_ones(64), _ones(16))


def all_wait(rank: int) -> None:
    """All ranks wait for data."""
    _train(2)
    _next_batch()


def checkpoint(rank: int) -> None:
    """Rank 0 writes to a disk that is stuck; its peers wait at the barrier after it."""
    _train(2)
    if rank == 0:
        os.read(os.pipe()[0], 1)
    _barrier()


def lock_held(rank: int) -> None:
    """One rank waits for a lock of its own that it holds."""
    _train(2)
    lock = threading.Lock()
    with lock:
        if rank == 2:
            lock.acquire()
    _train(1)


def skipped_broadcast(rank: int) -> None:
    """One tensor-parallel pair gets no batch, because its source has come to the end."""
    group = _group("TENSOR_MODEL_PARALLEL_GROUP", (0, 1), (2, 3))
    source = rank - rank % 2
    _dist().broadcast(_ones(1, 16), src=source, group=group)
    if rank != 2:
        _dist().broadcast(_ones(1, 16), src=source, group=group)
    _barrier()


def healthy(rank: int) -> None:
    """Some steps with two groups; all ranks are done."""
    group = _group("DATA_PARALLEL_GROUP_WITH_CP", (0, 2), (1, 3))
    _train(3)
    _train(3, group)
    _barrier()


def in_training(rank: int) -> None:
    """A healthy job in the midst of its steps."""
    while True:
        sum(range(20_000))
        _reduce(64)


def same_as_mean_metric(rank: int) -> None:
    """Without its frames, this is mean-metric-dtype: two numbers, of which rank 0 has doubles."""
    _train(2)
    _reduce(2, dtype="float64" if rank == 0 else "float32")


_BY_CULPRITS: dict[tuple[int, ...], Sequence[Callable[[int], object]]] = {
    (): (all_compile, all_wait, healthy, in_training, two_sources),
    (0,): (
        checkpoint, cold_compile, missing_send, same_as_mean_metric, two_collectives, uneven_loader,
        uneven_loader_sharded, wrong_sizes, wrong_sizes_in_broadcast, wrong_sizes_in_pipeline,
    ),
    (1,): (crashed_rank, first_use_skipped, host_wait),
    (2,): (killed_rank, lock_held, skipped_rank),
    (3,): (early_exit, out_of_memory, skipped_group, slow_rank, wrong_type),
    (2, 3): (skipped_broadcast,),
    (0, 1, 2, 3): (two_orders,),
}  # fmt: skip
JOBS = {
    body.__name__.replace("_", "-"): Job(body, culprits) for culprits, bodies in _BY_CULPRITS.items() for body in bodies
}
"""By name; in order of their culprits."""
