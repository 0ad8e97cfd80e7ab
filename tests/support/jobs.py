"""Made-up jobs of a few ranks, for the tests of real ranks. They need torch."""

import time
from collections.abc import Callable
from typing import Any

import pytest

needs_torch = pytest.mark.torch
Job = Callable[[int], Any]


def tensor(size: int = 1, dtype: str = "float32") -> Any:
    import torch

    return torch.ones(size, dtype=getattr(torch, dtype))


def dist() -> Any:
    """Return ``torch.distributed``, imported only where it is used."""
    import torch.distributed

    return torch.distributed


def missing(rank: int) -> None:
    if rank == 0:
        dist().all_reduce(tensor())


def raising(rank: int) -> None:
    if rank == 1:
        raise ValueError("a fault of its own")
    dist().all_reduce(tensor())


def working(seconds: float) -> None:
    """Use a processor."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass
