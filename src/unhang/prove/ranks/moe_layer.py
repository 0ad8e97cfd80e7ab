"""A real ``MoELayer`` of megatron-core, with stand-ins for Transformer Engine, or with it on a GPU."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
import sys
import types
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any

from . import shims

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

DISTRIBUTIONS = ("transformer-engine", "transformer-engine-torch", "transformer-engine-cu12", "transformer-engine-cu13")
"""The distributions of Transformer Engine."""
EXPERTS, HIDDEN = 4, 32  # a real fp8 GEMM wants multiples of 16
_WIDTH = 64
_FP8_ROWS, _FP4_ROWS = 16, 32  # each expert's rows must be a multiple of these
MODULE = "megatron.core.transformer.moe.experts"


def stand_in() -> None:
    """Import the layer, and replace what it takes from Transformer Engine or compiles in C++, for good."""
    importlib.import_module("megatron.core.transformer.moe.moe_layer")
    importlib.import_module(MODULE)
    vars(importlib.import_module("megatron.core.transformer.moe.moe_utils")).setdefault("te_general_gemm", None)
    random: Any = importlib.import_module("megatron.core.tensor_parallel.random")
    if not hasattr(random, "FP8GlobalStateManager"):  # recomputation asks Transformer Engine, even without fp8
        random.FP8GlobalStateManager = types.SimpleNamespace(is_fp8_enabled=lambda: False)
        random.activation_recompute_forward = random.fp8_autocast = lambda **_: contextlib.nullcontext()
    if hasattr(random, "_share_storage_ext"):  # otherwise it compiles this into the user's cache
        random._share_storage_ext = types.SimpleNamespace(share_storage=_share_storage)


def make(options: Mapping[str, Any], ep: int, tp: int = 1) -> Any:
    """Return a real layer whose grouped linears are stand-ins, for these parallel sizes.

    The rank must have its groups. With TP, each rank has its experts in whole. With the option ``te``, the linears are
    Transformer Engine's; raises ImportError where there is none. Other options: ``dispatcher``, its name in the
    configuration; ``cuts``, whether the linears cut the graph on empty input; ``each``, whether they also leave out the
    weight of each expert without rows; ``fails``, ``empty input`` or ``empty expert``, on which they raise;
    ``recompute`` of the activation; ``on_input``, probabilities applied to the input; ``fp8``, ``mxfp8`` or ``fp4``,
    for which the experts pad their rows, or the router if ``aligned``; ``biases`` of the linears; ``config``, more of
    the configuration.
    """
    import torch
    from megatron.core.transformer.moe.moe_layer import MoELayer, MoESubmodules
    from megatron.core.transformer.transformer_config import TransformerConfig

    wanted: dict[str, Any] = {
        "num_layers": 1,
        "hidden_size": HIDDEN,
        "num_attention_heads": 2,
        "num_moe_experts": EXPERTS,
        "moe_ffn_hidden_size": _WIDTH,
        "add_bias_linear": False,
        "gated_linear_unit": True,
        "activation_func": torch.nn.functional.silu,
        "bias_activation_fusion": False,
        "moe_grouped_gemm": True,
        "moe_token_dispatcher_type": options["dispatcher"],
        "moe_router_topk": 2,
        "moe_router_load_balancing_type": "none",
        "expert_model_parallel_size": ep,
        "tensor_model_parallel_size": tp,
        "sequence_parallel": tp > 1,
        "use_cpu_initialization": True,
    }
    if options.get("on_input"):
        wanted.update(moe_router_topk=1, moe_router_pre_softmax=True, moe_apply_probs_on_input=True)
    if options.get("recompute"):
        wanted.update(recompute_granularity="selective", recompute_modules=["moe_act"])
    if options.get("te"):
        wanted.update(fp8="hybrid" if options.get("fp8") else None)
    config = TransformerConfig(**{**wanted, **options.get("config", {})})
    torch.manual_seed(1)
    layer = MoELayer(config, MoESubmodules(experts=_spec(options))).to(shims.DEVICE)
    if not options.get("te"):
        # only now: with these the layer's constructor asks for Transformer Engine
        config.fp8 = "hybrid" if options.get("fp8") or options.get("mxfp8") else None
        config.fp8_recipe = "mxfp8" if options.get("mxfp8") else "delayed"
        config.fp4 = "e2m1" if options.get("fp4") else None
        for name in ("moe_router_padding_for_fp8", "moe_router_padding_for_quantization"):
            if hasattr(config, name):
                setattr(config, name, bool(options.get("aligned")))
        if alignment(options) > 1:
            pad(layer.experts, alignment(options))
    return layer


def pad(experts: Any, size: int) -> None:
    """Give the experts stand-ins for the padding of each expert's rows to a multiple, and for its removal."""
    for name in ("fp8", "quantization"):
        setattr(experts, f"{name}_padding", functools.partial(_pad, size))
        setattr(experts, f"{name}_unpadding", functools.partial(_unpad, size))


def precision(options: Mapping[str, Any], layer: Any) -> Any:
    """Return the context in which Megatron runs a layer: with Transformer Engine's own linears its own, for fp8."""
    if not options.get("te"):
        return contextlib.nullcontext()
    from megatron.core.fp8_utils import get_fp8_context

    return get_fp8_context(layer.config)


def wrapped(layer: Any) -> Any:
    """Return the layer in Megatron's own data parallelism, which reduces each gradient as soon as it exists."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig

    ddp = DistributedDataParallelConfig(overlap_grad_reduce=True, use_distributed_optimizer=False)
    return DistributedDataParallel(layer.config, ddp, layer)


def route(layer: Any, chosen: Iterable[int] | None) -> None:
    """Make the router choose these experts alone, for tokens that are positive; None: any expert, each of them."""
    import torch

    weight = layer.router.weight
    with torch.no_grad():
        if chosen is None:
            drawn = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
            weight.copy_(drawn - drawn.mean(dim=1, keepdim=True))  # so that every expert gets tokens
        else:
            weight.zero_()
            weight[list(chosen)] = 1.0


def once(layer: Any, tokens: Any, model: Any = None) -> dict[str, Any]:
    """Run a layer, or Megatron's data parallelism around it (``model``), forward and backward, as a transformer does.

    Return the output, and the gradients of the input and of each weight.
    """
    import torch.distributed as dist

    if model is not None:
        model.zero_grad_buffer()
    layer.zero_grad(set_to_none=True)
    output = tokens + (model or layer)(tokens)[0]
    output.square().sum().backward()
    if model is not None:
        model.finish_grad_sync()
    dist.barrier()  # a step ends with collectives on other groups: no rank may start the next one early
    kept = "grad" if model is None else "main_grad"
    gradients = {name: getattr(parameter, kept) for name, parameter in layer.named_parameters()}
    return {**gradients, "input": tokens.grad, "output": output.detach()}


def largest(results: Mapping[str, Any]) -> dict[str, float | None]:
    """Return of what ``once`` does the largest absolute gradient of each of the experts' weights; None for none."""
    found = {name: value for name, value in results.items() if name.startswith("experts.")}
    return {name: None if value is None else float(value.abs().max()) for name, value in found.items()}


def equal(one: Any, other: Any) -> bool:
    """Return whether two tensors have the same type and bits; None equals None alone."""
    import torch

    if one is None or other is None:
        return one is other
    return bool(one.dtype == other.dtype and torch.equal(one, other))


def untouched_forward() -> Any:
    """Return the installed forward, whichever variant is imported."""
    package = sys.modules[MODULE.rpartition(".")[0]]
    spec = PathFinder.find_spec(MODULE, package.__path__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.TEGroupedMLP.forward


def _spec(options: Mapping[str, Any]) -> Any:
    """Return the specification of the experts, in the form that this release takes."""
    from megatron.core.transformer.mlp import MLPSubmodules
    from megatron.core.transformer.spec_utils import ModuleSpec

    module = sys.modules[MODULE]
    fc1 = fc2 = _linear(
        bool(options.get("cuts")),
        bool(options.get("each")),
        alignment(options),
        options.get("fails", ""),
        bool(options.get("biases")),
    )
    if options.get("te"):
        engine: Any = importlib.import_module("megatron.core.extensions.transformer_engine")
        fc1, fc2 = engine.TEColumnParallelGroupedLinear, engine.TERowParallelGroupedLinear
        if fc1 is None:
            raise ImportError("no Transformer Engine with grouped linears")
    if "submodules" in inspect.signature(module.TEGroupedMLP).parameters and hasattr(module, "GroupedMLPSubmodules"):
        submodules = module.GroupedMLPSubmodules(linear_fc1=fc1, linear_fc2=fc2)
        return functools.partial(module.TEGroupedMLP, submodules=submodules)
    submodules = MLPSubmodules(linear_fc1=fc1, linear_fc2=fc2)
    if "TEGroupedMLP" in vars(sys.modules["megatron.core.transformer.moe.moe_layer"]):
        return submodules  # 0.10 chooses the experts by the type of these
    return ModuleSpec(module=module.TEGroupedMLP, submodules=submodules)


def alignment(options: Mapping[str, Any]) -> int:
    """Return the multiple that each expert's rows must be, by the precision."""
    if options.get("fp8"):
        return _FP8_ROWS
    return _FP4_ROWS if options.get("fp4") or options.get("mxfp8") else 1


def _linear(cuts: bool, each: bool, alignment: int, fails: str, biased: bool) -> Any:
    """Return a class of grouped linears, with a matrix for each local expert as in Transformer Engine.

    ``cuts``: whether an empty input cuts the graph. ``each``: whether an expert without rows leaves its weight out of
    the graph. ``alignment``: each expert's rows must be a multiple of it. ``fails``: on what it raises. Rows beyond all
    experts' give zeros. ``biased``: it leaves biases to the caller, as its constructor asks for. Those of fc1 are zero,
    since releases differ on whether a probability scales them.
    """
    import torch

    def init(self: Any, experts: int, inputs: int, outputs: int, **others: Any) -> None:
        torch.nn.Module.__init__(self)
        self.experts, self.outputs, self.biases = experts, outputs, None
        if biased and others.get("skip_bias_add"):
            scale = 0.0 if others.get("tp_comm_buffer_name") == "fc1" else 0.5
            self.biases = [torch.full((outputs,), scale * (number + 1)) for number in range(experts)]
        for number in range(experts):
            weight = torch.nn.Parameter(torch.randn(outputs, inputs) / inputs)
            weight.allreduce = False  # reduced over the experts' own data-parallel group
            setattr(self, f"weight{number}", weight)

    def forward(self: Any, rows: Any, tokens: Any) -> tuple[Any, Any]:
        tokens = tokens.tolist() if torch.is_tensor(tokens) else tokens
        biases = self.biases and [bias.to(rows) for bias in self.biases]
        if any(count % alignment for count in tokens):
            raise ValueError(f"rows of experts not aligned to {alignment}: {tokens}")
        if (fails == "empty input" and len(rows) == 0) or (fails == "empty expert" and 0 in tokens):
            raise ValueError(f"the grouped GEMM fails on an {fails}")
        if cuts and len(rows) == 0:
            return rows.new_empty(0, self.outputs), biases
        unused = len(rows) - sum(tokens)
        *parts, _ = rows.split([*tokens, unused])
        weights = [getattr(self, f"weight{number}") for number in range(self.experts)]
        given = [part @ weight.t() for part, weight in zip(parts, weights) if not each or len(part)]
        return torch.cat([*given, rows.new_zeros(unused, self.outputs)]), biases

    return type("GroupedLinear", (torch.nn.Module,), {"__init__": init, "forward": forward})


def _pad(alignment: int, rows: Any, tokens: list[int]) -> tuple[Any, list[int]]:
    """Pad the rows of each expert with zeros to the alignment, as ``Fp8Padding`` does."""
    import torch

    fill = [-count % alignment for count in tokens]
    parts = [torch.cat([part, part.new_zeros(more, part.shape[1])]) for part, more in zip(rows.split(tokens), fill)]
    return torch.cat(parts), [count + more for count, more in zip(tokens, fill)]


def _unpad(alignment: int, rows: Any, tokens: list[int]) -> Any:
    """Remove the rows that ``_pad`` added."""
    import torch

    padded = [count + -count % alignment for count in tokens]
    return torch.cat([part[:count] for part, count in zip(rows.split(padded), tokens)])


def _share_storage(emptied: Any, computed: Any) -> None:
    """Restore the values of an emptied tensor, below autograd."""
    storage, source = emptied.untyped_storage(), computed.untyped_storage()
    storage.resize_(source.nbytes())
    storage.copy_(source)
