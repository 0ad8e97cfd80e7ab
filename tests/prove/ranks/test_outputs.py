"""The values that recorded operations leave. They need torch."""

from __future__ import annotations

from support.jobs import dist, needs_torch, tensor
from unhang.prove.ranks import schedule


@needs_torch
def test_a_broadcast_reaches_later_ranks() -> None:
    def job(rank: int) -> list[object]:
        sent, value = ["sent"] if rank == 0 else [None], tensor() * (5 - rank)
        dist().broadcast_object_list(sent, src=0)
        dist().broadcast(value, src=0)
        return [*sent, *value.tolist()]

    assert schedule.check(2, lambda _: None, job).values == {0: ["sent", 5.0], 1: ["sent", 5.0]}


@needs_torch
def test_other_outputs_are_initialized_but_not_known() -> None:
    def read(rank: int) -> list[float]:
        import torch

        given = torch.full((2,), 7.0)
        dist().irecv(given, 1 - rank)
        dist().isend(tensor(2), 1 - rank)
        values: list[float] = given.tolist()
        return values

    found = schedule.check(2, lambda _: None, read, backend="gloo")
    assert found.status == "unknown"
    assert "a value of another rank, read with tolist on rank 0 at" in found.text()
    found = schedule.check(2, lambda _: None, read, backend="gloo", declared={"read": [1.0, 1.0]})
    assert (found.status, found.values) == ("passed", {0: [1.0, 1.0], 1: [1.0, 1.0]})
