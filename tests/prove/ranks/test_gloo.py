"""Real gloo ranks, on small made-up jobs. Most tests need torch."""

from __future__ import annotations

import math
import multiprocessing
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support import quota
from support.jobs import Job, dist, missing, needs_torch, raising, tensor, working
from unhang.prove.ranks import gloo, nccl, shims

NOBODY: Any = SimpleNamespace(pid=None)


def dying(rank: int) -> None:
    if rank == 1:
        os._exit(7)
    dist().all_reduce(tensor())


@needs_torch
def test_64_real_ranks_move_values_exactly() -> None:
    def job(rank: int) -> tuple[int, list[int], list[int]]:
        import torch

        total = torch.tensor(3**rank % 1000003)
        dist().all_reduce(total)
        rows, received = torch.arange(64) + 1000 * rank, torch.zeros(64, dtype=torch.int64)
        dist().all_to_all_single(received, rows)
        sizes = [1 + (rank + other) % 3 for other in range(64)]  # symmetric: what is sent is what is wanted
        uneven = torch.zeros(sum(sizes), dtype=torch.int64)
        dist().all_to_all_single(uneven, torch.full((sum(sizes),), rank), sizes, sizes)
        return int(total), received.tolist(), uneven.tolist()

    world = gloo.run(64, job)
    assert world.text() == ""
    total = sum(3**rank % 1000003 for rank in range(64))
    for rank, done in enumerate(world.ranks):
        uneven = [other for other in range(64) for _ in range(1 + (rank + other) % 3)]
        assert done.value == (total, [rank + 1000 * other for other in range(64)], uneven)


def moving(steps: int) -> int:
    """Be at another place from step to step, as a rank that is only slow."""
    time.sleep(0.05)
    return moving(steps - 1) + 1 if steps else 0


@needs_torch
def test_a_rank_that_is_slow_on_a_gpu_is_not_one_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(rank: int, world: int, store: Any, _: float) -> None:
        dist().init_process_group("gloo", store=store, rank=rank, world_size=world)

    monkeypatch.setattr(shims, "DEVICE", "cuda")
    monkeypatch.setattr(gloo, "_LOOK_S", 0.5)
    for name, stand_in in (("start", start), ("ended", lambda value: value), ("used", lambda: 5)):
        monkeypatch.setattr(nccl, name, stand_in)
    slow = gloo.run(2, lambda rank: moving(40), deadline_s=1.0)
    assert [(one.state, one.value, one.gpu_bytes) for one in slow.ranks] == [("done", 40, 5)] * 2
    assert [one.state for one in gloo.run(2, missing, deadline_s=1.0).ranks] == ["alive", "done"]
    endless = gloo.run(1, lambda rank: moving(900), deadline_s=1.0)
    assert (endless.status, endless.seconds < 45) == ("hung", True)


@needs_torch
def test_all_groups_of_a_rank_share_one_device_on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no-such-interface")  # what torch takes otherwise

    def job(_: int) -> list[str]:
        for _ in range(3):
            dist().all_reduce(tensor(), group=dist().new_group([0, 1]))
        threads = [Path(f"/proc/self/task/{each}/comm").read_text().strip() for each in os.listdir("/proc/self/task")]
        return [thread for thread in threads if thread == "gloo_tcp_loop"]

    assert [rank.value for rank in gloo.run(2, job).ranks] == [["gloo_tcp_loop"]] * 2


@needs_torch
def test_a_hang_has_the_stacks_of_the_ranks_that_wait() -> None:
    world = gloo.run(2, missing, deadline_s=1)
    assert world.status == "hung"
    assert [rank.state for rank in world.ranks] == ["alive", "done"]
    assert "all_reduce at" in world.text()
    assert "in missing; rank 1 done" in world.text()


@needs_torch
@pytest.mark.parametrize(("job", "named"), [(raising, "rank 1 raised ValueError"), (dying, "exit code 7")])
def test_a_crash_is_not_a_hang_and_ends_before_the_deadline(job: Job, named: str) -> None:
    world = gloo.run(2, job, deadline_s=600)
    assert world.status == "crashed"
    assert named in world.text()
    assert world.seconds < 300


def test_a_rank_that_meets_late_does_not_extend_the_deadline_of_a_crash() -> None:
    here, there = zip(*(multiprocessing.Pipe() for _ in range(2)))
    there[0].send("ready")
    there[0].send(gloo.Rank("raised", None, "ValueError: at once", ()))
    late = threading.Timer(0.3, there[1].send, ["ready"])
    late.start()
    begun = time.monotonic()
    answers = gloo._answers([NOBODY] * 2, here, 600, "")
    late.join()
    assert answers.keys() == {0}
    assert time.monotonic() - begun < 300


def test_ranks_that_do_not_meet_are_not_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gloo, "_START_S", 0.3)
    here, there = zip(*(multiprocessing.Pipe() for _ in range(2)))
    there[0].send("ready")
    with pytest.raises(TimeoutError, match="only 1 of 2 ranks met"):
        gloo._answers([NOBODY] * 2, here, 600, "")


@needs_torch
def test_many_ranks_have_more_time_because_they_share_the_processors() -> None:
    assert gloo.run(24, lambda _: time.sleep(3), deadline_s=2).status == "passed"


def meeting(rank: int) -> None:
    """Use a processor on rank 0, for which the other ranks wait."""
    if rank == 0:
        working(5)
    dist().barrier()


@needs_torch
def test_a_rank_at_work_has_more_time_than_one_that_waits() -> None:
    assert gloo.run(2, meeting, deadline_s=1).status == "passed"
    assert gloo.run(2, lambda _: time.sleep(600), deadline_s=1).status == "hung"


def in_turns(rank: int) -> None:
    """Use a processor on one rank after the other."""
    for turn in range(8):
        if rank == turn % 4:
            working(0.2)
        dist().barrier()


@needs_torch
@pytest.mark.parametrize(("job", "world", "status"), [(in_turns, 4, "passed"), (missing, 2, "hung")])
def test_a_quota_changes_no_answer(job: Job, world: int, status: str) -> None:
    dist()  # imported before, not with 4 % of a processor
    assert quota.within(4, lambda: gloo.run(world, job, deadline_s=0.5)).status == status


@needs_torch
def test_an_endless_loop_is_a_hang() -> None:
    world = gloo.run(2, lambda rank: working(math.inf if rank else 0), deadline_s=0.2)
    assert [rank.state for rank in world.ranks] == ["done", "alive"]
    assert "in working; rank 0 done" in world.text()


@needs_torch
def test_the_stacks_are_complete_whatever_the_main_thread_does() -> None:
    def job(rank: int) -> None:
        if rank:
            time.sleep(600)
        threading.Thread(target=time.sleep, args=(600,)).start()
        missing(rank)

    for _ in range(3):
        world = gloo.run(2, job, deadline_s=0.1)
        assert "rank 0 waits in all_reduce at" in world.text()
        assert len({rank.stack[-1] for rank in world.ranks}) == 1  # the outermost frame, which is written last
