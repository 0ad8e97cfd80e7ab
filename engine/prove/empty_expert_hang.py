"""megatron-core: the real ``MoELayer``, its router, dispatcher and ``TEGroupedMLP``, on real expert-parallel ranks.

Transformer Engine does not run on a CPU. Stand-ins of ours are the grouped linears, what pads rows for fp8, and what
recomputation needs of it, or compiles in C++. A linear either keeps the autograd graph on empty input, or returns a
fresh empty tensor there, as the backends do that the fix is a safeguard against; under fp8 it refuses rows that are not
aligned, as an fp8 GEMM does, but computes in float32. So this shows what follows from such a backend, and that the
rewrite cures it; not which backend is one, nor anything of fp8 numbers, kernels, streams, the fused path, or the flex
dispatchers.

Each case goes through several steps: tokens for all ranks, none for those but the first, and tokens for all again.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
import sys
import types
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any, NamedTuple

from . import megatron, ranks, shims
from .cases import CRASHED, DIFFERS, HUNG, PASSED, Case, Outcome, Topology
from .schedule import ranges

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WARM = ("torch", "numpy")
_BACKWARD = "in the dispatcher's backward pass"
_EP2 = Topology(dp=2, ep=2)
_FULL, _EMPTY, _UNEVEN = "full", "empty", "uneven"
_STEPS, _WITH_TOKENS = (_FULL, _EMPTY, _FULL), (_FULL, _UNEVEN, _FULL)


def _cases() -> Iterator[Case]:
    for dispatcher in ("alltoall", "allgather"):
        for recompute in (False, True):
            name = dispatcher + ("-recompute" if recompute else "")
            base = Case(name, _EP2, "ranks", PASSED, options={"dispatcher": dispatcher, "recompute": recompute})
            core = dispatcher == "alltoall" and not recompute
            yield _variant(base, "cuts", HUNG)._replace(core=core)
            yield _variant(base, "keeps", PASSED)._replace(core=core)
            yield _variant(base, "same", PASSED, cuts=True, compare=True)._replace(core=core)
    padded = Case("fp8", _EP2, "ranks", PASSED, options={"dispatcher": "alltoall", "fp8": True})
    yield _variant(padded, "cuts", HUNG)
    yield _variant(padded, "same", PASSED, cuts=True, compare=True)
    skipped = padded._replace(name="fp8-aligned", options={**padded.options, "aligned": True})
    yield _variant(skipped, "cuts", HUNG)._replace(core=True)
    yield _variant(skipped, "same", PASSED, cuts=True, compare=True)
    on_input = Case("on-input", _EP2, "ranks", PASSED, options={"dispatcher": "alltoall", "on_input": True})
    yield _variant(on_input, "cuts", HUNG)
    yield _variant(on_input, "keeps", PASSED)
    wrapped = Case("ddp", Topology(dp=4, ep=2), "ranks", PASSED, options={"dispatcher": "alltoall", "ddp": True})
    yield _variant(wrapped, "cuts", HUNG)._replace(untouched=CRASHED, at="finish_grad_sync")
    yield _variant(wrapped, "keeps", PASSED)


def _variant(base: Case, name: str, untouched: str, **options: Any) -> Case:
    told = {"cuts": untouched == HUNG, **base.options, **options}
    at = _BACKWARD if untouched == HUNG else ""
    return base._replace(name=f"{base.name}-{name}", untouched=untouched, at=at, options=told)


CASES = tuple(_cases())


def ruled_out(topology: Topology) -> str:
    """Why the defect cannot come up."""
    return "with EP 1 every rank has all experts, and waits for no other's tokens" if topology.ep == 1 else ""


def case_for(topology: Topology, upstream: str, version: str | None) -> Case:
    """The smallest job that shows it, whatever the user's sizes: what they change is how likely an empty rank is."""
    return next(case for case in CASES if case.name == "alltoall-cuts")


_EXPERTS, _LOCAL, _HIDDEN, _WIDTH, _TOKENS = 4, 2, 8, 16, 32
_ALIGNMENT = 16  # rows, of an fp8 GEMM
_MODULE = "megatron.core.transformer.moe.experts"


class Step(NamedTuple):
    """What one rank did in one step."""

    tokens: int
    """Tokens that its experts were given."""
    shape: tuple[int, ...]
    reaches_input: bool
    """Whether the input has a gradient."""
    gradients: dict[str, float | None]
    """The largest of each weight of its experts, by name; None where there is none."""
    differs: tuple[str, ...]
    """What is not bit by bit what the untouched forward gives: names of gradients, or the output."""


def prepare() -> None:
    """Import megatron-core, for CPU."""
    shims.cuda_on_cpu()
    importlib.import_module("megatron.core.transformer.moe.moe_layer")
    importlib.import_module(_MODULE)
    vars(importlib.import_module("megatron.core.transformer.moe.moe_utils")).setdefault("te_general_gemm", None)
    random = importlib.import_module("megatron.core.tensor_parallel.random")
    if not hasattr(random, "FP8GlobalStateManager"):  # recomputation asks Transformer Engine, with fp8 or without
        random.FP8GlobalStateManager = types.SimpleNamespace(is_fp8_enabled=lambda: False)
        random.activation_recompute_forward = random.fp8_autocast = lambda **_: contextlib.nullcontext()
    if hasattr(random, "_share_storage_ext"):  # else it compiles this, and keeps it in the user's cache
        random._share_storage_ext = types.SimpleNamespace(share_storage=_share_storage)


def run(case: Case, deadline_s: float) -> Outcome:
    """Run the steps on every rank, and look at the gradients."""

    def body(rank: int) -> list[Step]:
        shims.gloo_as_nccl()
        megatron.initialize(case.topology)
        return _steps(case, rank)

    world = ranks.run(case.topology.world, body, deadline_s=deadline_s)
    if world.status != PASSED:
        frames = [frame for rank in world.ranks for frame in rank.stack]
        is_backward = any("tensor_parallel/mappings.py" in frame and frame.endswith(" in backward") for frame in frames)
        return Outcome(world.status, f"{_BACKWARD}: " * is_backward + world.text())
    values: list[list[Step]] = [rank.value for rank in world.ranks]
    wrong = _wrong(case, values)
    return Outcome(DIFFERS, wrong) if wrong else Outcome(PASSED, _told(case, values))


def _steps(case: Case, rank: int) -> list[Step]:
    """Go through the steps as one rank."""
    import torch
    import torch.distributed as dist

    layer = _layer(case)
    tokens: list[int] = []
    layer.experts.register_forward_pre_hook(lambda _, args: tokens.append(int(args[1].sum())))
    forwards = [layer.experts.forward]
    if case.options.get("compare"):
        forwards.append(types.MethodType(_untouched_forward(), layer.experts))
    model = _wrapped(layer) if case.options.get("ddp") else layer
    told = []
    for number, kind in enumerate(_kinds(case, rank)):
        _set_router(layer, kind)
        results = []
        for forward in forwards:
            layer.experts.forward = forward
            torch.manual_seed(100 * number + rank)
            results.append(_once(model, layer, torch.rand(_TOKENS, 1, _HIDDEN, requires_grad=True)))
            dist.barrier()  # a step ends with collectives on other groups: no rank comes to the next one alone
        given, gradients = results[0]
        names = given.keys() if len(results) > 1 else ()
        differs = tuple(name for name in names if not _equal(given[name], results[1][0][name]))
        reaches = given["input"] is not None
        told.append(Step(tokens[-1], tuple(given["output"].shape), reaches, gradients, differs))
    return told


def _once(model: Any, layer: Any, tokens: Any) -> tuple[dict[str, Any], dict[str, float | None]]:
    """Forward and backward: the tensors that come out, and the largest of each of the experts' gradients."""
    is_wrapped = model is not layer
    if is_wrapped:
        model.zero_grad_buffer()
    for parameter in layer.parameters():
        parameter.grad = None
    output = tokens + model(tokens)[0]  # as in a transformer layer
    output.square().sum().backward()
    if is_wrapped:
        model.finish_grad_sync()
    kept = "main_grad" if is_wrapped else "grad"
    gradients = {name: getattr(parameter, kept) for name, parameter in layer.named_parameters()}
    largest = {
        name.removeprefix("experts."): None if value is None else float(value.abs().max())
        for name, value in gradients.items()
        if name.startswith("experts.")
    }
    return {**gradients, "input": tokens.grad, "output": output.detach()}, largest


def _equal(one: Any, other: Any) -> bool:
    import torch

    return one is other if one is None or other is None else torch.equal(one, other)


def _kinds(case: Case, rank: int) -> Sequence[str]:
    """The steps of a rank: with replicas of the experts, those of the first expert-parallel group alone lack tokens."""
    if case.options.get("compare") or rank >= case.topology.ep:
        return _WITH_TOKENS
    return _STEPS


def _set_router(layer: Any, kind: str) -> None:
    """Make the router choose: as it comes, the experts of rank 0, or one expert of each rank."""
    import torch

    weight = layer.router.weight
    with torch.no_grad():
        if kind == _FULL:
            weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))
        else:
            chosen = range(_LOCAL) if kind == _EMPTY else range(0, _EXPERTS, _LOCAL)
            weight.zero_()
            weight[list(chosen)] = 1.0  # the tokens are positive


def _layer(case: Case) -> Any:
    """A real layer, whose grouped linears are stand-ins."""
    import torch
    from megatron.core.transformer.moe.moe_layer import MoELayer, MoESubmodules
    from megatron.core.transformer.transformer_config import TransformerConfig

    options = case.options
    wanted: dict[str, Any] = {
        "num_layers": 1,
        "hidden_size": _HIDDEN,
        "num_attention_heads": 2,
        "num_moe_experts": _EXPERTS,
        "moe_ffn_hidden_size": _WIDTH,
        "add_bias_linear": False,
        "gated_linear_unit": True,
        "activation_func": torch.nn.functional.silu,
        "bias_activation_fusion": False,
        "moe_grouped_gemm": True,
        "moe_token_dispatcher_type": options["dispatcher"],
        "moe_router_topk": 2,
        "moe_router_load_balancing_type": "none",
        "expert_model_parallel_size": case.topology.ep,
        "use_cpu_initialization": True,
    }
    if options.get("on_input"):
        wanted.update(moe_router_topk=1, moe_router_pre_softmax=True, moe_apply_probs_on_input=True)
    if options.get("recompute"):
        wanted.update(recompute_granularity="selective", recompute_modules=["moe_act"])
    config = TransformerConfig(**wanted)
    torch.manual_seed(1)
    layer = MoELayer(config, MoESubmodules(experts=_spec(options)))
    if options.get("fp8"):
        # after the layer is made: it would ask for Transformer Engine
        config.fp8 = "hybrid"
        for name in ("moe_router_padding_for_fp8", "moe_router_padding_for_quantization"):
            if hasattr(config, name):
                setattr(config, name, bool(options.get("aligned")))
        for name in ("fp8", "quantization"):
            setattr(layer.experts, f"{name}_padding", _pad)
            setattr(layer.experts, f"{name}_unpadding", _unpad)
    return layer


def _spec(options: Any) -> Any:
    """How a release wants to be told which experts to make."""
    from megatron.core.transformer.mlp import MLPSubmodules
    from megatron.core.transformer.spec_utils import ModuleSpec

    module = sys.modules[_MODULE]
    linear = _linear(bool(options["cuts"]), _ALIGNMENT if options.get("fp8") else 1)
    if "submodules" in inspect.signature(module.TEGroupedMLP).parameters and hasattr(module, "GroupedMLPSubmodules"):
        submodules = module.GroupedMLPSubmodules(linear_fc1=linear, linear_fc2=linear)
        return functools.partial(module.TEGroupedMLP, submodules=submodules)
    return ModuleSpec(module=module.TEGroupedMLP, submodules=MLPSubmodules(linear_fc1=linear, linear_fc2=linear))


def _linear(cuts: bool, alignment: int) -> Any:
    """A class of grouped linears: whether an empty input cuts the graph, and how many rows an expert must have."""
    import torch

    class GroupedLinear(torch.nn.Module):
        """One matrix for each local expert, as Transformer Engine's ``GroupedLinear`` has it."""

        def __init__(self, experts: int, inputs: int, outputs: int, **_: object) -> None:
            super().__init__()
            self.experts, self.outputs = experts, outputs
            for number in range(experts):
                weight = torch.nn.Parameter(torch.randn(outputs, inputs) / inputs)
                weight.allreduce = False  # of the experts: reduced over their own data-parallel group
                setattr(self, f"weight{number}", weight)

        def forward(self, rows: Any, tokens: list[int]) -> tuple[Any, None]:
            """Each expert's rows by its matrix."""
            if any(count % alignment for count in tokens):
                raise ValueError(f"rows of experts not aligned to {alignment}: {tokens}")
            if cuts and sum(tokens) == 0:
                return rows.new_empty(0, self.outputs), None
            weights = [getattr(self, f"weight{number}") for number in range(self.experts)]
            return torch.cat([part @ weight.t() for part, weight in zip(rows.split(tokens), weights)]), None

    return GroupedLinear


def _pad(rows: Any, tokens: list[int]) -> tuple[Any, list[int]]:
    """Zero rows behind those of each expert, up to the alignment: a stand-in for ``Fp8Padding``."""
    import torch

    fill = [-count % _ALIGNMENT for count in tokens]
    parts = [torch.cat([part, part.new_zeros(more, part.shape[1])]) for part, more in zip(rows.split(tokens), fill)]
    return torch.cat(parts), [count + more for count, more in zip(tokens, fill)]


def _unpad(rows: Any, tokens: list[int]) -> Any:
    """What ``_pad`` was given, of its rows."""
    import torch

    padded = [count + -count % _ALIGNMENT for count in tokens]
    return torch.cat([part[:count] for part, count in zip(rows.split(padded), tokens)])


def _share_storage(emptied: Any, computed: Any) -> None:
    """Give an emptied tensor its values back, below autograd."""
    storage, source = emptied.untyped_storage(), computed.untyped_storage()
    storage.resize_(source.nbytes())
    storage.copy_(source)


def _wrapped(layer: Any) -> Any:
    """The layer in Megatron's own data parallelism, which reduces each gradient as soon as it is there."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig

    ddp = DistributedDataParallelConfig(overlap_grad_reduce=True, use_distributed_optimizer=False)
    return DistributedDataParallel(layer.config, ddp, layer)


def _untouched_forward() -> Any:
    """The forward as it is installed, whichever variant is imported."""
    package = sys.modules[_MODULE.rpartition(".")[0]]
    spec = PathFinder.find_spec(_MODULE, package.__path__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.TEGroupedMLP.forward


def _wrong(case: Case, values: list[list[Step]]) -> str:
    """What is wrong with the steps of all ranks; empty where each has the gradients that it should have."""
    for rank, steps in enumerate(values):
        for number, (kind, step) in enumerate(zip(_kinds(case, rank), steps), 1):
            has_none = _lacks_tokens(case, rank, kind)
            assert (step.tokens == 0) == has_none, f"rank {rank} has {step.tokens} tokens in step {number}, {kind}"
            where = f"rank {rank}, step {number} ({kind})"
            if step.shape != (_TOKENS, 1, _HIDDEN) or not step.reaches_input:
                return f"{where}: output {step.shape}, {'a' if step.reaches_input else 'no'} gradient of the input"
            missing = [name for name, largest in step.gradients.items() if largest is None]
            if missing or not step.gradients:
                return f"{where}: no gradient of {', '.join(missing) or 'any expert'}"
            if step.differs:
                return f"{where}: not what the untouched forward gives: {', '.join(step.differs)}"
            if has_none != (not any(step.gradients.values())) and not case.options.get("ddp"):
                return f"{where}: {step.tokens} tokens, gradients {step.gradients}"
            if step.gradients != values[rank % case.topology.ep][number - 1].gradients:
                return f"{where}: gradients differ from those of its replica on rank {rank % case.topology.ep}"
    return ""


def _lacks_tokens(case: Case, rank: int, kind: str) -> bool:
    return kind == _EMPTY and kind in _kinds(case, rank) and rank % case.topology.ep > 0


def _told(case: Case, values: list[list[Step]]) -> str:
    steps = f"{len(values[0])} steps"
    if case.options.get("compare"):
        return f"{steps} with tokens: output and all gradients bit-identical to the untouched forward"
    empty = ranges(rank for rank in range(len(values)) if _lacks_tokens(case, rank, _EMPTY))
    added = "" if case.options.get("ddp") else ", and all are zero there"  # with replicas, those of another are added
    return f"{steps}: rank {empty} has no token in one; every gradient of fc1 and fc2 exists{added}"
