"""The values that recorded operations leave in their outputs, which are never uninitialized.

Only broadcasts move values between ranks, from an earlier recorded rank to later ones. After any other operation a rank
has its own values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import calls

if TYPE_CHECKING:
    from collections.abc import Sequence


class Outputs:
    """Fills outputs, and keeps what was broadcast, by group and position in the group's order."""

    def __init__(self) -> None:
        self._broadcast: dict[tuple[str, int], Any] = {}

    def fill(self, rank: int, kind: str, given: dict[str, Any], key: tuple[str, int], ranks: Sequence[int]) -> None:
        """Fill the outputs of an operation of ``rank``. ``key`` is its group and position, ``ranks`` the group's."""
        import torch

        with torch.no_grad():
            if kind == "broadcast":
                self._broadcasts(given["tensor"], key, calls.peer(kind, given, "src", ranks), rank)
            elif kind == "broadcast_object_list":
                if calls.peer(kind, given, "src", ranks) == rank:
                    self._broadcast[key] = list(given["object_list"])
                elif len(self._broadcast.get(key, ())) == len(given["object_list"]):
                    given["object_list"][:] = self._broadcast[key]
            elif kind == "all_gather_object":
                given["object_list"][:] = [given["obj"]] * len(ranks)
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
                given["object_gather_list"][:] = [given["obj"]] * len(ranks)
            elif kind == "scatter_object_list" and given["scatter_object_input_list"]:
                given["scatter_object_output_list"][0] = given["scatter_object_input_list"][ranks.index(rank)]
            elif kind == "recv" and "tensor" in given:
                given["tensor"].zero_()

    def _broadcasts(self, tensor: Any, key: tuple[str, int], source: int | None, rank: int) -> None:
        if source == rank:
            self._broadcast[key] = tensor.detach().clone()
            return
        kept = self._broadcast.get(key)
        if kept is not None and kept.numel() == tensor.numel() and kept.dtype == tensor.dtype:
            tensor.copy_(kept.view_as(tensor))
        else:
            tensor.zero_()


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
