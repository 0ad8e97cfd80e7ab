"""megatron-core: the real finalizer of gradients, after a backward pass through the real gated norm, on real ranks.

The model is small: a norm of the input, the output norm of a gated delta net with its gate, and the norm of another
module that all ranks have in whole. Its norms are torch's. What lies between them, the delta rule and the projections,
is left out: each rank takes its own heads of what the norm of the input gives. All heads in one process are the
reference. The default has no sequence parallelism.
"""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..cases import DIFFERS, PASSED, Case, Outcome, Topology
from ..ranks import gloo, megatron, shims

if TYPE_CHECKING:
    from collections.abc import Mapping

_NORM = "self_attention.out_norm."
_TWO = Topology(tp=2)
_SP, _BIAS = {"sequence_parallel": True}, {"norm": "LayerNorm"}
CASES = (
    Case("tp2", _TWO, "ranks", DIFFERS, _NORM, core=True),
    Case("tp2-bias", _TWO, "ranks", DIFFERS, f"{_NORM}bias", _BIAS, core=True),
    Case("tp4", Topology(tp=4), "ranks", DIFFERS, _NORM),
    Case("tp2-dp2", Topology(tp=2, dp=2), "ranks", DIFFERS, _NORM),
    Case("tp2-sequence-parallel", _TWO, "ranks", PASSED, options=_SP, core=True),
    Case("tp2-bias-sequence-parallel", _TWO, "ranks", PASSED, options={**_SP, **_BIAS}),
    Case("tp1", Topology(), "ranks", PASSED, core=True),
)
YOURS = Case("yours", _TWO, "ranks", DIFFERS, _NORM)
RULED_OUT = ("tp", "with TP 1 one rank has all heads")
_TOKENS, _WIDTH = 8, 3


def caveat(case: Case) -> str:
    """Return what the case supposes of the user's job."""
    return "" if case.is_control else "supposes gated delta nets, and no sequence parallelism"


def prepare() -> None:
    """Import megatron-core for a CPU."""
    shims.cuda_on_cpu()
    import torch

    torch.compile = lambda function, **_: function  # it needs a compiler for C++
    _gated_norm()


class Grad(NamedTuple):
    """The gradient of a parameter on a rank."""

    before: list[float]
    after: list[float]
    """What the finalizer leaves."""


def run(case: Case, deadline_s: float) -> Outcome:
    """Run one backward pass and the finalizer on every rank, and compare the gradients with those of all heads."""
    world = gloo.run(case.topology.world, lambda rank: _on_rank(case, rank), deadline_s=deadline_s)
    model = _model(case)
    _loss(case, model).backward()
    due = {name: it.grad.tolist() for name, it in model.named_parameters()}
    norms = [name for name in due if _NORM in name]
    return world.outcome(
        lambda ranks: _wrong(ranks, due),
        lambda ranks: f"{', '.join(f'{name} {_rounded(ranks[0][name].after)}' for name in norms)}, as of all heads",
    )


def _wrong(ranks: list[Mapping[str, Grad]], due: Mapping[str, list[float]]) -> str:
    """Return the gradients of the last parameter that are not those of all heads; empty where all are."""
    for name, wanted in reversed(list(due.items())):
        found = [rank[name] for rank in ranks]
        if any(abs(one - other) > 1e-4 for grad in found for one, other in zip(grad.after, wanted)):
            each = (f"rank {at}: {_rounded(it.before)}, then {_rounded(it.after)}" for at, it in enumerate(found))
            return f"the gradient of {name} is due {_rounded(wanted)}; {'; '.join(each)}"
    return ""


def _rounded(values: list[float]) -> list[float]:
    return [round(value, 4) for value in values]


def _on_rank(case: Case, rank: int) -> dict[str, Grad]:
    """Return what this rank has of each gradient, before the finalizer and after."""
    finalizer = importlib.import_module("megatron.core.distributed.finalize_model_grads")
    megatron.initialize(case.topology)
    model = _model(case)
    is_parallel = bool(case.options.get("sequence_parallel"))
    for name, param in model.named_parameters():
        param.sequence_parallel = is_parallel and name.startswith("decoder.")
    _loss(case, model, rank % case.topology.tp).backward()
    before = {name: it.grad.tolist() for name, it in model.named_parameters()}
    config = SimpleNamespace(sequence_parallel=is_parallel, qk_layernorm=False)
    finalizer._allreduce_non_tensor_model_parallel_grads([model], config)
    return {name: Grad(before[name], it.grad.tolist()) for name, it in model.named_parameters()}


def _loss(case: Case, model: Any, part: int | None = None) -> Any:
    """Return the loss of the heads of one rank and of the tokens that every rank has in whole; or of all heads."""
    import torch
    from megatron.core.tensor_parallel import mappings

    heads, tp = _heads(case), case.topology.tp
    random = torch.Generator().manual_seed(1)
    inputs, gate, scale = (torch.randn(_TOKENS, heads, _WIDTH, generator=random) for _ in range(3))
    layer = model["decoder"]["layers"][0]
    mine, own = inputs, slice(None)
    if part is not None:
        own = slice(part * heads // tp, (part + 1) * heads // tp)
    if part is not None and case.options.get("sequence_parallel"):
        mine = mine[part * _TOKENS // tp : (part + 1) * _TOKENS // tp]
    hidden = layer["input_layernorm"](mine.flatten(1))
    if part is not None and case.options.get("sequence_parallel"):
        hidden = mappings.gather_from_sequence_parallel_region(hidden)
    elif part is not None:
        hidden = mappings.copy_to_tensor_model_parallel_region(hidden)
    of_heads = hidden.view(_TOKENS, heads, _WIDTH)[:, own].contiguous()
    gated = layer["self_attention"](of_heads, gate[:, own].contiguous())
    seen = model["vision_model"]["encoder"]["out_norm"](inputs)
    return (gated * scale[:, own].reshape(-1, _WIDTH)).sum() + (seen * scale).sum()


def _model(case: Case) -> Any:
    import torch

    norm = getattr(torch.nn, case.options.get("norm", "RMSNorm"))
    gated = _gated_norm()

    class GatedNorm(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.out_norm = norm(_WIDTH)
            self.act_fn = torch.nn.functional.silu

        def forward(self, heads: Any, gate: Any) -> Any:
            return gated(self, heads, gate)

    layer = torch.nn.ModuleDict({"input_layernorm": norm(_heads(case) * _WIDTH), "self_attention": GatedNorm()})
    encoder = torch.nn.ModuleDict({"out_norm": norm(_WIDTH)})
    of_model = {
        "decoder": torch.nn.ModuleDict({"layers": torch.nn.ModuleList([layer])}),
        "vision_model": torch.nn.ModuleDict({"encoder": encoder}),
    }
    model = torch.nn.ModuleDict(of_model)
    model.ddp_config = SimpleNamespace(use_megatron_fsdp=False)
    return model


def _heads(case: Case) -> int:
    return 2 * case.topology.tp


def _gated_norm() -> Any:
    """Return the release's own function: the output norm of the heads, times their gate."""
    return importlib.import_module("megatron.core.ssm.gated_delta_net").GatedDeltaNet._apply_gated_norm
