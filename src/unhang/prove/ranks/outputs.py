"""The values that recorded operations leave in their outputs, which are never uninitialized.

Only broadcasts move values between ranks, from an earlier recorded rank to later ones. After any other operation a rank
has its own values, which are not the real job's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import arguments, calls
from .taint import tensors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .taint import Taint

_FROM_SOURCE = frozenset({"broadcast", "broadcast_object_list", "scatter", "scatter_object_list"})
_WRITTEN = {
    "all_reduce": ("tensor",),
    "all_reduce_coalesced": ("tensors",),
    "reduce": ("tensor",),
    "broadcast": ("tensor",),
    "all_gather": ("tensor_list",),
    "all_gather_into_tensor": ("output_tensor",),
    "all_gather_coalesced": ("output_tensor_lists",),
    "gather": ("gather_list",),
    "scatter": ("tensor",),
    "reduce_scatter": ("output",),
    "reduce_scatter_tensor": ("output",),
    "all_to_all": ("output", "output_tensor_list"),
    "recv": ("tensor", "object_list"),
    "broadcast_object_list": ("object_list",),
    "all_gather_object": ("object_list",),
    "gather_object": ("object_gather_list",),
    "scatter_object_list": ("scatter_object_output_list",),
}
"""The arguments that an operation writes to."""


class Outputs:
    """Fills outputs, and keeps what was broadcast, by group and position in the group's order."""

    def __init__(self, taint: Taint) -> None:
        """``taint`` knows which tensors a rank has no true values of."""
        self._taint = taint
        self._broadcast: dict[tuple[str, int], Any] = {}

    def fill(self, rank: int, kind: str, given: dict[str, Any], key: tuple[str, int], ranks: Sequence[int]) -> Any:
        """Fill the outputs of an operation of ``rank``. ``key`` is its group and position, ``ranks`` the group's.

        Return a list of objects that would come from another rank; None where there is none.
        """
        import torch

        is_source = len(ranks) == 1 or (kind in _FROM_SOURCE and calls.peer(kind, given, "src", ranks) == rank)
        is_known = is_source
        mine = _sent_objects(kind, given, is_source=is_source)
        with torch.no_grad(), self._taint.paused():
            if kind == "broadcast":
                is_known = self._broadcasts(given["tensor"], key, is_source)
            elif kind == "broadcast_object_list":
                objects = given["object_list"]
                if is_source:
                    self._broadcast[key] = mine
                elif is_known := len(self._broadcast.get(key, ())) == len(objects):
                    objects[:] = arguments.sent(self._broadcast[key])
            elif kind == "all_gather_object":
                given["object_list"][: len(ranks)] = [mine] * len(ranks)
            elif kind == "all_gather":
                for out in given["tensor_list"]:
                    _fill(out, given["tensor"])
            elif kind == "all_gather_into_tensor":
                _fill(given["output_tensor"], given["input_tensor"])
            elif kind == "reduce_scatter_tensor":
                _fill(given["output"], given["input"])
            elif kind == "reduce_scatter":
                _fill(given["output"], given["input_list"][0])
            elif kind == "all_to_all":
                outputs, inputs = (_listed(given, name) for name in ("output", "input"))
                for out, source in zip(outputs, inputs):
                    _fill(out, source)
            elif kind == "scatter":
                sent = given["scatter_list"]
                _fill(given["tensor"], sent[ranks.index(rank)] if sent else given["tensor"].new_zeros(1))
            elif kind == "gather":
                for out in given["gather_list"] or ():
                    _fill(out, given["tensor"])
            elif kind == "gather_object" and given["object_gather_list"]:
                given["object_gather_list"][: len(ranks)] = [mine] * len(ranks)
            elif kind == "scatter_object_list" and is_source:
                given["scatter_object_output_list"][0] = mine[ranks.index(rank)]
            elif kind == "recv" and "tensor" in given:
                given["tensor"].zero_()
        written = [given[name] for name in _WRITTEN.get(kind, ()) if given.get(name) is not None]
        if not is_known or self._taint.has(tensors(given)):
            self._taint.mark(tensors(written))
        is_objects = "object" in kind or "object_list" in given
        return written[0] if is_objects and written and not is_known else None

    def _broadcasts(self, tensor: Any, key: tuple[str, int], is_source: bool) -> bool:
        """Keep or fill a tensor, and return whether it has its true values."""
        if is_source:
            self._broadcast[key] = tensor.detach().clone(), not self._taint.has([tensor])
            return True
        kept, is_known = self._broadcast.get(key, (None, False))
        if kept is not None and kept.numel() == tensor.numel() and kept.dtype == tensor.dtype:
            tensor.copy_(kept.view_as(tensor))
            return bool(is_known)
        tensor.zero_()
        return False


def _sent_objects(kind: str, given: dict[str, Any], *, is_source: bool) -> Any:
    """Return a copy of the objects that a rank sends; None if it sends none. Raises what ``pickle`` does."""
    name = {"broadcast_object_list": "object_list", "scatter_object_list": "scatter_object_input_list"}.get(kind, "")
    if name and not is_source:
        return None
    name = name or ("obj" if kind in ("all_gather_object", "gather_object") else "")
    return arguments.sent(given[name]) if name else None


def _listed(given: dict[str, Any], side: str) -> Sequence[Any]:
    return [given[side]] if side in given else given[f"{side}_tensor_list"]


def _fill(out: Any, source: Any) -> None:
    """Fill ``out`` with the first values of ``source``, repeated as needed; with zeros where it has none."""
    if not out.numel():
        return
    if not source.numel():
        out.zero_()
        return
    times = -(-out.numel() // source.numel())
    out.copy_(source.reshape(-1).repeat(times)[: out.numel()].view_as(out))
