"""The calls of ``torch.distributed`` that are recorded, and what to read from their arguments. Only reads tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .operations import Unjudged

if TYPE_CHECKING:
    from collections.abc import Sequence

# name -> kind, the argument with the payload on which all members must agree, the argument that names the root
COLLECTIVES: dict[str, tuple[str, str, str]] = {
    "broadcast": ("broadcast", "tensor", "src"),
    "all_reduce": ("all_reduce", "tensor", ""),
    "all_reduce_coalesced": ("all_reduce_coalesced", "tensors", ""),
    "reduce": ("reduce", "tensor", "dst"),
    "all_gather": ("all_gather", "tensor", ""),
    "all_gather_single": ("all_gather_into_tensor", "input_tensor", ""),
    "all_gather_into_tensor": ("all_gather_into_tensor", "input_tensor", ""),
    "_all_gather_base": ("all_gather_into_tensor", "input_tensor", ""),
    "all_gather_coalesced": ("all_gather_coalesced", "input_tensor_list", ""),
    "gather": ("gather", "tensor", "dst"),
    "scatter": ("scatter", "tensor", "src"),
    "reduce_scatter": ("reduce_scatter", "output", ""),
    "reduce_scatter_single": ("reduce_scatter_tensor", "output", ""),
    "reduce_scatter_tensor": ("reduce_scatter_tensor", "output", ""),
    "_reduce_scatter_base": ("reduce_scatter_tensor", "output", ""),
    "all_to_all_single": ("all_to_all", "", ""),
    "all_to_all": ("all_to_all", "", ""),
    "barrier": ("barrier", "", ""),
    "monitored_barrier": ("monitored_barrier", "", ""),
    "all_gather_object": ("all_gather_object", "", ""),
    "gather_object": ("gather_object", "", "dst"),
    "broadcast_object_list": ("broadcast_object_list", "object_list", "src"),
    "scatter_object_list": ("scatter_object_list", "", "src"),
}
# name -> kind, the argument with the payload, the argument that names the peer
POINT_TO_POINT: dict[str, tuple[str, str, str]] = {
    "send": ("send", "tensor", "dst"),
    "recv": ("recv", "tensor", "src"),
    "isend": ("send", "tensor", "dst"),
    "irecv": ("recv", "tensor", "src"),
    "send_object_list": ("send", "object_list", "dst"),
    "recv_object_list": ("recv", "object_list", "src"),
}
OTHERS = ("split_group", "shrink_group", "init_process_group", "destroy_process_group", "abort_process_group")
"""Functions that a schedule does not show."""
ASYNC = frozenset({"isend", "irecv"})
_FIRST_IS_ROOT = frozenset({"gather", "scatter", "gather_object", "broadcast_object_list", "scatter_object_list"})


def peer(kind: str, given: dict[str, Any], name: str, ranks: Sequence[int]) -> int:
    """Return the global rank of a root or peer, which may be given as its rank in the group.

    Raises ValueError, as torch does, where it is missing or not a member; Unjudged for a receive from any source.
    """
    place: int | None = given.get(f"group_{name}")
    found: int | None = given.get(name) if place is None else ranks[place]
    if found is None and kind in _FIRST_IS_ROOT:
        found = 0
    if found is None and kind == "recv":
        raise Unjudged("a schedule does not show the sender of a receive from any source")
    if found is None:
        raise ValueError(f"{kind} must be given {name} or group_{name}")
    if found not in ranks:
        raise ValueError(f"global rank {found} is not part of the group of {kind}")
    return found


def first(payload: Any) -> Any:
    """Return the tensor, or the first one of several."""
    return payload[0] if isinstance(payload, (list, tuple)) else payload


def input_of(given: dict[str, Any]) -> Any:
    """Return what an all-to-all or an all-gather sends: a tensor or a list of tensors."""
    return next(given[name] for name in ("input", "tensor", "input_tensor_list") if name in given)


def elements(payload: Any) -> str:
    """Return the number of elements and their dtype, which must be equal on all members."""
    tensors = payload if isinstance(payload, (list, tuple)) else [payload]
    return f"{sum(tensor.numel() for tensor in tensors)} x {_dtype(tensors[0])}"


def shown(payload: Any) -> str:
    """Return shape and dtype, to be printed."""
    tensor = first(payload)
    return f"{list(tensor.shape)} {_dtype(tensor)}"


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def splits(given: dict[str, Any], members: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return how many elements go to each member, and come from each, in an all-to-all or all-gather into a list.

    Raises RuntimeError, as torch does, unless there is one split for each member and the splits add up to the tensor.
    """
    if "tensor_list" in given:  # sizes may differ: torch sends them one by one
        return (given["tensor"].numel(),) * members, _sizes(given["tensor_list"], members)
    if "input_tensor_list" in given:
        return _sizes(given["input_tensor_list"], members), _sizes(given["output_tensor_list"], members)
    sides = []
    for tensor, splits in (given["input"], given["input_split_sizes"]), (given["output"], given["output_split_sizes"]):
        rows = tensor.shape[0] if tensor.dim() else 0
        each = tensor.numel() // rows if rows else 0
        counts = [int(count) for count in splits] if splits is not None and len(splits) else [rows // members] * members
        if len(counts) != members or sum(counts) != rows or min(counts) < 0:
            raise RuntimeError(f"a tensor of {rows} rows cannot be split into {counts} for {members} ranks")
        sides.append(tuple(count * each for count in counts))
    return sides[0], sides[1]


def _sizes(tensors: Sequence[Any], members: int) -> tuple[int, ...]:
    if len(tensors) != members:
        raise RuntimeError(f"{len(tensors)} tensors for {members} ranks")
    return tuple(tensor.numel() for tensor in tensors)
