"""megatron-core: the sums of its real tensor-parallel regions on real ranks, forward and backward, beside plain sums.

``reduce_from_tensor_model_parallel_region`` gets a tensor in each layout. That of
``copy_to_tensor_model_parallel_region`` is what autograd makes of the code after it: a product, a transpose before a
head that wants the batch first, or a sum, whose gradient is one value spread over all places.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..cases import DIFFERS, PASSED, Case, Topology
from ..ranks import megatron, shims

if TYPE_CHECKING:
    from collections.abc import Sequence

_TWO = Topology(tp=2)
_WRONG = "the gradient"
_TRANSPOSED, _SPREAD, _PLAIN = {"layout": "transposed"}, {"layout": "spread"}, {"layout": "plain"}
CASES = (
    Case("tp2-transposed", _TWO, DIFFERS, _WRONG, _TRANSPOSED, core=True),
    Case("tp2-spread", _TWO, DIFFERS, _WRONG, _SPREAD, core=True),
    Case("tp4-transposed", Topology(tp=4), DIFFERS, _WRONG, _TRANSPOSED),
    Case("tp2-plain", _TWO, PASSED, options=_PLAIN, core=True),
    Case("tp4-plain", Topology(tp=4), PASSED, options=_PLAIN),
    Case("tp1-transposed", Topology(), PASSED, options=_TRANSPOSED, core=True),
    Case("tp2-made-up-for", _TWO, PASSED, options={**_TRANSPOSED, "makes_up": True}, patched=DIFFERS),
)
GRID = [
    Case(
        f"{layout}, TP {topology.tp}, DP {topology.dp}",
        topology,
        PASSED if topology.tp == 1 or layout == "plain" else DIFFERS,
        options={"layout": layout, "dtype": "bfloat16" if topology.dp > 1 else "float32"},
    )
    for topology, layout in itertools.product(
        (Topology(), _TWO, Topology(tp=2, dp=2), Topology(tp=4)), ("plain", "transposed", "spread")
    )
]
YOURS = Case("yours", _TWO, DIFFERS, _WRONG, _TRANSPOSED)
RULED_OUT = ("tp", "with TP 1 there is nothing to sum")


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of a case's job sets."""
    makes_up = case.options.get("makes_up", False)
    return {
        "tensor_model_parallel_size": case.topology.tp,
        "a sum of a tensor that is not contiguous": case.options["layout"] != "plain",
        "a lost sum that nothing makes up for": not makes_up,
        "code of your own that makes up for a lost sum": makes_up,
    }


def caveat(case: Case) -> str:
    """Return what the case supposes of the user's job."""
    return "supposes code around megatron-core whose gradient comes transposed, or spread from one value"


class Sums(NamedTuple):
    """What a rank got."""

    gradient: list[float]
    """Of what went through the region to all ranks."""
    forward: list[float]
    is_like: bool
    """Whether the sum of the forward pass has the shape and the dtype of this rank's part."""
    is_same: bool
    """Whether the sum of the forward pass is in the memory of this rank's part."""


def prepare() -> None:
    """Import megatron-core for a CPU."""
    shims.cuda_on_cpu()
    from megatron.core import tensor_parallel  # noqa: F401


def on_rank(case: Case, rank: int) -> Sums:
    """Take a rank's part through both regions."""
    import torch
    import torch.distributed as dist
    from megatron.core import tensor_parallel

    reduce, layout = dist.all_reduce, case.options["layout"]

    def late(*given: Any, async_op: bool = False, **others: Any) -> Any:
        """Reduce once somebody waits, which is the latest, and refuse what NCCL refuses: gloo sums strided tensors."""
        if not given[0].is_contiguous():
            raise ValueError("Tensors must be contiguous")
        return SimpleNamespace(wait=lambda: reduce(*given, **others)) if async_op else reduce(*given, **others)

    megatron.initialize(case.topology)
    own = rank % case.topology.tp
    part, factors = _laid_out(case, own).requires_grad_(), _part(case, own)
    whole = torch.zeros_like(factors, requires_grad=True)
    dist.all_reduce = late
    # nor may a tensor be made without a device: that would be one of the CPU
    torch.set_default_device("meta")
    try:
        region = tensor_parallel.copy_to_tensor_model_parallel_region(whole)
        if layout == "transposed":
            (region.transpose(0, 1).contiguous() * factors.transpose(0, 1).contiguous()).sum().backward()
        elif layout == "spread":
            (region.sum() * factors[0, 0]).backward()
        else:
            (region * factors).sum().backward()
        summed = tensor_parallel.reduce_from_tensor_model_parallel_region(part).detach()
    finally:
        dist.all_reduce = reduce
        torch.set_default_device(None)
    if case.options.get("makes_up"):
        summed = summed.contiguous()
        for sums in (whole.grad, summed):
            reduce(sums)
    is_like, is_same = (summed.shape, summed.dtype) == (part.shape, part.dtype), summed.data_ptr() == part.data_ptr()
    return Sums(whole.grad.flatten().tolist(), summed.flatten().tolist(), is_like, is_same)


def wrong(case: Case, ranks: Sequence[Sums]) -> str:
    """Return what is wrong with the sums, beside those of the same parts in one process."""
    due = sum(_laid_out(case, part) for part in range(case.topology.tp)).flatten().tolist()
    found = []
    for what, sums in (_WRONG, [it.gradient for it in ranks]), ("the sum forward", [it.forward for it in ranks]):
        if any(abs(one - other) > 1e-6 for values in sums for one, other in zip(values, due)):
            each = (f"rank {rank} has {_rounded(values)}" for rank, values in enumerate(sums))
            found.append(f"{what} is due {_rounded(due)}; {', '.join(each)}")
    if not all(it.is_like for it in ranks):
        found.append("the sum forward has another shape or dtype than the parts")
    if not all(it.is_same for it in ranks) and (case.topology.tp == 1 or case.options["layout"] == "plain"):
        found.append("the sum of a contiguous tensor is in other memory")
    return "; ".join(found)


def right(case: Case, ranks: Sequence[Sums]) -> str:
    """Return what was seen."""
    return f"{_WRONG} and the sum forward are {_rounded(ranks[0].gradient)} on all ranks, as due"


def _rounded(values: list[float]) -> list[float]:
    return [round(value, 4) for value in values]


def _laid_out(case: Case, rank: int) -> Any:
    """Return a rank's part of the sum, in its layout; a transposed one is a part of a wider one."""
    import torch

    part, layout = _part(case, rank), case.options["layout"]
    if layout == "transposed":
        return torch.cat((part, part)).transpose(0, 1).contiguous().transpose(0, 1)[2:]
    return part[:1, :1].expand(part.shape) if layout == "spread" else part


def _part(case: Case, rank: int) -> Any:
    import torch

    part = torch.randn(2, 3, 1, generator=torch.Generator().manual_seed(rank))
    return part.to(getattr(torch, case.options.get("dtype", "float32")))
