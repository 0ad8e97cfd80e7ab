"""What a watch records of real ranks, on small made-up jobs. They need torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.jobs import dist, needs_torch
from unhang.prove.ranks import gloo
from unhang.prove.ranks.communicators import Use, Watch


def watched(job: Callable[[int], Any], world: int = 2, device: str = "cuda") -> list[dict[str, Any]]:
    """Run a job on real ranks, and return what each one's watch has."""

    def body(rank: int) -> dict[str, Any]:
        with Watch(rank, "cpu:gloo,cuda:nccl", device) as watch:
            returned = job(rank)
        return {"uses": watch.uses, "made": watch.made, "is_waiting": watch.is_waiting, "returned": returned}

    ranks = gloo.run(world, body)
    assert ranks.text() == ""
    return [rank.value for rank in ranks.ranks]


def zeros(size: int = 1, **given: Any) -> Any:
    import torch

    return torch.zeros(size, **given)


def own() -> Any:
    import torch

    return torch.cuda.current_device()


def functional(group: Any) -> None:
    from torch.distributed import _functional_collectives

    _functional_collectives.all_reduce(zeros(), "sum", group).wait()


WAYS: dict[str, Callable[[Any], Any]] = {
    "function": lambda group: dist().all_reduce(zeros(), group=group),
    "not waited for": lambda group: dist().all_reduce(zeros(), group=group, async_op=True).wait(),
    "own method": lambda group: group.allreduce([zeros()]).wait(),
    "found by name": lambda group: (
        dist().distributed_c10d._resolve_process_group(group.group_name).allreduce([zeros()]).wait()
    ),
    "functional": functional,
    "broadcast": lambda group: dist().broadcast(zeros(), group=group, group_src=0),
}


@needs_torch
@pytest.mark.parametrize("way", WAYS)
def test_every_collective_is_recorded_once_with_its_communicator(way: str) -> None:
    def job(rank: int) -> None:
        groups = [dist().new_group([0, 1]), dist().new_group([1, 0])]
        WAYS[way](groups[1])
        WAYS[way](dist().group.WORLD)

    for one in watched(job):
        assert [(use.communicator, use.ranks, use.elements) for use in one["uses"]] == [
            ("group 2", (0, 1), 1),
            ("", (0, 1), 1),
        ]
        assert all(("broadcast" if way == "broadcast" else "reduce") in use.kind for use in one["uses"])
        assert one["made"] == [(0, 1), (0, 1)]


@needs_torch
def test_a_group_that_only_some_ranks_make_is_told_apart() -> None:
    def job(rank: int) -> None:
        if rank:
            group = dist().new_group([2, 1], use_local_synchronization=True)
            dist().all_reduce(zeros(3), group=group)

    none, *both = watched(job, 3)
    assert (none["made"], none["uses"]) == ([], [])
    for one in both:
        assert one["made"] == [(1, 2)]
        assert one["uses"] == [Use("group 1", (1, 2), "allreduce_", 3, False)]


@needs_torch
@pytest.mark.parametrize(
    ("make", "on_device"),
    [
        (lambda: zeros(device=own()), True),
        (lambda: zeros(device="cuda"), True),
        (lambda: zeros(device=f"cuda:{own()}"), True),
        (lambda: zeros().to("cuda"), True),
        (zeros, False),
        (lambda: zeros(device="cpu"), False),
        (lambda: zeros(device=1 - own()), False),
        (lambda: zeros(device=f"cuda:{1 - own()}"), False),
    ],
)
def test_a_tensor_is_on_the_ranks_own_device_or_not(make: Callable[[], Any], on_device: bool) -> None:
    for one in watched(lambda _: dist().all_reduce(make())):
        assert [use.on_device for use in one["uses"]] == [on_device]


@needs_torch
def test_a_device_of_another_kind() -> None:
    def job(rank: int) -> None:
        for device in (f"npu:{rank}", "npu", f"npu:{1 - rank}", "cuda", own()):
            dist().all_reduce(zeros(device=device))

    for one in watched(job, device="npu"):
        assert [use.on_device for use in one["uses"]] == [True, True, False, False, False]


@needs_torch
def test_a_later_watch_gets_the_groups_that_are_there_and_all_else_is_as_before() -> None:
    def job(rank: int) -> list[bool]:
        found = []
        for _ in range(2):
            with Watch(rank, "nccl"):
                found.append([dist().new_group([0, 1]), dist().new_group([0, 1])])
        (first, second), again = found
        return [first is again[0], second is again[1], first is second, dist().get_backend(first) == "gloo"]

    ranks = gloo.run(2, job)
    assert ranks.text() == ""
    assert [rank.value for rank in ranks.ranks] == [[True, True, False, True]] * 2


@needs_torch
@pytest.mark.parametrize("wait", ["item", "synchronize", ""])
def test_what_waits_for_the_device(wait: str) -> None:
    def job(rank: int) -> None:
        import torch

        total = zeros()
        dist().all_reduce(total)
        if wait == "item":
            total.item()
        elif wait:
            torch.cuda.synchronize()

    assert {one["is_waiting"] for one in watched(job)} == {not wait}
    assert {one["is_waiting"] for one in watched(job, device="npu")} == {wait != "item"}
    assert {one["is_waiting"] for one in watched(lambda _: None)} == {None}


@needs_torch
def test_a_group_poses_with_the_backend_that_it_was_made_with() -> None:
    def job(rank: int) -> list[str]:
        groups = [None, dist().new_group([0, 1]), dist().new_group([0, 1], backend="gloo")]
        return [dist().get_backend(group) for group in groups]

    for one in watched(job):
        assert one["returned"] == ["cpu:gloo,cuda:nccl", "cpu:gloo,cuda:nccl", "gloo"]
