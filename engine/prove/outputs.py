"""What recorded operations leave in their outputs: never memory that nobody has written.

Nothing is moved between ranks, with one exception: what an earlier rank has broadcast reaches the later ones. After any
other operation a rank finds its own values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import calls

if TYPE_CHECKING:
    from collections.abc import Sequence


class Outputs:
    """Fills outputs, and keeps what was broadcast, by group and place in its order."""

    def __init__(self) -> None:
        self._broadcast: dict[tuple[str, int], Any] = {}

    def fill(self, rank: int, kind: str, given: dict[str, Any], key: tuple[str, int], ranks: Sequence[int]) -> None:
        """Leave in the outputs what is to be found there: never memory that nobody has written."""
        import torch

        with torch.no_grad():
            if kind == "broadcast":
                self._broadcasts(given["tensor"], key, calls.peer(given, "src", ranks), rank)
            elif kind == "broadcast_object_list":
                if calls.peer(given, "src", ranks) in (rank, None):
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
            elif kind == "all_to_all" and "output" in given:
                _fill(given["output"], given["input"])

    def _broadcasts(self, tensor: Any, key: tuple[str, int], source: int | None, rank: int) -> None:
        if source == rank:
            self._broadcast[key] = tensor.detach().clone()
            return
        kept = self._broadcast.get(key)
        if kept is not None and kept.numel() == tensor.numel() and kept.dtype == tensor.dtype:
            tensor.copy_(kept.view_as(tensor))
        else:
            tensor.zero_()


def _fill(out: Any, source: Any) -> None:
    """Fill ``out`` with the values of ``source``, over and over, or with its first ones."""
    if not out.numel():
        return
    if not source.numel():
        out.zero_()
        return
    times = -(-out.numel() // source.numel())
    out.copy_(source.reshape(-1).repeat(times)[: out.numel()].view_as(out))
