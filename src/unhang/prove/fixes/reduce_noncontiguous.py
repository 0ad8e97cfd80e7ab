"""megatron-core: the sums of its real tensor-parallel regions on real ranks, forward and backward, beside plain sums.

``reduce_from_tensor_model_parallel_region`` gets a tensor in each layout. That of
``copy_to_tensor_model_parallel_region`` is what autograd makes of the code after it: a product, a transpose before a
head that wants the batch first, or a sum, whose gradient is one value spread over all places.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..cases import DIFFERS, PASSED, Case, Outcome, Topology
from ..ranks import gloo, megatron, shims

if TYPE_CHECKING:
    from collections.abc import Iterator

_TWO = Topology(tp=2)
_WRONG = "the gradient"
_TRANSPOSED, _SPREAD, _PLAIN = {"layout": "transposed"}, {"layout": "spread"}, {"layout": "plain"}
CASES = (
    Case("tp2-transposed", _TWO, "ranks", DIFFERS, _WRONG, _TRANSPOSED, core=True),
    Case("tp2-spread", _TWO, "ranks", DIFFERS, _WRONG, _SPREAD, core=True),
    Case("tp4-transposed", Topology(tp=4), "ranks", DIFFERS, _WRONG, _TRANSPOSED),
    Case("tp2-plain", _TWO, "ranks", PASSED, options=_PLAIN, core=True),
    Case("tp4-plain", Topology(tp=4), "ranks", PASSED, options=_PLAIN),
    Case("tp1-transposed", Topology(), "ranks", PASSED, options=_TRANSPOSED, core=True),
)
YOURS = Case("yours", _TWO, "ranks", DIFFERS, _WRONG, _TRANSPOSED)
RULED_OUT = ("tp", "with TP 1 there is nothing to sum")


def caveat(case: Case) -> str:
    """Return what the case supposes of the user's job."""
    return "supposes code around megatron-core whose gradient comes transposed, or spread from one value"


class Sums(NamedTuple):
    """What a rank got."""

    gradient: list[float]
    """Of what went through the region to all ranks."""
    forward: list[float]
    is_same: bool
    """Whether the sum of the forward pass is in the memory of this rank's part."""


def prepare() -> None:
    """Import megatron-core for a CPU."""
    shims.cuda_on_cpu()
    from megatron.core import tensor_parallel  # noqa: F401


def run(case: Case, deadline_s: float) -> Outcome:
    """Sum on every rank, and compare with the sum of the same parts in one process."""
    world = gloo.run(case.topology.world, lambda rank: _on_rank(case, rank), deadline_s=deadline_s)
    due = sum(_laid_out(case, rank) for rank in range(case.topology.tp)).flatten().tolist()
    return world.outcome(
        lambda ranks: "; ".join(_wrong(case, ranks, due)),
        lambda ranks: f"{_WRONG} and the sum forward are {_rounded(ranks[0].gradient)} on all ranks, as due",
    )


def _wrong(case: Case, ranks: list[Sums], due: list[float]) -> Iterator[str]:
    for what, found in (_WRONG, [it.gradient for it in ranks]), ("the sum forward", [it.forward for it in ranks]):
        if any(abs(one - other) > 1e-6 for values in found for one, other in zip(values, due)):
            each = (f"rank {rank} has {_rounded(values)}" for rank, values in enumerate(found))
            yield f"{what} is due {_rounded(due)}; {', '.join(each)}"
    if not all(it.is_same for it in ranks) and (case.topology.tp == 1 or case.options == _PLAIN):
        yield "the sum of a contiguous tensor is in other memory"


def _rounded(values: list[float]) -> list[float]:
    return [round(value, 4) for value in values]


def _on_rank(case: Case, rank: int) -> Sums:
    """Take a rank's part through both regions."""
    import torch
    from megatron.core import tensor_parallel

    megatron.initialize(case.topology)
    part = _laid_out(case, rank)
    whole = torch.zeros(part.shape, requires_grad=True)
    region = tensor_parallel.copy_to_tensor_model_parallel_region(whole)
    factors = _part(rank)
    if case.options == _TRANSPOSED:
        (region.transpose(0, 1).contiguous() * factors.transpose(0, 1).contiguous()).sum().backward()
    elif case.options == _SPREAD:
        (region.sum() * factors[0, 0]).backward()
    else:
        (region * factors).sum().backward()
    summed = tensor_parallel.reduce_from_tensor_model_parallel_region(part)
    is_same = summed.data_ptr() == part.data_ptr()
    return Sums(whole.grad.flatten().tolist(), summed.flatten().tolist(), is_same)


def _laid_out(case: Case, rank: int) -> Any:
    """Return a rank's part of the sum, in the layout of the case."""
    part = _part(rank)
    if case.options == _TRANSPOSED:
        return part.t().contiguous().t()
    return part[:1, :1].expand(part.shape) if case.options == _SPREAD else part


def _part(rank: int) -> Any:
    import torch

    return torch.randn(2, 3, generator=torch.Generator().manual_seed(rank))
