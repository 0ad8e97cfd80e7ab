"""What is recorded of made-up jobs and found wrong with them, and where real ranks agree. They need torch."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from support import jobs
from support.jobs import Job, checked, dist, missing, needs_torch, raising, tensor
from unhang.prove.ranks import gloo


def crossed(rank: int, *, asynchronous: bool = False) -> None:
    one, other = dist().new_group([0, 1]), dist().new_group([0, 1])
    for group in (one, other) if rank == 0 else (other, one):
        work = dist().all_reduce(tensor(), group=group, async_op=asynchronous)
        if asynchronous:
            work.wait()


def sending_first(rank: int) -> None:
    dist().send(tensor(), (rank + 1) % 2)
    dist().recv(tensor(), (rank + 1) % 2)


def one_receives_more(rank: int) -> None:
    dist().recv(tensor(3), 0) if rank else dist().send(tensor(2), 1)


def splitting(*sizes: Sequence[int]) -> Job:
    """Return a job in which each rank sends these numbers of four rows to the ranks, and expects two from each."""
    return lambda rank: dist().all_to_all_single(tensor(4), tensor(4), [2, 2], [*sizes[rank]])


def mixed_order(rank: int) -> None:
    early = dist().all_reduce(tensor(2 if rank else 3), async_op=True)
    dist().all_reduce(tensor(3 if rank else 2))
    early.wait()


def exchanged_in_a_batch(rank: int) -> None:
    kinds = (dist().irecv, dist().isend) if rank else (dist().isend, dist().irecv)
    for work in dist().batch_isend_irecv([dist().P2POp(kind, tensor(), 1 - rank) for kind in kinds]):
        work.wait()


def batched_by_one(rank: int) -> None:
    if rank == 0:
        exchanged_in_a_batch(rank)


def scattered_objects(rank: int) -> None:
    dist().scatter_object_list([None], ["a", "b"] if rank == 0 else None)  # the root defaults to 0


def gathered_objects(rank: int) -> None:
    dist().gather_object(rank, [None, None] if rank == 0 else None, dst=0)


def sent_objects(rank: int) -> None:
    dist().recv_object_list([None], 0) if rank else dist().send_object_list([rank], 1)


def root_outside(rank: int) -> None:
    dist().broadcast(tensor(), src=2, group=dist().new_group([0, 1]))


def group_made_by_one(rank: int) -> None:
    if rank == 0:
        dist().new_group([0, 1])
    dist().all_reduce(tensor(), group=dist().new_group([0, 1]))


def uneven(rank: int, more: int = 0) -> None:
    dist().all_gather([tensor(1), tensor(2 + more * rank)], tensor(1 + rank))


def coalesced(rank: int, crossed_group: int = 0) -> None:
    groups = [dist().new_group([0, 1]) for _ in range(3)]
    with dist()._coalescing_manager(groups[crossed_group]):
        for group in groups[:2] if rank == 0 else groups[1::-1]:
            dist().all_reduce(tensor(), group=group)


def coalesced_and_waited_for(rank: int) -> None:
    with dist()._coalescing_manager(async_ops=True) as together:
        if rank == 0:
            dist().all_reduce(tensor())
    together.wait()


@needs_torch
@pytest.mark.parametrize("job", [jobs.completing, jobs.crossed_but_asynchronous, jobs.ring, jobs.batched])
def test_a_sound_job_passes_in_both_harnesses(job: Job) -> None:
    assert gloo.run(2, job, deadline_s=20).status == "passed"
    assert checked(job, backend="gloo").findings == []


@needs_torch
@pytest.mark.parametrize("job", [jobs.objects, scattered_objects, gathered_objects, sent_objects])
def test_objects_of_other_ranks_are_not_known(job: Job) -> None:
    assert gloo.run(2, job, deadline_s=20).status == "passed"
    assert checked(job).status == "unknown"


@needs_torch
def test_nccl_may_keep_sends_and_receives_in_order() -> None:
    found = checked(jobs.ring)
    assert (found.status, found.findings[0].kind) == ("unknown", "deadlock")
    assert "depends on the backend" in found.text()


@needs_torch
@pytest.mark.parametrize(
    ("job", "kind", "named"),
    [
        (missing, "missing", "rank 1 ended without it"),
        (crossed, "deadlock", "waits in all_reduce on group 0, 1"),
        (lambda rank: crossed(rank, asynchronous=True), "deadlock", "in crossed"),
        (lambda rank: dist().all_reduce(tensor(2, "int32" if rank else "float32")), "mismatch", "int32"),
        (raising, "raised", "ValueError: a fault of its own on rank 1"),
        (sending_first, "deadlock", "in sending_first"),
        (one_receives_more, "mismatch", "3 x float32"),
        (lambda rank: dist().broadcast(tensor(), src=rank), "mismatch", "root 1"),
        (splitting([3, 1], [2, 2]), "mismatch", "rank 0 sends 3 elements to rank 0"),
        (splitting([2, 1], [2, 1]), "raised", "a tensor of 4 rows cannot be split into [2, 1]"),
        (mixed_order, "mismatch", "3 x float32, SUM and 2 x float32, SUM"),
        (batched_by_one, "missing", "rank 1 ended without it"),
        (root_outside, "raised", "global rank 2 is not part of the group"),
        (group_made_by_one, "deadlock", "in group_made_by_one"),
        (lambda rank: uneven(rank, 1), "mismatch", "rank 1 sends 2 elements to rank 1, which expects 3"),
        (lambda rank: coalesced(rank, crossed_group=2), "deadlock", "waits in all_reduce on group 0, 1"),
        (coalesced_and_waited_for, "missing", "rank 1 ended without it"),
    ],
)
def test_a_job_that_does_not_complete_is_found(job: Job, kind: str, named: str) -> None:
    first = checked(job).findings[0]
    assert first.kind == kind
    assert named in first.text()
    assert "jobs.py:" in first.text() or "test_recorder.py:" in first.text()


@needs_torch
@pytest.mark.parametrize("job", [exchanged_in_a_batch, uneven, coalesced])
def test_what_nccl_accepts_passes(job: Job) -> None:
    assert checked(job).findings == []


@needs_torch
@pytest.mark.parametrize(("backend", "kinds"), [("nccl", []), ("gloo", ["deadlock"] * 2)])
def test_tags_count_where_the_backend_has_them(backend: str, kinds: list[str]) -> None:
    def job(rank: int) -> None:
        dist().recv(tensor(), 0, tag=2) if rank else dist().send(tensor(), 1, tag=1)

    assert [finding.kind for finding in checked(job, backend=backend).findings] == kinds
