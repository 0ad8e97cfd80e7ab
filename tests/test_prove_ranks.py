"""The harnesses, on small made-up jobs: real gloo ranks, and the recorder on torch's fake backend. They need torch."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unhang.errors import UnhangError
from unhang.prove import host, places, ranks, schedules, stacks
from unhang.prove.cases import Case, Topology

HAS_TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="no torch here: nox -s proofs has one")
Job = Callable[[int], Any]


def tensor(size: int = 1, dtype: str = "float32") -> Any:
    import torch

    return torch.ones(size, dtype=getattr(torch, dtype))


def dist() -> Any:
    import torch.distributed

    return torch.distributed


def missing(rank: int) -> None:
    if rank == 0:
        dist().all_reduce(tensor())


def completing(rank: int) -> float:
    total = tensor()
    dist().all_reduce(total)
    dist().barrier()
    return float(total)


def raising(rank: int) -> None:
    if rank == 1:
        raise ValueError("a fault of its own")
    dist().all_reduce(tensor())


def dying(rank: int) -> None:
    if rank == 1:
        os._exit(7)
    dist().all_reduce(tensor())


def crossed(rank: int) -> None:
    one, other = dist().new_group([0, 1]), dist().new_group([0, 1])
    for group in (one, other) if rank == 0 else (other, one):
        dist().all_reduce(tensor(), group=group)


def crossed_but_asynchronous(rank: int) -> None:
    one, other = dist().new_group([0, 1]), dist().new_group([0, 1])
    order = (one, other) if rank == 0 else (other, one)
    works = [dist().all_reduce(tensor(), group=group, async_op=True) for group in order]
    for work in works:
        work.wait()


def waiting_crosswise(rank: int) -> None:
    one, other = dist().new_group([0, 1]), dist().new_group([0, 1])
    for group in (one, other) if rank == 0 else (other, one):
        dist().all_reduce(tensor(), group=group, async_op=True).wait()


def wrong_type(rank: int) -> None:
    dist().all_reduce(tensor(2, "int32" if rank else "float32"))


def ring(rank: int) -> None:
    works = [dist().isend(tensor(), (rank + 1) % 2), dist().irecv(tensor(), (rank + 1) % 2)]
    for work in works:
        work.wait()


def batched(rank: int) -> None:
    peer = (rank + 1) % 2
    operations = [dist().P2POp(dist().isend, tensor(), peer), dist().P2POp(dist().irecv, tensor(), peer)]
    for work in dist().batch_isend_irecv(operations):
        work.wait()


def sending_first(rank: int) -> None:
    dist().send(tensor(), (rank + 1) % 2)
    dist().recv(tensor(), (rank + 1) % 2)


def one_receives_more(rank: int) -> None:
    if rank == 0:
        dist().send(tensor(2), 1)
    else:
        dist().recv(tensor(3), 0)


def objects(rank: int) -> list[Any]:
    told = ["said"] if rank == 0 else [None]
    dist().broadcast_object_list(told, src=0)
    everyone: list[Any] = [None, None]
    dist().all_gather_object(everyone, told[0])
    return [*told, *everyone]


def objects_by_one(rank: int) -> None:
    if rank == 0:
        dist().all_gather_object([None, None], "alone")


def other_root(rank: int) -> None:
    dist().broadcast(tensor(), src=rank)


def wrong_splits(rank: int) -> None:
    dist().all_to_all_single(tensor(4), tensor(4), [2, 2], [3, 1] if rank == 0 else [2, 2])


def schedule(job: Job, world: int = 2, backend: str = "nccl") -> schedules.Schedule:
    return schedules.check(world, lambda _: None, job, backend=backend)


@needs_torch
@pytest.mark.parametrize("job", [completing, crossed_but_asynchronous, ring, batched, objects])
def test_a_sound_job_passes_in_both_harnesses(job: Job) -> None:
    assert ranks.run(2, job, deadline_s=20).status == "passed"
    assert schedule(job).findings == []


@needs_torch
@pytest.mark.parametrize(
    ("job", "kind", "named"),
    [
        (missing, "missing", "rank 1 ended without it"),
        (crossed, "deadlock", "waits in all_reduce on group 0, 1"),
        (waiting_crosswise, "deadlock", "in waiting_crosswise"),
        (wrong_type, "mismatch", "int32"),
        (raising, "raised", "ValueError: a fault of its own on rank 1"),
        (sending_first, "deadlock", "in sending_first"),
        (one_receives_more, "mismatch", "3 x float32"),
        (objects_by_one, "missing", "all_gather_object"),
        (other_root, "mismatch", "root 1"),
        (wrong_splits, "mismatch", "rank 0 sends 3 elements to rank 0"),
    ],
)
def test_the_schedule_tells_what_would_not_complete(job: Job, kind: str, named: str) -> None:
    first = schedule(job).findings[0]
    assert first.kind == kind
    assert named in first.text()
    assert "test_prove_ranks.py:" in first.text()


@needs_torch
def test_a_hang_is_told_with_the_stacks_of_those_still_there() -> None:
    world = ranks.run(2, missing, deadline_s=5)
    assert world.status == "hung"
    assert [rank.state for rank in world.ranks] == ["alive", "done"]
    assert "all_reduce at" in world.text()
    assert "in missing; rank 1 done" in world.text()


@needs_torch
@pytest.mark.parametrize(("job", "named"), [(raising, "rank 1 raised ValueError"), (dying, "exit code 7")])
def test_a_crash_is_no_hang_and_does_not_cost_the_deadline(job: Job, named: str) -> None:
    world = ranks.run(2, job, deadline_s=60)
    assert world.status == "crashed"
    assert named in world.text()
    assert world.seconds < 30


def test_the_deadline_of_a_crash_stands_when_another_rank_is_ready_only_then() -> None:
    here, there = zip(*(multiprocessing.Pipe() for _ in range(2)))
    there[0].send("ready")
    there[0].send(ranks.Rank("raised", None, "ValueError: at once", ()))
    late = threading.Timer(0.3, there[1].send, ["ready"])
    late.start()
    begun = time.monotonic()
    answers = ranks._answers([], here, 60)
    late.join()
    assert answers.keys() == {0}
    assert time.monotonic() - begun < 30


@needs_torch
def test_real_ranks_move_values() -> None:
    assert [rank.value for rank in ranks.run(4, completing).ranks] == [4.0] * 4


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

    world = ranks.run(64, job)
    assert world.text() == ""
    total = sum(3**rank % 1000003 for rank in range(64))
    for rank, done in enumerate(world.ranks):
        uneven = [other for other in range(64) for _ in range(1 + (rank + other) % 3)]
        assert done.value == (total, [rank + 1000 * other for other in range(64)], uneven)


@needs_torch
def test_what_an_earlier_rank_broadcasts_reaches_the_later_ones() -> None:
    assert schedule(objects).values == {0: ["said"] * 3, 1: ["said"] * 3}


@needs_torch
def test_groups_say_the_backend_they_pose_as() -> None:
    def backends(rank: int) -> tuple[str, str]:
        return dist().get_backend(), dist().get_backend(dist().new_group([0, 1], backend="gloo"))

    assert schedule(backends, backend="cpu:gloo,cuda:nccl").values[0] == ("cpu:gloo,cuda:nccl", "gloo")


@needs_torch
def test_32_ranks_of_schedules_take_less_than_half_a_second_of_computing() -> None:
    assert min(_computing_s(lambda: schedule(completing, 32)) for _ in range(3)) < 0.5


@needs_torch
def test_every_rank_is_recorded_where_several_processes_share_the_work() -> None:
    found = schedule(missing, 70)
    assert sorted(found.programs) == list(range(70))
    assert found.findings[0].absent == tuple((rank, "ended without it") for rank in range(1, 70))


CASE = Case("any", Topology(), "ranks", "hung")


def test_without_torch_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('none of it here')")
    with pytest.raises(UnhangError) as caught:
        host.ask(sys.executable, "mtp-cp-deadlock", [str(tmp_path)], {"untouched": ({}, ["any"])}, [CASE])
    assert caught.value.code == "no-torch"
    assert "none of it here" in caught.value.message


def test_an_interpreter_that_dies_is_told(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import os; os._exit(3)")
    with pytest.raises(UnhangError) as caught:
        host.ask(sys.executable, "mtp-cp-deadlock", [str(tmp_path)], {"untouched": ({}, ["any"])}, [CASE])
    assert caught.value.code == "broken-interpreter"


@needs_torch
def test_a_proof_that_cannot_import_its_upstream_is_broken_and_no_hang() -> None:
    answer = host.ask(sys.executable, "mtp-cp-deadlock", [], {"untouched": ({}, ["any"])}, [CASE])
    outcome = answer.outcomes["untouched"]["any"]
    assert outcome.status == "broken"
    assert "No module named" in outcome.detail


def _computing_s(run: Callable[[], object]) -> float:
    """Processor time, of ourselves and of our children: what a busy machine does not change."""
    begun = os.times()
    run()
    return sum(now - then for now, then in zip(os.times()[:4], begun[:4]))


def test_the_frame_to_name_is_upstreams_wherever_unhang_itself_lies() -> None:
    ours = [places.place(ranks.__file__.replace("ranks.py", "shims.py"), 34, "averaging")]
    torch = ["torch/distributed/distributed_c10d.py:1 in all_reduce", "torch/distributed/c10d_logger.py:2 in wrapper"]
    stack = [*torch, *ours, "megatron/core/multi.py:3 in reduce_loss", "verl/engine.py:4 in step"]
    assert stacks.place(stack) == "all_reduce at megatron/core/multi.py:3 in reduce_loss"
