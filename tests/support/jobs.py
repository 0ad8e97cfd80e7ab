"""Made-up jobs of a few ranks, for the tests of both harnesses. They need torch."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from unhang.prove.ranks import schedule

needs_torch = pytest.mark.torch
Job = Callable[[int], Any]


def tensor(size: int = 1, dtype: str = "float32") -> Any:
    import torch

    return torch.ones(size, dtype=getattr(torch, dtype))


def dist() -> Any:
    """Return ``torch.distributed``, imported only where it is used."""
    import torch.distributed

    return torch.distributed


def checked(job: Job, world: int = 2, backend: str = "nccl") -> schedule.Schedule:
    return schedule.check(world, lambda _: None, job, backend=backend)


def missing(rank: int) -> None:
    if rank == 0:
        dist().all_reduce(tensor())


def completing(rank: int) -> None:
    dist().all_reduce(tensor())
    dist().barrier()


def raising(rank: int) -> None:
    if rank == 1:
        raise ValueError("a fault of its own")
    dist().all_reduce(tensor())


def crossed_but_asynchronous(rank: int) -> None:
    one, other = dist().new_group([0, 1]), dist().new_group([0, 1])
    order = (one, other) if rank == 0 else (other, one)
    for work in [dist().all_reduce(tensor(), group=group, async_op=True) for group in order]:
        work.wait()


def ring(rank: int) -> None:
    for work in [dist().isend(tensor(), 1 - rank), dist().irecv(tensor(), 1 - rank)]:
        work.wait()


def batched(rank: int) -> None:
    kinds = dist().isend, dist().irecv
    for work in dist().batch_isend_irecv([dist().P2POp(kind, tensor(), 1 - rank) for kind in kinds]):
        work.wait()


def objects(rank: int) -> list[Any]:
    sent = ["sent"] if rank == 0 else [None]
    dist().broadcast_object_list(sent, src=0)
    everyone: list[Any] = [None, None]
    dist().all_gather_object(everyone, sent[0])
    return [*sent, *everyone]


def working(seconds: float) -> None:
    """Use a processor."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass
