"""Small made-up jobs that hang, pass or crash on real gloo ranks, to compare what the schedule checker says of them."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from support.jobs import Job, dist, tensor
from support.wrong_arguments import CRASHING, CRASHING_ON_GLOO, Call, jobs


class Program(NamedTuple):
    """A job, how it ends on real ranks, and what the checker may say of it."""

    job: Job
    real: str
    checked: str
    world: int = 2
    declared: Mapping[str, Any] = {}
    on_nccl: str = ""
    """What the checker says where the groups pose as NCCL's; empty: the same."""


PROGRAMS: dict[str, Program] = {}


for _name, _job in jobs(CRASHING).items():
    PROGRAMS[_name] = Program(_job, "crashed", "crashed")
for _name, _job in jobs(CRASHING_ON_GLOO).items():
    PROGRAMS[_name] = Program(_job, "crashed", "crashed", on_nccl="passed")


# What rank 0 calls alone.
ALONE: Mapping[str, tuple[str, str, Callable[[], object]]] = {
    "own_method": ("hung", "unknown", lambda: dist().group.WORLD.allreduce([tensor()]).wait()),
    "own_barrier": ("hung", "unknown", lambda: dist().group.WORLD.barrier().wait()),
    "value_in_the_store": ("hung", "unknown", lambda: dist().distributed_c10d._get_default_store().get("never set")),
    "kept_in_a_dict": ("hung", "hung", lambda: _kept()["plain"](tensor())),
    "kept_in_a_partial": ("hung", "hung", lambda: _kept()["partial"](tensor())),
    "kept_in_a_class": ("hung", "hung", lambda: _kept()["class_"].reduce(tensor())),
    "kept_as_a_default": ("hung", "hung", lambda: _kept()["default"](tensor())),
    "a_member_makes_no_group": ("hung", "unknown", lambda: dist().new_group([0, 1])),
    "never_waited_for": ("passed", "unknown", lambda: dist().all_reduce(tensor(), async_op=True)),
    "root_alone": ("hung", "unknown", lambda: dist().broadcast(tensor(), src=0)),
    "receiver_alone": ("hung", "hung", lambda: dist().broadcast(tensor(), src=1)),
    "sender_to_the_root_alone": ("hung", "unknown", lambda: dist().gather(tensor(), None, dst=1)),
    "waited_for_alone": ("hung", "hung", lambda: dist().all_reduce(tensor(), async_op=True).wait()),
    "barrier_on_one_rank": ("hung", "hung", lambda: dist().barrier()),
    "receive_without_a_send": ("hung", "hung", lambda: dist().recv(tensor(), 1)),
    "object_on_one_rank": ("hung", "unknown", lambda: dist().all_gather_object([None, None], "alone")),
    "sleeps_for_ever": ("hung", "unknown", lambda: threading.Event().wait()),
}
# What each rank calls.
EACH: Mapping[str, tuple[str, str, Call]] = {
    "own_method_on_all": ("passed", "unknown", lambda _: dist().group.WORLD.allreduce([tensor()]).wait()),
    "other_dtypes": ("passed", "mismatch", lambda rank: dist().all_reduce(tensor(4, "int32" if rank else "float32"))),
    "each_its_own_root": ("hung", "mismatch", lambda rank: dist().broadcast(tensor(), src=rank)),
    "from_any_source": ("passed", "unknown", lambda rank: dist().recv(tensor()) if rank else dist().send(tensor(), 1)),
}
# What reads a sum over the ranks, where no function of torch reads it. If it is true, rank 0 calls a barrier alone.
DECIDING: Mapping[str, Callable[[Any], object]] = {
    "sum_decides": lambda total: total.item() == 2,
    "array_decides": lambda total: (total * 2).detach().numpy()[0] == 4,
    "comparison_decides": lambda total: torch().equal(total, tensor(dtype="int64") * 2),
    "split_at_a_value": lambda total: len(torch().tensor_split(tensor(4), total)[0]) == 2,
    "number_of_values_in_a_sparse_one": lambda total: (total - 2).to_sparse()._nnz() == 0,
}
# What such a sum makes fail. Rank 0 calls a barrier alone then.
RAISING: Mapping[str, tuple[type[Exception], Callable[[Any], object]]] = {
    "row_that_does_not_exist": (IndexError, lambda it: torch().nn.functional.embedding(it, tensor(2).reshape(2, 1))),
    "class_that_does_not_exist": (
        IndexError,
        lambda it: torch().nn.functional.cross_entropy(tensor(2).reshape(1, 2), it),
    ),
    "probability_above_one": (RuntimeError, lambda it: (it * 1.0).bernoulli()),
    "divided_by_zero": (RuntimeError, lambda it: tensor(dtype="int64") // (it - 2)),
    "index_that_does_not_exist": (IndexError, lambda it: tensor(2)[it]),
}


def torch() -> Any:
    import torch

    return torch


def alone(rank: int, call: Callable[[], object]) -> None:
    if rank == 0:
        call()


def _sum() -> Any:
    total = tensor(dtype="int64")
    dist().all_reduce(total)
    return total


def _calls_alone(call: Callable[[], object]) -> Call:
    return lambda rank: alone(rank, call)


def _decides(reads: Callable[[Any], object]) -> Call:
    return lambda rank: alone(rank, dist().barrier) if reads(_sum()) else None


def _raises(error: type[Exception], call: Callable[[Any], object]) -> Call:
    def job(rank: int) -> None:
        try:
            call(_sum())
        except error:
            alone(rank, dist().barrier)

    return job


def _listed() -> Iterator[tuple[str, str, str, Call]]:
    yield from ((name, real, said, _calls_alone(call)) for name, (real, said, call) in ALONE.items())
    yield from ((name, *row) for name, row in EACH.items())
    yield from ((name, "hung", "unknown", _decides(reads)) for name, reads in DECIDING.items())
    yield from ((name, "hung", "unknown", _raises(*row)) for name, row in RAISING.items())


for _name, _real, _said, _call in _listed():
    PROGRAMS[_name] = Program(jobs({_name: _call})[_name], _real, _said)


def program(real: str, checked: str, world: int = 2, **declared: Any) -> Callable[[Job], Job]:
    def add(job: Job) -> Job:
        PROGRAMS[job.__name__] = Program(job, real, checked, world, declared)
        return job

    return add


def pair() -> list[Any]:
    """Return two groups of both ranks."""
    return [dist().new_group([0, 1]), dist().new_group([0, 1])]


# calls that torch.distributed's functions do not make


@program("hung", "unknown")
def backends_method(rank: int) -> None:
    import torch

    alone(rank, lambda: dist().group.WORLD._get_backend(torch.device("cpu")).allreduce([tensor()]).wait())


@program("hung", "unknown")
def functional(rank: int) -> None:
    import torch.distributed._functional_collectives as functional

    alone(rank, lambda: functional.wait_tensor(functional.all_reduce(tensor(), "sum", dist().group.WORLD)))


@program("passed", "unknown")
def functional_on_all(rank: int) -> None:
    import torch.distributed._functional_collectives as functional

    functional.wait_tensor(functional.all_reduce(tensor(), "sum", dist().group.WORLD))


# names that were bound before


def _kept() -> Mapping[str, Any]:
    return _KEPT or _KEPT.update(
        plain=dist().all_reduce,
        partial=functools.partial(dist().all_reduce, op=dist().ReduceOp.MAX),
        class_=type("Holder", (), {"reduce": staticmethod(dist().all_reduce)}),
        default=lambda value, by=dist().all_reduce: by(value),  # noqa: B008
        send=dist().isend,
    ) or _KEPT  # fmt: skip


_KEPT: dict[str, Any] = {}


@program("passed", "passed")
def kept_by_all(rank: int) -> None:
    _kept()["partial"](tensor())
    _kept()["class_"].reduce(tensor())


# groups


@program("passed", "unknown", 3)
def one_makes_no_group(rank: int) -> None:
    if rank != 2:
        dist().all_reduce(tensor(), group=dist().new_group([0, 1]))


@program("hung", "mismatch")
def groups_in_another_order(rank: int) -> None:
    for ranks in ([0, 1], [0]) if rank == 0 else ([0], [0, 1]):
        dist().new_group(ranks)


@program("hung", "unknown", 4)
def groups_on_even_ranks(rank: int) -> None:
    if rank % 2 == 0:
        dist().new_group([0, 1, 2, 3])


@program("passed", "passed", 4)
def groups_of_rows_and_columns(rank: int) -> None:
    groups = [dist().new_group(ranks) for ranks in ([0, 1], [2, 3], [0, 2], [1, 3])]
    for group in groups:
        if group is not dist().GroupMember.NON_GROUP_MEMBER:
            dist().all_reduce(tensor(), group=group)


@program("hung", "hung")
def two_groups_crossed(rank: int) -> None:
    for group in pair() if rank == 0 else reversed(pair()):
        dist().all_reduce(tensor(), group=group)


@program("hung", "hung", 3)
def a_cycle_of_three_groups(rank: int) -> None:
    ranks = [[0, 1], [1, 2], [0, 2]]
    groups = [dist().new_group(one) for one in ranks]
    order = {0: (0, 2), 1: (1, 0), 2: (2, 1)}[rank]
    for place in order:
        dist().all_reduce(tensor(), group=groups[place])


@program("hung", "hung")
def mesh_on_one_rank(rank: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2,))
    alone(rank, lambda: dist().all_reduce(tensor(), group=mesh.get_group()))


@program("passed", "passed")
def subgroups_of_one(rank: int) -> None:
    group, _ = dist().new_subgroups(1)
    dist().all_reduce(tensor(), group=group)


@program("passed", "unknown")
def groups_destroyed(rank: int) -> None:
    group = dist().new_group([0, 1])
    dist().barrier()  # the other rank may still be connecting
    dist().destroy_process_group(group)


# values of other ranks


@program("hung", "hung", sum_declared=2.0)
def sum_declared(rank: int) -> None:
    total = tensor()
    dist().all_reduce(total)
    if total.item() == 2:
        alone(rank, lambda: dist().all_reduce(tensor()))


@program("hung", "unknown")
def later_rank_decides(rank: int) -> None:
    value = tensor() * rank
    dist().broadcast(value, src=1)
    if value.item() == 1:
        alone(rank, lambda: dist().all_reduce(tensor()))


@program("passed", "passed")
def earlier_rank_decides(rank: int) -> None:
    value = tensor() * (3 - 3 * rank)
    dist().broadcast(value, src=0)
    for _ in range(int(value)):
        dist().all_reduce(tensor())


@program("hung", "unknown")
def tainted_broadcast_decides(rank: int) -> None:
    value = tensor()
    dist().all_reduce(value)
    dist().broadcast(value, src=0)
    if value == 2:
        alone(rank, lambda: dist().all_reduce(tensor()))


@program("hung", "unknown")
def list_of_values_decides(rank: int) -> None:
    found = [tensor(), tensor()]
    dist().all_gather(found, tensor() * rank)
    if [one.tolist() for one in found] == [[0.0], [1.0]]:
        alone(rank, dist().barrier)


@program("hung", "unknown")
def number_of_nonzeros_decides(rank: int) -> None:
    value = tensor(2) * rank
    dist().all_reduce(value)
    if len(value.nonzero()):
        alone(rank, dist().barrier)


@program("hung", "unknown")
def copied_value_decides(rank: int) -> None:
    value, copy = tensor(), tensor(2)
    dist().all_reduce(value)
    copy[1:] = value
    if copy.sum() == 3:
        alone(rank, dist().barrier)


@program("hung", "unknown")
def received_value_decides(rank: int) -> None:
    value = tensor() * rank
    dist().recv(value, 1) if rank == 0 else dist().send(value, 0)
    if value:
        alone(rank, dist().barrier)


@program("hung", "unknown")
def object_decides(rank: int) -> None:
    found: list[Any] = [None, None]
    dist().all_gather_object(found, rank)
    if found == [0, 1]:
        alone(rank, dist().barrier)


@program("passed", "passed", objects_declared=[0, 1])
def objects_declared(rank: int) -> None:
    found: list[Any] = [None, None]
    dist().all_gather_object(found, rank)
    for _ in range(found[1]):
        dist().barrier()


@program("passed", "unknown")
def sizes_first_then_padded(rank: int) -> None:
    import torch

    mine = tensor(3 + rank)
    sizes = [tensor(dtype="int64"), tensor(dtype="int64")]
    dist().all_gather(sizes, torch.tensor([mine.numel()]))
    most = max(int(size) for size in sizes)
    dist().all_gather([tensor(most), tensor(most)], torch.nn.functional.pad(mine, (0, most - mine.numel())))


@program("passed", "passed", steps_agreed_on=3)
def steps_agreed_on(rank: int) -> None:
    steps = tensor(dtype="int64") * (3 + rank)
    dist().all_reduce(steps, op=dist().ReduceOp.MIN)
    for _ in range(int(steps)):
        dist().all_reduce(tensor())


@program("passed", "unknown")
def size_by_a_later_rank(rank: int) -> None:
    size = tensor(dtype="int64") * (5 * rank)
    dist().broadcast(size, src=1)
    dist().all_reduce(tensor(int(size)))


@program("passed", "passed")
def values_passed_on(rank: int) -> None:
    value = tensor(4)
    dist().all_reduce(value)
    dist().all_reduce((value * 2 + 1).reshape(2, 2))


# what does not match


@program("passed", "mismatch")
def sum_and_max(rank: int) -> None:
    dist().all_reduce(tensor(), op=dist().ReduceOp.MAX if rank else dist().ReduceOp.SUM)


@program("passed", "mismatch")
def as_many_bytes(rank: int) -> None:
    dist().broadcast(tensor(16, "int32") if rank else tensor(8, "int64"), src=0)


@program("hung", "hung")
def one_more_after_a_mismatch(rank: int) -> None:
    dist().all_reduce(tensor(4, "int32" if rank else "float32"))
    alone(rank, lambda: dist().all_reduce(tensor()))


@program("hung", "mismatch")
def unseen_after_a_mismatch(rank: int) -> None:
    dist().all_reduce(tensor(4, "int32" if rank else "float32"))
    alone(rank, lambda: dist().group.WORLD.barrier().wait())


@program("hung", "hung")
def never_raised(rank: int) -> None:
    if rank == 0:
        dist().all_reduce(tensor())
        raise ValueError("not before rank 1 has joined")


# what is buffered, or not waited for


@program("hung", "unknown")
def both_send_first(rank: int) -> None:
    dist().send(tensor(), 1 - rank)
    dist().recv(tensor(), 1 - rank)


@program("hung", "hung")
def both_receive_first(rank: int) -> None:
    dist().recv(tensor(), 1 - rank)
    dist().send(tensor(), 1 - rank)


@program("passed", "passed")
def crossed_but_asynchronous(rank: int) -> None:
    groups = pair() if rank == 0 else pair()[::-1]
    for work in [dist().all_reduce(tensor(), group=group, async_op=True) for group in groups]:
        work.wait()


@program("passed", "passed")
def sent_by_tag(rank: int) -> None:
    if rank:
        dist().recv(tensor(), 0, tag=2)
        dist().recv(tensor(), 0, tag=1)
    else:
        for work in [dist().isend(tensor(), 1, tag=tag) for tag in (1, 2)]:
            work.wait()


@program("passed", "unknown")
def future_of_a_work(rank: int) -> None:
    dist().all_reduce(tensor(), async_op=True).get_future().then(lambda future: future.value()).wait()


# threads and errors


@program("passed", "unknown")
def a_thread_for_each_group(rank: int) -> None:
    groups = pair() if rank == 0 else pair()[::-1]
    threads = [threading.Thread(target=dist().all_reduce, args=(tensor(),), kwargs={"group": one}) for one in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@program("hung", "unknown")
def a_thread_on_one_rank(rank: int) -> None:
    thread = threading.Thread(target=dist().all_reduce, args=(tensor(),))
    alone(rank, thread.start)
    alone(rank, thread.join)


@program("hung", "unknown")
def swallowed(rank: int) -> None:
    with contextlib.suppress(BaseException):
        alone(rank, lambda: dist().group.WORLD.barrier().wait())


@program("crashed", "crashed")
def exits(rank: int) -> None:
    alone(rank, lambda: exec("raise SystemExit"))
    dist().barrier()


@program("passed", "passed")
def exchanged_in_a_batch(rank: int) -> None:
    kinds = dist().isend, dist().irecv
    for work in dist().batch_isend_irecv([dist().P2POp(kind, tensor(), 1 - rank) for kind in kinds]):
        work.wait()


# what another rank receives is a copy


@program("hung", "hung")
def object_changed_after_it_was_sent(rank: int) -> None:
    box: list[Any] = [None] if rank else [{"steps": 0}]
    dist().broadcast_object_list(box, src=0)
    box[0]["steps"] += 1 - rank
    for _ in range(box[0]["steps"]):
        dist().barrier()


@program("hung", "hung")
def object_changed_by_the_receiver(rank: int) -> None:
    box: list[Any] = [None] if rank else [[]]
    dist().broadcast_object_list(box, src=0)
    box[0].append(rank)
    for _ in range(2 - rank):
        dist().barrier()


# what does not end


@program("hung", "hung")
def unequal_forwards_under_fsdp(rank: int) -> None:
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())  # FSDP warns of a module that returns a view
    model = fully_shard(layers, mesh=init_device_mesh("cpu", (2,)))
    for _ in range(1 + rank):
        model(tensor(4)).sum().backward()
