"""What torch's backends demand of the arguments of an operation, before anything is sent.

After torch's process groups for gloo and NCCL (``ProcessGroupGloo.cpp``, ``ProcessGroupNCCL.cpp``), which the stand-in
backend of a recording replaces. What ``torch.distributed`` itself demands, its own functions check.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

_LISTS = {
    "all_gather": ("tensor_list", "tensor"),
    "gather": ("gather_list", "tensor"),
    "scatter": ("scatter_list", "tensor"),
    "reduce_scatter": ("input_list", "output"),
}
"""The argument with a tensor for each member, and the one that each of them is like."""
_CONCATENATED = {
    "all_gather_into_tensor": ("output_tensor", "input_tensor"),
    "reduce_scatter_tensor": ("input", "output"),
}
"""The argument that has the parts of all members in one tensor, and the one that is a part."""
_UNEVEN_ON_NCCL = frozenset({"all_gather", "reduce_scatter"})
_BITWISE = ("BAND", "BOR", "BXOR")


def check_tensors(kind: str, given: dict[str, Any], place: int, members: int, *, is_gloo: bool) -> None:
    """Raise RuntimeError, as the backend does, where the tensors of an operation do not fit each other.

    ``place`` is that of this rank among the ``members`` of the group.
    """
    if kind in _LISTS:
        each, like = (given[name] for name in _LISTS[kind])
        if each and len(each) != members:
            raise RuntimeError(f"{len(each)} tensors for {members} ranks in {kind}")
        if is_gloo or kind not in _UNEVEN_ON_NCCL:
            own = [each[place]] if kind == "reduce_scatter" else each or ()
            _check_shapes(kind, own, like)
    elif kind in _CONCATENATED:
        whole, part = (given[name] for name in _CONCATENATED[kind])
        _check_concatenated(kind, whole, part, members, by_shape=is_gloo)
    elif kind == "all_to_all" and "input" not in given and is_gloo:
        _check_shapes(kind, [*given["input_tensor_list"], *given["output_tensor_list"]], given["input_tensor_list"][0])
    if kind in ("send", "recv", "all_to_all") and (is_gloo or kind == "all_to_all"):
        tensors = [given[name] for name in ("tensor", "input", "output") if name in given]
        if not all(tensor.is_contiguous() for tensor in tensors):
            raise RuntimeError(f"a tensor of {kind} is not contiguous")
    if "op" in given:
        _check_reduction(given, is_gloo=is_gloo)


def _check_shapes(kind: str, tensors: Iterable[Any], like: Any) -> None:
    for place, tensor in enumerate(tensors):
        if tensor.shape != like.shape:
            raise RuntimeError(f"{kind}: tensor {place} has shape {list(tensor.shape)}, not {list(like.shape)}")


def _check_concatenated(kind: str, whole: Any, part: Any, members: int, *, by_shape: bool) -> None:
    if whole.dtype != part.dtype:
        raise RuntimeError(f"{kind}: dtypes {whole.dtype} and {part.dtype}")
    fits = whole.numel() == members * part.numel()
    if by_shape and part.dim():  # gloo cuts the whole along its first dimension
        fits = list(whole.shape) == [members * part.shape[0], *part.shape[1:]]
    if not fits:
        raise RuntimeError(f"{kind}: {list(whole.shape)} is not {members} times {list(part.shape)}")


def _check_reduction(given: dict[str, Any], *, is_gloo: bool) -> None:
    name = str(given["op"]).rpartition(".")[2]
    if name not in _BITWISE:
        return
    payload = next(given[key] for key in ("tensor", "tensors", "input", "input_list") if key in given)
    tensor = payload[0] if isinstance(payload, (list, tuple)) else payload
    if not is_gloo or tensor.is_floating_point() or tensor.is_complex():
        raise RuntimeError(f"ReduceOp.{name} of {tensor.dtype}")


def check_lists(kind: str, given: dict[str, Any], members: int, *, is_root: bool) -> None:
    """Raise what torch does where the lists of an operation on objects do not fit the group.

    ``is_root`` says whether this rank sends to all, or receives from all.
    """
    if kind == "gather_object" and is_root != (given["object_gather_list"] is not None):
        raise ValueError("object_gather_list must be given on the destination rank, and on no other")
    room = {"all_gather_object": given.get("object_list"), "gather_object": given.get("object_gather_list")}.get(kind)
    if room is not None and len(room) < members:
        raise IndexError(f"{len(room)} places for the objects of {members} ranks in {kind}")
    if kind == "scatter_object_list":
        if not given["scatter_object_output_list"]:
            raise ValueError("scatter_object_output_list must have at least one place")
        objects = given["scatter_object_input_list"] or ()
        if is_root and len(objects) != members:
            raise RuntimeError(f"{len(objects)} objects for {members} ranks in {kind}")


def sent(value: Any) -> Any:
    """Return what another rank receives: a copy. Raises what ``pickle`` does."""
    return pickle.loads(pickle.dumps(value))  # noqa: S301 - its own
