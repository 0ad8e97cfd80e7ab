"""megatron-core: the real MoE layer with its all-to-all dispatcher, every token routed to the first rank's experts.

Whether a rank without tokens hangs its peers is up to the grouped-GEMM backend, so two stand-ins take its place: one
that gives back a fresh empty tensor on empty input, as older ones do, which cuts the autograd graph; and one that
keeps it.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
from typing import Any

from . import megatron, ranks, shims
from .cases import DIFFERS, HUNG, PASSED, Case, Outcome, Topology

WARM = ("torch", "numpy", "transformers")
_EP2 = Topology(dp=2, ep=2)
CASES = (
    Case("graph-cut", _EP2, "ranks", HUNG, "all_to_all", {"backend": "cuts", "routed": "first"}, core=True),
    Case("graph-kept", _EP2, "ranks", PASSED, options={"backend": "keeps", "routed": "first"}, core=True),
    Case("tokens-everywhere", _EP2, "ranks", PASSED, options={"backend": "cuts", "routed": "all", "same": True}),
)
_HIDDEN, _INNER, _LOCAL = 8, 16, 2


def prepare() -> None:
    """Import megatron-core, for CPU."""
    importlib.import_module("megatron.core.transformer.moe.moe_layer")
    utils: Any = importlib.import_module("megatron.core.transformer.moe.moe_utils")
    if not hasattr(utils, "te_general_gemm"):  # a release that reads the name even where Transformer Engine is absent
        utils.te_general_gemm = None
    shims.cuda_on_cpu()


def run(case: Case, deadline_s: float) -> Outcome:
    """Run one forward and backward pass on every rank, and look at the experts' gradients."""

    def body(rank: int) -> dict[str, Any]:
        shims.gloo_as_nccl()
        megatron.initialize(case.topology)
        return _pass(case, rank)

    world = ranks.run(case.topology.world, body, deadline_s=deadline_s)
    if world.status != PASSED:
        return Outcome(world.status, world.text())
    for number, rank in enumerate(world.ranks):
        missing = [name for name, gradient in rank.value["gradients"].items() if gradient is None]
        if missing and case.options["backend"] == "cuts":
            return Outcome(DIFFERS, f"rank {number} has no gradient of {', '.join(missing)}")
        if number and case.options["routed"] == "first" and any(rank.value["gradients"].values()):
            return Outcome(DIFFERS, f"rank {number} has gradients other than zero, without a token")
    bits = ", ".join(rank.value["bits"] for rank in world.ranks)
    return Outcome(PASSED, f"gradients as they should be; outputs and gradients of the ranks have digests {bits}")


def _pass(case: Case, rank: int) -> dict[str, Any]:
    import torch

    layer = _layer(case)
    with torch.no_grad():
        layer.router.weight.zero_()
        if case.options["routed"] == "first":
            layer.router.weight[:_LOCAL] = 1.0
        else:
            layer.router.weight[::2] = 1.0
    torch.manual_seed(rank)
    tokens = torch.rand(4, 1, _HIDDEN, requires_grad=True)
    output = tokens + layer(tokens)[0]  # with the residual around it, as a transformer layer has
    output.sum().backward()
    gradients = {name: p.grad for name, p in layer.experts.named_parameters()}
    numbers = [output, tokens.grad, *(gradient for gradient in gradients.values() if gradient is not None)]
    return {
        "gradients": {n: None if g is None else float(g.abs().sum()) for n, g in gradients.items()},
        "bits": hashlib.sha256(b"".join(number.detach().numpy().tobytes() for number in numbers)).hexdigest()[:12],
    }


def _layer(case: Case) -> Any:
    import torch
    from megatron.core.transformer.moe import experts
    from megatron.core.transformer.moe.moe_layer import MoELayer, MoESubmodules
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.transformer_config import TransformerConfig

    torch.manual_seed(0)
    config = TransformerConfig(
        num_layers=1,
        hidden_size=_HIDDEN,
        num_attention_heads=2,
        num_moe_experts=case.topology.ep * _LOCAL,
        moe_ffn_hidden_size=_INNER,
        add_bias_linear=False,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        bias_activation_fusion=False,
        moe_grouped_gemm=True,
        moe_token_dispatcher_type="alltoall",  # noqa: S106 - no password
        use_cpu_initialization=True,
        moe_router_topk=2,
        moe_router_load_balancing_type="none",
        expert_model_parallel_size=case.topology.ep,
        params_dtype=torch.float32,
        moe_permute_fusion=False,
    )
    linear = _grouped_linear(str(case.options["backend"]))
    later = hasattr(experts, "GroupedMLPSubmodules")
    mlp = importlib.import_module("megatron.core.transformer.mlp")
    kind = experts.GroupedMLPSubmodules if later else mlp.MLPSubmodules
    parts = kind(linear_fc1=linear, linear_fc2=linear)
    specs = [
        ModuleSpec(module=experts.TEGroupedMLP, submodules=parts),
        functools.partial(experts.TEGroupedMLP, submodules=parts),  # as later releases have it
    ]
    error: Exception = TypeError("no way to build a layer")
    for spec in specs:
        try:
            return MoELayer(config, MoESubmodules(experts=spec))
        except (TypeError, AttributeError) as caught:
            error = caught
    raise error


def _grouped_linear(backend: str) -> Any:
    """A grouped linear layer in plain torch, with Transformer Engine's interface."""
    import torch

    class GroupedLinear(torch.nn.Module):  # type: ignore[misc]  # torch is not there to be checked against
        def __init__(self, groups: int, inputs: int, outputs: int, **_: object) -> None:
            super().__init__()
            self.groups, self.outputs = groups, outputs
            generator = torch.Generator().manual_seed(1)
            for group in range(groups):
                weight = torch.randn(outputs, inputs, generator=generator) * 0.1
                setattr(self, f"weight{group}", torch.nn.Parameter(weight))

        def forward(self, rows: Any, counts: Any) -> tuple[Any, None]:
            if backend == "cuts" and rows.shape[0] == 0:
                return rows.new_empty(0, self.outputs), None
            counts = counts.tolist() if torch.is_tensor(counts) else list(counts)
            weights = [getattr(self, f"weight{group}") for group in range(self.groups)]
            return torch.cat([part @ weight.t() for part, weight in zip(rows.split(counts), weights)]), None

    return GroupedLinear
