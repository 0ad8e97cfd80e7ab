"""Helpers for proofs on Megatron: groups for a topology, and module globals reset for each rank."""

from __future__ import annotations

import inspect
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..cases import Topology


ORDER = "tp-cp-ep-dp-pp"
"""Megatron's default."""
_NOW: list[Any] = []
"""The arguments of the last call in this process."""


def initialize(topology: Topology, chunks: int | None = None, more: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Call the real ``initialize_model_parallel`` with the arguments that this release has.

    Groups that are there with the same arguments stay. ``chunks`` is the number of virtual pipeline stages on each
    rank. ``more`` has other arguments, such as the ``order`` of the ranks, from those that are next to each other on.
    """
    from megatron.core import parallel_state

    if parallel_state.model_parallel_is_initialized():  # for another setting, in the same process
        if [topology, chunks, more] == _NOW:
            return
        parallel_state.destroy_model_parallel()
    _NOW[:] = topology, chunks, more
    wanted = {
        "tensor_model_parallel_size": topology.tp,
        "pipeline_model_parallel_size": topology.pp,
        "virtual_pipeline_model_parallel_size": chunks,
        "context_parallel_size": topology.cp,
        "expert_model_parallel_size": topology.ep,
        "expert_tensor_parallel_size": topology.etp,
        "num_distributed_optimizer_instances": topology.instances,
        "create_gloo_process_groups": False,
        "order": ORDER,
        **more,
    }
    known = inspect.signature(parallel_state.initialize_model_parallel).parameters
    parallel_state.initialize_model_parallel(**{name: value for name, value in wanted.items() if name in known})


def _remember_rank_lists() -> None:
    """Compute the lists of ranks, which are equal on all ranks, only once in this process. Saves half of the time."""
    from megatron.core import parallel_state

    compute = getattr(parallel_state, "generate_masked_orthogonal_rank_groups", None)
    if compute is None or hasattr(compute, "known"):  # another release, or done already
        return
    known: dict[str, list[list[int]]] = {}

    def remembered(*args: Any, **kwargs: Any) -> list[list[int]]:
        key = repr((args, kwargs))
        if key not in known:
            known[key] = compute(*args, **kwargs)
        return [list(ranks) for ranks in known[key]]

    remembered.known = known  # type: ignore[attr-defined]
    parallel_state.generate_masked_orthogonal_rank_groups = remembered


def restorer() -> Callable[[], None]:
    """Return a function that resets the globals of ``parallel_state``, so that each rank in a process starts anew."""
    from megatron.core import parallel_state

    _remember_rank_lists()
    now = vars(parallel_state)
    kept = dict(now)

    def restore() -> None:
        for name in set(now) - set(kept):
            del now[name]
        now.update(kept)

    return restore
