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
from types import ModuleType
from typing import Any

import pytest

from unhang.errors import UnhangError
from unhang.prove import host
from unhang.prove.cases import Case, Topology
from unhang.prove.ranks import gloo, places, processor_time, schedule, stacks

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


def by_another_name(rank: int) -> None:
    if rank == 0:
        sys.modules["made_up_upstream"].reduce_it(tensor())  # type: ignore[attr-defined]


def mixed_order(rank: int) -> None:
    early = dist().all_reduce(tensor(2 if rank else 3), async_op=True)
    dist().all_reduce(tensor(3 if rank else 2))
    early.wait()


def coalesced(rank: int, crossed_group: int = 0) -> None:
    groups = [dist().new_group([0, 1]) for _ in range(3)]
    with dist()._coalescing_manager(groups[crossed_group]):
        for group in groups[:2] if rank == 0 else groups[1::-1]:
            dist().all_reduce(tensor(), group=group)


def coalesced_elsewhere(rank: int) -> None:
    coalesced(rank, 2)


def coalesced_and_waited_for(rank: int) -> None:
    with dist()._coalescing_manager(async_ops=True) as together:
        if rank == 0:
            dist().all_reduce(tensor())
    together.wait()


def exchanged_in_a_batch(rank: int) -> None:
    kinds = (dist().irecv, dist().isend) if rank else (dist().isend, dist().irecv)
    for work in dist().batch_isend_irecv([dist().P2POp(kind, tensor(), 1 - rank) for kind in kinds]):
        work.wait()


def batched_by_one(rank: int) -> None:
    if rank == 0:
        exchanged_in_a_batch(rank)


def objects_of_other_roots(rank: int) -> None:
    dist().broadcast_object_list([None], src=rank)


def objects_of_another_length(rank: int) -> None:
    dist().broadcast_object_list([None] * (1 + rank), src=0)


def objects_sent(rank: int) -> None:
    told = [rank]
    if rank == 0:
        dist().send_object_list(told, 1)
    else:
        dist().recv_object_list(told, 0)


def objects_in_many_ways(rank: int) -> list[Any]:
    scattered, gathered = [None], [None, None] if rank == 0 else None
    dist().scatter_object_list(scattered, ["a", "b"] if rank == 0 else None)  # the root is 0 where none is named
    dist().gather_object(rank, gathered, dst=0)
    objects_sent(rank)
    return [*scattered, *(gathered or ())]


def root_outside(rank: int) -> None:
    group = dist().new_group([0, 1])
    if group is not dist().GroupMember.NON_GROUP_MEMBER:
        dist().broadcast(tensor(), src=2, group=group)


def group_made_by_one(rank: int) -> None:
    if rank == 0:
        dist().new_group([0, 1])
    dist().all_reduce(tensor(), group=dist().new_group([0, 1]))


def group_made_in_another_order(rank: int) -> None:
    pairs = [dist().new_group(ranks) for ranks in (([0, 1], [0, 1, 2]) if rank == 0 else ([0, 1, 2], [0, 1]))]
    for group in pairs:
        if group is not dist().GroupMember.NON_GROUP_MEMBER:
            dist().all_reduce(tensor(), group=group)


def groups_made_by_their_members_alone(rank: int) -> None:
    ranks = [0, 1] if rank < 2 else [2, 3]
    for _ in range(rank // 2 + 1):
        dist().all_reduce(tensor(), group=dist().new_group(ranks, use_local_synchronization=True))


def uneven(rank: int) -> None:
    dist().all_gather([tensor(1), tensor(2)], tensor(1 + rank))


def unevenly_wanted(rank: int) -> None:
    dist().all_gather([tensor(1), tensor(2 + rank)], tensor(1 + rank))


def ill_split(rank: int) -> None:
    dist().all_to_all_single(tensor(4), tensor(4), [2, 2], [2, 1])


def checked(job: Job, world: int = 2, backend: str = "nccl") -> schedule.Schedule:
    return schedule.check(world, lambda _: None, job, backend=backend)


@needs_torch
@pytest.mark.parametrize("job", [completing, crossed_but_asynchronous, ring, batched, objects])
def test_a_sound_job_passes_in_both_harnesses(job: Job) -> None:
    assert gloo.run(2, job, deadline_s=20).status == "passed"
    assert checked(job).findings == []


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
        (by_another_name, "missing", "in by_another_name"),
        (mixed_order, "mismatch", "3 x float32, SUM and 2 x float32, SUM"),
        (coalesced_elsewhere, "deadlock", "waits in all_reduce on group 0, 1"),
        (coalesced_and_waited_for, "missing", "rank 1 ended without it"),
        (batched_by_one, "missing", "rank 1 ended without it"),
        (objects_of_other_roots, "mismatch", "root 1"),
        (objects_of_another_length, "mismatch", "2 objects"),
        (root_outside, "raised", "global rank 2 is not part of the group"),
        (group_made_by_one, "deadlock", "in group_made_by_one"),
        (unevenly_wanted, "mismatch", "rank 1 sends 2 elements to rank 1, which wants 3"),
        (ill_split, "raised", "a tensor of 4 rows is not to be split into [2, 1]"),
    ],
)
def test_the_schedule_tells_what_would_not_complete(
    job: Job, kind: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = ModuleType("made_up_upstream")
    upstream.reduce_it = dist().all_reduce  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, upstream.__name__, upstream)
    first = checked(job).findings[0]
    assert first.kind == kind
    assert named in first.text()
    assert "test_prove_ranks.py:" in first.text()


@needs_torch
@pytest.mark.parametrize("job", [coalesced, exchanged_in_a_batch, objects_in_many_ways, uneven])
def test_what_nccl_takes_passes(job: Job) -> None:
    assert checked(job).findings == []


@needs_torch
def test_groups_that_their_members_alone_make_pass() -> None:
    assert checked(groups_made_by_their_members_alone, 4).findings == []


@needs_torch
def test_groups_made_in_another_order_have_other_members() -> None:
    first = checked(group_made_in_another_order, 3).findings[0]
    assert first.kind == "mismatch"
    assert "a group of 0, 1, and of 0-2" in first.text()


@needs_torch
@pytest.mark.parametrize(("backend", "kinds"), [("nccl", []), ("gloo", ["missing"] * 2)])
def test_tags_count_where_the_backend_knows_them(backend: str, kinds: list[str]) -> None:
    def job(rank: int) -> None:
        if rank == 0:
            dist().isend(tensor(), 1, tag=1)
        else:
            dist().irecv(tensor(), 0, tag=2)

    assert [finding.kind for finding in checked(job, backend=backend).findings] == kinds


@needs_torch
def test_what_no_schedule_tells_is_no_finding() -> None:
    def receiving(rank: int) -> None:
        dist().recv(tensor())

    def chaining(rank: int) -> None:
        dist().all_reduce(tensor(), async_op=True).get_future()

    for job in receiving, chaining:
        with pytest.raises(RuntimeError, match="Unjudged"):
            checked(job)


@needs_torch
def test_what_was_issued_in_the_preparation_is_not_waited_for_in_the_recording() -> None:
    works: list[Any] = []

    def prepare(rank: int) -> None:
        works[:] = [dist().all_reduce(tensor(), async_op=True)]

    def job(rank: int) -> None:
        works[0].wait()
        dist().barrier()

    found = schedule.check(2, prepare, job)
    assert [[type(step).__name__ for step in steps] for steps in found.programs.values()] == [["Operation"]] * 2
    assert found.findings == []


@needs_torch
def test_outputs_hold_no_memory_that_nobody_has_written() -> None:
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
def test_a_hang_is_told_with_the_stacks_of_those_still_there() -> None:
    world = gloo.run(2, missing, deadline_s=5)
    assert world.status == "hung"
    assert [rank.state for rank in world.ranks] == ["alive", "done"]
    assert "all_reduce at" in world.text()
    assert "in missing; rank 1 done" in world.text()


@needs_torch
@pytest.mark.parametrize(("job", "named"), [(raising, "rank 1 raised ValueError"), (dying, "exit code 7")])
def test_a_crash_is_no_hang_and_does_not_cost_the_deadline(job: Job, named: str) -> None:
    world = gloo.run(2, job, deadline_s=60)
    assert world.status == "crashed"
    assert named in world.text()
    assert world.seconds < 30


def test_the_deadline_of_a_crash_stands_when_another_rank_is_ready_only_then() -> None:
    here, there = zip(*(multiprocessing.Pipe() for _ in range(2)))
    there[0].send("ready")
    there[0].send(gloo.Rank("raised", None, "ValueError: at once", ()))
    late = threading.Timer(0.3, there[1].send, ["ready"])
    late.start()
    begun = time.monotonic()
    answers = gloo._answers([], here, 60)
    late.join()
    assert answers.keys() == {0}
    assert time.monotonic() - begun < 30


def test_ranks_that_do_not_meet_are_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gloo, "_START_S", 0.3)
    here, there = zip(*(multiprocessing.Pipe() for _ in range(2)))
    there[0].send("ready")
    with pytest.raises(TimeoutError, match="only 1 of 2 ranks met"):
        gloo._answers([], here, 60)


@needs_torch
@pytest.mark.parametrize(("world", "status"), [(2, "hung"), (24, "passed")])
def test_many_ranks_have_longer_for_they_share_the_processors(world: int, status: str) -> None:
    assert gloo.run(world, lambda _: time.sleep(3), deadline_s=2).status == status


def working(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


@needs_torch
def test_a_rank_that_is_at_work_has_longer_and_one_that_waits_has_not() -> None:
    assert gloo.run(2, lambda _: working(5), deadline_s=2).status == "passed"
    assert gloo.run(2, lambda rank: working(5) if rank == 0 else time.sleep(5), deadline_s=2).status == "passed"
    assert gloo.run(2, lambda _: time.sleep(5), deadline_s=2).status == "hung"


@needs_torch
def test_work_without_an_end_has_hung() -> None:
    world = gloo.run(2, lambda rank: working(600 * rank), deadline_s=1)
    assert [rank.state for rank in world.ranks] == ["done", "alive"]
    assert "in working; rank 0 done" in world.text()
    assert world.seconds < 60


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="no schedstat here: the clock alone counts")
@pytest.mark.parametrize(("job", "is_at_work"), [(working, True), (time.sleep, False)])
def test_who_wants_a_processor_is_at_work(job: Callable[[float], None], is_at_work: bool) -> None:
    process = multiprocessing.get_context("fork").Process(target=job, args=(600.0,), daemon=True)
    process.start()
    try:
        assert process.pid is not None
        time.sleep(0.5)  # it starts, and that is work
        assert processor_time.at_work([process.pid]) is is_at_work
    finally:
        process.kill()
        process.join()


def test_a_process_that_is_gone_is_not_at_work() -> None:
    assert not processor_time.at_work([2**22 + 1], 0.01)


@needs_torch
def test_real_ranks_move_values() -> None:
    assert [rank.value for rank in gloo.run(4, completing).ranks] == [4.0] * 4


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


@needs_torch
def test_what_an_earlier_rank_broadcasts_reaches_the_later_ones() -> None:
    assert checked(objects).values == {0: ["said"] * 3, 1: ["said"] * 3}


@needs_torch
def test_groups_say_the_backend_they_pose_as() -> None:
    def backends(rank: int) -> tuple[str, str]:
        return dist().get_backend(), dist().get_backend(dist().new_group([0, 1], backend="gloo"))

    assert checked(backends, backend="cpu:gloo,cuda:nccl").values[0] == ("cpu:gloo,cuda:nccl", "gloo")


@needs_torch
def test_32_ranks_of_schedules_take_less_than_half_a_second_of_computing() -> None:
    assert min(_computing_s(lambda: checked(completing, 32)) for _ in range(3)) < 0.5


@needs_torch
def test_every_rank_is_recorded_where_several_processes_share_the_work() -> None:
    found = checked(missing, 70)
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
    ours = [places.place(gloo.__file__.replace("ranks.py", "shims.py"), 34, "averaging")]
    torch = ["torch/distributed/distributed_c10d.py:1 in all_reduce", "torch/distributed/c10d_logger.py:2 in wrapper"]
    stack = [*torch, *ours, "megatron/core/multi.py:3 in reduce_loss", "verl/engine.py:4 in step"]
    assert stacks.place(stack) == "all_reduce at megatron/core/multi.py:3 in reduce_loss"
