"""What NCCL's ranks have around them, where there is no GPU: what is kept, and random numbers. Needs torch."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.cli import called
from support.jobs import Job, dist, needs_torch, raising, tensor
from unhang.prove.ranks import gloo, nccl


def hanging(rank: int) -> None:
    os.write(1, b"it begins\n")
    if rank:
        dist().all_reduce(tensor())


def passing(rank: int) -> int:
    dist().all_reduce(tensor())
    return rank


@needs_torch
@pytest.mark.parametrize(("job", "logs", "stacks"), [(hanging, [0, 1], [1]), (raising, [0, 1], [0]), (passing, [], [])])
def test_what_ranks_leave_is_kept_unless_all_end_well(
    job: Job, logs: list[int], stacks: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nccl, "KEPT", str(tmp_path / "left"))
    monkeypatch.setattr(nccl, "_DUMPS_S", 0.0)  # gloo writes none
    world = gloo.run(2, job, deadline_s=2.0)
    assert [path.name for path in sorted(tmp_path.glob("left/logs/*"))] == [f"rank_{rank}.log" for rank in logs]
    alive = [number for number, rank in enumerate(world.ranks) if rank.state == "alive"]
    assert [path.name for path in sorted(tmp_path.glob("left/stacks/*"))] == [f"rank_{rank}.txt" for rank in alive]
    if job is hanging:
        assert alive == stacks
        assert (tmp_path / "left" / "logs" / "rank_0.log").read_text() == "it begins\n"
        said = called("diagnose", tmp_path / "left", "--output-format", "json")
        (group,) = [group for group in said.json["where"] if "hanging" in str(group)]
        assert group["ranks"] == [1]
    if job is raising:
        text = "".join(path.read_text() for path in sorted(tmp_path.glob("left/logs/*")))
        assert "]: Traceback (most recent call last):" in text


@needs_torch
def test_random_numbers_are_those_of_a_cpu() -> None:
    import torch

    draw, fill = nccl._drawn(torch.randn), nccl._filled(torch.Tensor.normal_)
    torch.manual_seed(3)
    due = torch.randn(4), torch.empty(4).normal_(0.0, 2.0)
    torch.manual_seed(3)
    assert torch.equal(draw(4, device="cpu"), due[0])
    assert torch.equal(fill(torch.empty(4), 0.0, 2.0), due[1])
    weights = torch.tensor([0.1, 0.2, 0.7])
    due_sample = torch.manual_seed(3) and torch.multinomial(weights, 9, True)
    assert torch.equal(torch.manual_seed(3) and nccl._sampled(torch.multinomial)(weights, 9, True), due_sample)
    asked = draw(4, device="cpu", requires_grad=True)
    assert (asked.requires_grad, asked.is_leaf) == (True, True)
