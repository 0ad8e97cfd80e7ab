"""Made-up jobs with arguments that torch or a backend refuses, for ``support.programs``. They need torch."""

from collections.abc import Callable, Mapping
from typing import Any

from support.jobs import Job, dist, tensor


def _lists(short: bool = False, size: int = 1, dtype: str = "float32") -> list[Any]:
    return [tensor(size, dtype) for _ in range(1 if short else 2)]


def _on(root: bool, value: Any) -> Any:
    return value if root else None


def _rows(rows: int, columns: int) -> Any:
    return tensor(rows * columns).reshape(rows, columns)


Call = Callable[[int], object]
# What each rank of two calls. All crash on real ranks.
CRASHING: Mapping[str, Call] = {
    "gathered_into_too_little": lambda _: dist().all_gather_into_tensor(tensor(3), tensor(2)),
    "gathered_into_too_much": lambda _: dist().all_gather_into_tensor(tensor(5), tensor(2)),
    "gathered_into_another_dtype": lambda _: dist().all_gather_into_tensor(tensor(4, "int32"), tensor(2)),
    "gathered_list_too_short": lambda _: dist().all_gather(_lists(short=True), tensor()),
    "gathered_list_of_another_dtype": lambda _: dist().all_gather(_lists(dtype="int32"), tensor()),
    "gathered_list_of_two_dtypes": lambda _: dist().all_gather([tensor(), tensor(1, "int32")], tensor()),
    "gather_without_a_list": lambda _: dist().gather(tensor(), None, dst=0),
    "gather_with_a_list_on_each": lambda _: dist().gather(tensor(), _lists(), dst=0),
    "gather_list_too_short": lambda rank: dist().gather(tensor(), _on(rank == 0, _lists(short=True)), dst=0),
    "gather_into_another_size": lambda rank: dist().gather(tensor(), _on(rank == 0, _lists(size=2)), dst=0),
    "gather_into_another_dtype": lambda rank: dist().gather(tensor(), _on(rank == 0, _lists(dtype="int32")), dst=0),
    "scatter_without_a_list": lambda _: dist().scatter(tensor(), None, src=0),
    "scatter_with_a_list_on_each": lambda _: dist().scatter(tensor(), _lists(), src=0),
    "scatter_list_too_short": lambda rank: dist().scatter(tensor(), _on(rank == 0, _lists(short=True)), src=0),
    "scatter_of_another_size": lambda rank: dist().scatter(tensor(), _on(rank == 0, _lists(size=2)), src=0),
    "scatter_of_another_dtype": lambda rank: dist().scatter(tensor(), _on(rank == 0, _lists(dtype="int32")), src=0),
    "reduced_list_too_short": lambda _: dist().reduce_scatter(tensor(), _lists(short=True)),
    "reduced_list_of_another_dtype": lambda _: dist().reduce_scatter(tensor(), _lists(dtype="int32")),
    "reduced_parts_too_large": lambda _: dist().reduce_scatter_tensor(tensor(2), tensor(5)),
    "reduced_parts_of_another_dtype": lambda _: dist().reduce_scatter_tensor(tensor(2, "int32"), tensor(4)),
    "exchanged_in_another_dtype": lambda _: dist().all_to_all_single(tensor(2, "int32"), tensor(2)),
    "exchanged_by_wrong_splits": lambda _: dist().all_to_all_single(tensor(2), tensor(2), [1, 1], [2, 1]),
    "exchanged_by_negative_splits": lambda _: dist().all_to_all_single(tensor(2), tensor(2), [1, 1], [3, -1]),
    "exchanged_without_order_in_memory": lambda _: dist().all_to_all_single(_rows(4, 2).t(), _rows(4, 2).t()),
    "exchanged_list_too_short": lambda _: dist().all_to_all([tensor()], _lists()),
    "exchanged_list_of_two_dtypes": lambda _: dist().all_to_all([tensor(), tensor(1, "int32")], _lists()),
    "reduced_a_list": lambda _: dist().all_reduce([tensor()]),
    "reduced_by_a_word": lambda _: dist().all_reduce(tensor(), op="sum"),
    "reduced_bits_of_floats": lambda _: dist().all_reduce(tensor(), op=dist().ReduceOp.BOR),
    "reduced_two_dtypes_at_once": lambda _: dist().all_reduce_coalesced([tensor(), tensor(1, "int32")]),
    "reduced_nothing": lambda _: dist().all_reduce_coalesced([]),
    "broadcast_from_outside": lambda _: dist().broadcast(tensor(), src=5),
    "broadcast_from_two_roots": lambda _: dist().broadcast(tensor(), src=0, group_src=0),
    "sent_to_itself": lambda rank: dist().send(tensor(), rank),
    "batch_of_something_else": lambda rank: dist().batch_isend_irecv(
        [dist().P2POp(dist().all_reduce, tensor(), 1 - rank)]
    ),
    "objects_without_room": lambda _: dist().all_gather_object([None], 1),
    "object_that_does_not_pickle": lambda _: dist().broadcast_object_list([lambda: 1], src=0),
    "objects_without_a_list": lambda _: dist().gather_object(1, None, dst=0),
    "objects_with_a_list_on_each": lambda _: dist().gather_object(1, [None, None], dst=0),
    "objects_too_few": lambda rank: dist().scatter_object_list([None], _on(rank == 0, [1]), src=0),
    "objects_into_nothing": lambda rank: dist().scatter_object_list([], _on(rank == 0, [1, 2]), src=0),
}
# NCCL takes these, and gloo does not.
CRASHING_ON_GLOO: Mapping[str, Call] = {
    "gathered_unevenly": lambda rank: dist().all_gather([tensor(1), tensor(2)], tensor(1 + rank)),
    "gathered_into_rows": lambda _: dist().all_gather_into_tensor(_rows(2, 4), tensor(4)),
    "reduced_from_rows": lambda _: dist().reduce_scatter_tensor(tensor(4), _rows(2, 4)),
    "exchanged_lists_unevenly": lambda rank: dist().all_to_all([tensor(1), tensor(2)], _lists(size=1 + rank)),
    "sent_without_order_in_memory": lambda rank: dist().recv(tensor(6), 0) if rank else dist().send(_rows(2, 3).t(), 1),
}


def jobs(calls: Mapping[str, Call]) -> Mapping[str, Job]:

    def named(name: str, call: Call) -> Job:
        def job(rank: int) -> None:
            call(rank)

        job.__name__ = name
        return job

    return {name: named(name, call) for name, call in calls.items()}
