"""megatron-core: the real ``MoELayer``, its router, dispatcher and ``TEGroupedMLP``, on real expert-parallel ranks.

Transformer Engine does not run on a CPU. The stand-ins (in ``ranks.moe_layer``) are the grouped linears, the padding of
rows for fp8, and what recomputation takes from it or compiles in C++. On empty input, a linear either keeps the
autograd graph or returns a new empty tensor, as do the backends that the fix guards against. Under fp8 it refuses rows
that are not aligned, as an fp8 GEMM does, but computes in float32. So this shows the effect of such a backend, and that
the rewrite cures it. It does not show which backend is one, nor fp8 numbers, kernels, streams, the fused path, or the
flex dispatchers.

Each case has several steps: tokens for all ranks, tokens only for the first one, and tokens for all again. The settings
of ``GRID`` call the experts of one rank instead, with rows that a dispatcher seldom makes. The output and all gradients
must be those of the installed forward, untouched, with linears that keep the graph. A setting on torch's ``meta``
device shows where results lie.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import types
from typing import TYPE_CHECKING, Any, NamedTuple

from ..cases import CRASHED, DIFFERS, HUNG, PASSED, Case, Topology
from ..ranks import megatron, moe_layer, shims
from ..ranks.moe_layer import DISTRIBUTIONS as DISTRIBUTIONS
from ..ranks.rank_numbers import ranges

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

_CUTS: dict[str, Any] = {"cuts": True, "each": True}
_KEEPS: dict[str, Any] = {"cuts": False, "each": False, "fails": "", "te": False}
_FULL, _EMPTY, _UNEVEN = "full", "empty", "uneven"
_TOKENS = 32  # of each rank


def _case(name: str, untouched: str, at: str = "", size: int = 2, *, core: bool = False, **options: Any) -> Case:
    options = {"dispatcher": "alltoall", **({} if untouched == PASSED else _CUTS), **options}
    return Case(name, Topology(dp=size, ep=2), untouched, at, options, core)


_BACKWARD = "tensor_parallel/mappings.py"
CASES = (
    _case("alltoall-cuts", HUNG, _BACKWARD, core=True),
    _case("alltoall-keeps", PASSED, core=True),
    _case("alltoall-tokens", PASSED, core=True, cuts=True, kinds=(_FULL, _UNEVEN, _FULL)),
    _case("allgather-cuts", HUNG, _BACKWARD, dispatcher="allgather"),
    _case("recompute-cuts", HUNG, _BACKWARD, recompute=True),
    _case("fp8-cuts", HUNG, _BACKWARD, fp8=True),
    _case("fp8-aligned-cuts", HUNG, _BACKWARD, core=True, fp8=True, aligned=True),
    _case("on-input-cuts", HUNG, _BACKWARD, on_input=True, each=False),  # one expert may get every token
    _case("ddp-cuts", CRASHED, "finish_grad_sync", size=4, ddp=True, each=False),
)
_ROWS: dict[str, tuple[int, tuple[int, ...]]] = {
    "no row": (0, (0, 0, 0, 0)),
    "one row": (1, (0, 1, 0, 0)),
    "an empty expert": (6, (2, 0, 3, 1)),
    "the last expert empty": (3, (1, 1, 1, 0)),
    "rows for all": (7, (1, 2, 3, 1)),
    "a buffer with no row in use": (5, (0, 0, 0, 0)),
    "a buffer with some rows in use": (5, (2, 0, 1, 0)),
}
"""Rows given to the experts, and how many of these are each expert's."""
_FUSED, _INTERLEAVED = {"bias_activation_fusion": True}, {"moe_mlp_glu_interleave_size": 8}
_PLAIN, _ENGINE = {"gated_linear_unit": False}, {"use_te_activation_func": True}
_ACTIVATIONS: dict[str, dict[str, Any]] = {
    "gelu": {"activation": "gelu", **_PLAIN},
    "clamped": {"activation_func_clamp_value": 0.1},
    "interleaved": _INTERLEAVED,
    "Transformer Engine's": _ENGINE,
    "Transformer Engine's, interleaved": {**_ENGINE, **_INTERLEAVED},
    "fused": _FUSED,
    "fused, interleaved": {**_FUSED, **_INTERLEAVED},
    "fused geglu": {"activation": "gelu", **_FUSED},
    "fused quick geglu": {"activation": "quick_gelu", **_FUSED},
    "squared relu": {"activation": "squared_relu", **_PLAIN},
    "fused squared relu": {"activation": "squared_relu", **_PLAIN, "use_fused_weighted_squared_relu": True},
}
"""Activations: the function, and what else the configuration says. Each is gated SiLU, unless it says otherwise."""
_NEEDS = (
    ("fp4", "quantization_padding"),
    ("on_input", "permuted_probs"),
    ("on_input", "moe_apply_probs_on_input"),  # a commit of 2025-04 takes probabilities alone
    ("recompute", "activation_recompute"),
    ("fused geglu", "bias_geglu_impl"),
    ("fused quick geglu", "weighted_bias_quick_geglu_impl"),
    ("squared relu", "squared_relu"),
    ("fused squared relu", "squared_relu"),
)
"""What a forward names that knows an option, or an activation."""
_NEWER = {
    "activation_func_clamp_value": None,
    "activation_func_fp8_input_store": False,
    "delay_offload_until_cuda_graph": False,
    "glu_linear_offset": 0.0,
    "moe_apply_probs_on_input": False,
    "moe_mlp_glu_interleave_size": None,
    "use_fused_weighted_squared_relu": False,
    "use_te_activation_func": False,
}
"""What the configuration of an older release lacks, in whose tree a newer forward may play."""
HELD = {
    "bias_parallel is not None": "Transformer Engine adds the bias of fc1 itself, but in old releases",
    "permuted_probs is not None": "the router always gives probabilities, where the forward takes them",
    r"self\.activation_func == |self\.config\.gated_linear_unit:?$": "of a fused activation of another kind it raises",
    "moe_apply_probs_on_input": "up to 0.12.0 it applies probabilities that the forward does not take",
    "offload": "it copies to the host on CUDA streams",
    "isinstance\\(tokens_per_expert": "follows from the path",
}


def _grid() -> Iterator[Case]:
    """Yield the settings: the forward's, what the experts get, and what their grouped linears do with that."""
    every: dict[str, dict[str, Any]] = {
        f"{precision or 'bf16'}{', aligned' * aligned}{', bias' * biased}": {
            **({precision: True} if precision else {}), "aligned": aligned, "biases": biased,
        }
        for precision in ("", "fp8", "mxfp8", "fp4")
        for aligned in (False, True)
        for biased in (False, True)
    }  # fmt: skip
    every |= {
        "linears that fail on an empty input": {"fails": "empty input"},
        "linears that fail on an empty expert": {"fails": "empty expert"},  # as Transformer Engine 2.0 and 2.1 do
        "without gradients": {"trains": False, "fails": "empty input"},
        "one expert": {"experts": 1},
        "two ranks": {"dp": 2},
        "two ranks, fp8, bias": {"dp": 2, **every["fp8, bias"]},
        "two ranks, fp8, aligned": {"dp": 2, **every["fp8, aligned"]},
        "on input": {"on_input": True},
        "another device": {"device": "meta"},
        "recompute": {"recompute": True},
        **{name: {"activation": name} for name in _ACTIVATIONS},
        # some commits then recompute another function, without interleaved units
        **{f"recompute, {it}": {"activation": it, "recompute": True} for it in _ACTIVATIONS if "interleaved" not in it},
        **{f"{path} path": {"path": path} for path in ("fused", "grouped")},
    }
    for name, options in every.items():
        faulty = {} if "path" in options else _CUTS
        # with a bias, some commits split padded rows by the counts of before
        first = "no row" if name.endswith(("fp8, bias", "fp4, bias")) else "rows for all"
        yield _call(name, (first, "no row") * 2, DIFFERS if faulty else PASSED, {**faulty, **options})
    yield from (_call(f"linears that keep the graph, {rows}", (rows,), PASSED, {}) for rows in _ROWS)


def _call(name: str, calls: Sequence[str], untouched: str, options: Mapping[str, Any]) -> Case:
    options, ranks = {"dispatcher": "alltoall", "calls": calls, **options}, options.get("dp", 1)
    return Case(name, Topology(dp=ranks, ep=ranks), untouched, options=options)


GRID = list(_grid())
YOURS = CASES[0]  # the sizes of a user's job only change how likely an empty rank is
RULED_OUT = ("ep", "with EP 1 every rank has all experts and waits for no other rank's tokens")


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of a case's job sets. One rank that is called alone is one of several."""
    options = case.options
    return {
        "moe_grouped_gemm": True,
        "expert_model_parallel_size": 2,
        "a rank whose experts get no token": bool({"no row", _EMPTY} & {*_kinds(case, 0)}),
        "a grouped GEMM that fails on no row": bool(options.get("cuts") or options.get("fails")),
    }


def about(installed: Mapping[str, str]) -> str:
    """Return the remark for the versions of the installed ``DISTRIBUTIONS``."""
    stand_in = "the proof's grouped linears are stand-ins: a CPU cannot show whether yours cuts the graph on zero rows"
    version = next((installed[name] for name in DISTRIBUTIONS if name in installed), None)
    if version is None:
        return f"no Transformer Engine is installed (a vendor's replacement would not be found); {stand_in}"
    reported = "the author of pull request 4851 reports that the Transformer Engine of that time passes without the fix"
    remark = f"Transformer Engine {version} is installed; {reported}; {stand_in}"
    if version.split(".")[:2] in (["2", "0"], ["2", "1"]):
        remark += "; it also fails when only the last expert is empty, which the fix does not cure"
    return remark


class Step(NamedTuple):
    """What one rank did in one step, or call."""

    tokens: int
    """Tokens that its experts got."""
    given: dict[str, Any]
    """The output, and the gradients of the input and of each weight; of torch's ``meta`` device what each is."""
    faults: tuple[str, ...]
    """What is not as the untouched forward has it, with linears that keep the graph."""


def prepare() -> None:
    """Import megatron-core for a CPU, or for a GPU.

    A forward that plays in the tree of an older release calls three functions that it may lack, or that take less: a
    commit after 0.19.2 gives the fused activation a limit, which is None here.
    """
    import torch

    torch.use_deterministic_algorithms(True, warn_only=True)  # on a GPU, equal sums need it
    shims.cuda_on_cpu()
    moe_layer.stand_in()
    module = vars(sys.modules[moe_layer.MODULE])
    module.setdefault("apply_module", lambda module: module)
    module.setdefault("get_fine_grained_offloading_context", contextlib.nullcontext)
    if swiglu := module.get("weighted_bias_swiglu_impl"):
        module["weighted_bias_swiglu_impl"] = lambda *given: swiglu(*given[:4])


def on_rank(case: Case, rank: int) -> list[Step]:
    """Run the steps, or the calls, as one rank."""
    shims.gloo_as_nccl()
    megatron.initialize(case.topology)
    return [*_called(case)] if "calls" in case.options else _steps(case, rank)


def _steps(case: Case, rank: int) -> list[Step]:
    """Run the steps as one rank, each once more with the untouched forward."""
    import torch

    layers = [moe_layer.make({**case.options, **more}, case.topology.ep) for more in ({}, _KEEPS)]
    layers[1].experts.forward = types.MethodType(moe_layer.untouched_forward(), layers[1].experts)
    models = [moe_layer.wrapped(layer) if case.options.get("ddp") else None for layer in layers]
    tokens: list[int] = []
    layers[0].experts.register_forward_pre_hook(lambda _, args: tokens.append(int(args[1].sum())))
    local = moe_layer.EXPERTS // case.topology.ep
    chosen = {_FULL: None, _EMPTY: range(local), _UNEVEN: range(0, moe_layer.EXPERTS, local)}
    steps = []
    for number, kind in enumerate(_kinds(case, rank)):
        results = []
        for layer, model in zip(layers, models):
            moe_layer.route(layer, chosen[kind])
            torch.manual_seed(100 * number + rank)
            given = torch.rand(_TOKENS, 1, moe_layer.HIDDEN, requires_grad=True, device=shims.DEVICE)
            found = moe_layer.once(layer, given, model)
            results.append({name: it if it is None else it.clone() for name, it in found.items()})
        steps.append(Step(tokens[-1], results[0], tuple(_faults(results[0], results[1]))))
    return steps


def _called(case: Case) -> Iterator[Step]:
    """Call the same experts each time, and others with the untouched forward."""
    import torch

    ours = inspect.unwrap(sys.modules[moe_layer.MODULE].TEGroupedMLP.forward)
    names = {*inspect.signature(ours).parameters, *_names(ours.__code__)}
    options = _known(case.options, names)
    trains, pair = options.get("trains", True), []
    for forward, more in ((ours, {}), (moe_layer.untouched_forward(), _KEEPS)):
        given = {**options, **more, "config": _config(options, case.topology.ep)}
        pair.append((layer := moe_layer.make(given, case.topology.ep), forward, given))
        _set_up(layer.experts, options, names, forward)
    for number, name in enumerate(options["calls"]):
        (rows, counts), size = _ROWS[name], moe_layer.alignment(options) if options.get("aligned") else 1
        counts = tuple(size * count for count in ((sum(counts),) if options.get("experts") else counts))
        kind = {"device": options.get("device", shims.DEVICE), "dtype": torch.float32 if rows else torch.bfloat16}
        results = []
        for layer, forward, given in pair:
            experts = layer.experts.to(**kind).train(trains)
            experts.zero_grad()
            torch.manual_seed(number)
            leaves = {"input": torch.rand(size * rows, moe_layer.HIDDEN, **kind, requires_grad=trains)}
            leaves["probs"] = torch.rand(size * rows, **kind, requires_grad=trains)
            probs = {"permuted_probs": leaves["probs"]} if "permuted_probs" in names else {}
            with moe_layer.precision(given, layer), torch.set_grad_enabled(trains):
                output, biases = forward(experts, leaves["input"], tokens_per_expert=torch.tensor(counts), **probs)
            if trains:
                output.square().sum().backward()
            leaves |= dict(experts.named_parameters())
            found = {"output": output.detach(), **{name: it.grad for name, it in leaves.items()}}
            results.append({**found, "biases": None if biases is None else torch.tensor(len(biases))})
        found, wanted = results
        if not rows:  # whatever the installed forward does
            wanted = {name: it if it is None or name == "biases" else it * 0 for name, it in wanted.items()}
        has_values, reaches_all = "device" not in options, trains and options.get("path") != "fused"
        # by Transformer Engine's own kernels values differ by their precision; a commit pads rows on its grouped path
        same = functools.partial(torch.allclose, rtol=1e-4, atol=1e-5)
        faults = tuple(_faults(found, wanted, same if has_values and not options.get("te") else None, reaches_all))
        yield Step(sum(counts), found if has_values else {name: _kind(it) for name, it in found.items()}, faults)


def _kind(it: Any) -> tuple[str, tuple[int, ...], str] | None:
    return None if it is None else (str(it.dtype), tuple(it.shape), it.device.type)


def _faults(
    given: Mapping[str, Any], wanted: Mapping[str, Any], same: Any = moe_layer.equal, reaches_all: bool = True
) -> Iterator[str]:
    """Yield what is wrong with the output and the gradients. Those of the input and of weights may never lack."""
    for name, due in wanted.items():
        has, wants = _kind(given[name]), _kind(due)
        if has != wants or (has is None and reaches_all and ("linear_fc" in name or name == "input")):
            yield f"{name}: {has}, and not {wants}" if has else f"no gradient of {name}"
        elif has and same and not same(given[name], due):
            yield f"{name} differs from the untouched forward's"


def _names(code: types.CodeType) -> Iterator[str]:
    """Yield the names that a function and those inside of it use."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names(inner)


def _known(options: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return the options that a forward knows, by the names that it uses."""
    lacking = {option for option, needed in _NEEDS if needed not in names}
    known = {name: it for name, it in options.items() if not {name, it} & lacking}
    if "fp8_padding" in names or "quantization_padding" in names:
        return known
    # the first commits never pad, and add a bias that no linear has
    is_fp8 = bool(options.get("fp8") or options.get("mxfp8"))
    return {**known, "mxfp8": False, "fp8": is_fp8, "aligned": True, "biases": False}


def _config(options: Mapping[str, Any], ep: int) -> dict[str, Any]:
    """Return what the configuration must say before the experts are made."""
    import torch

    chosen = _ACTIVATIONS.get(options.get("activation", ""), {})
    name = chosen.get("activation", "silu")
    function = vars(sys.modules[moe_layer.MODULE]).get(name) or getattr(torch.nn.functional, name)
    alone = {"num_moe_experts": 1, "moe_router_topk": 1, "moe_router_pre_softmax": True}
    config = {"activation_func": function, "gated_linear_unit": chosen.get("gated_linear_unit", True)}
    config["num_moe_experts"] = moe_layer.EXPERTS * ep
    return {**config, **(alone if options.get("experts") else {})}


def _set_up(experts: Any, options: Mapping[str, Any], names: Collection[str], forward: Any) -> None:
    """Set what the constructor of the experts would ask Transformer Engine for, or what it lacks in this release."""
    import torch

    chosen = _ACTIVATIONS.get(options.get("activation", ""), {})
    experts.config.hidden_size *= 2  # as with moe_latent_size, their rows are narrower than the model
    for name, value in {**_NEWER, **chosen}.items():
        if (name in chosen and name in names) or not hasattr(experts.config, name):
            setattr(experts.config, name, value)
    path = options.get("path")
    experts._with_fused_impl, experts._use_grouped_tensor = path == "fused", path == "grouped"
    experts._fused_forward = lambda rows, *_: rows
    if path == "grouped":
        moe_layer.pad(experts, 16)
    if "use_te_activation_func" in chosen:
        experts.activation_func = torch.nn.functional.glu
    inner = [it for it in forward.__code__.co_consts if getattr(it, "co_name", "") == "bias_act_func"]
    if inner and "bias_act_func" in forward.__code__.co_names and not options.get("recompute"):
        # a commit of 2026-03-25 calls an older one of the class, which takes no interleaved units
        closure = tuple(types.CellType(experts) for _ in inner[0].co_freevars)
        experts.bias_act_func = types.FunctionType(inner[0], forward.__globals__, closure=closure)


def _kinds(case: Case, rank: int) -> Sequence[str]:
    """Return the steps of a rank. Of replicas of the experts, only the first expert-parallel group lacks tokens."""
    kinds = case.options.get("calls") or case.options.get("kinds", (_FULL, _EMPTY, _FULL))
    return [_UNEVEN if kind == _EMPTY and rank >= case.topology.ep else kind for kind in kinds]


def wrong(case: Case, values: Sequence[Sequence[Step]]) -> str:
    """Return what is wrong with what all ranks did; empty where each has the right output and gradients."""
    for rank, steps in enumerate(values):
        for number, (kind, step) in enumerate(zip(_kinds(case, rank), steps), 1):
            where = f"rank {rank}, step {number} ({kind})"
            has_none = kind == _EMPTY and rank > 0
            assert "calls" in case.options or (step.tokens == 0) == has_none, f"{where}: {step.tokens} tokens"
            if step.faults:
                return f"{where}: {'; '.join(step.faults)}"
    return ""


def right(case: Case, values: Sequence[Sequence[Step]]) -> str:
    """Return what was seen."""
    what = "the output and all gradients are those of the untouched forward with linears that keep the graph"
    empty = ranges(rank for rank, steps in enumerate(values) if any(step.tokens == 0 for step in steps))
    return f"{len(values[0])} steps, {f'rank {empty} has no token in one' if empty else 'with tokens'}: {what}"
