"""The values that recorded operations leave. They need torch."""

from __future__ import annotations

from support.jobs import checked, dist, needs_torch, objects, tensor


@needs_torch
def test_outputs_are_initialized() -> None:
    def job(rank: int) -> list[list[float]]:
        import torch

        received, scattered = torch.full((2,), 7.0), torch.full((1,), 7.0)
        dist().irecv(received, 1 - rank)
        dist().isend(tensor(2), 1 - rank)
        dist().scatter(scattered, [tensor(), tensor()] if rank == 0 else None, src=0)
        gathered = [torch.full((1,), 7.0) for _ in range(2)] if rank == 0 else None
        dist().gather(tensor(), gathered, dst=0)
        swapped = [torch.full((1,), 7.0) for _ in range(2)]
        dist().all_to_all(swapped, [tensor(), tensor()])
        return [tensor.tolist() for tensor in (received, scattered, *(gathered or ()), *swapped)]

    found = checked(job)
    assert found.findings == []
    assert found.values == {0: [[0.0] * 2, *[[1.0]] * 5], 1: [[0.0] * 2, [0.0], [1.0], [1.0]]}


@needs_torch
def test_a_broadcast_reaches_later_ranks() -> None:
    assert checked(objects).values == {0: ["sent"] * 3, 1: ["sent"] * 3}
