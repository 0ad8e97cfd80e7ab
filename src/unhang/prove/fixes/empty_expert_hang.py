"""megatron-core: the real ``MoELayer``, its router, dispatcher and ``TEGroupedMLP``, on real expert-parallel ranks.

Transformer Engine does not run on a CPU. The stand-ins (in ``ranks.moe_layer``) are the grouped linears, the padding of
rows for fp8, and what recomputation takes from it or compiles in C++. On empty input, a linear either keeps the
autograd graph or returns a new empty tensor, as do the backends that the fix guards against. Under fp8 it refuses rows
that are not aligned, as an fp8 GEMM does, but computes in float32. So this shows the effect of such a backend, and that
the rewrite cures it. It does not show which backend is one, nor fp8 numbers, kernels, streams, the fused path, or the
flex dispatchers.

Each case has several steps: tokens for all ranks, tokens only for the first one, and tokens for all again. The settings
of ``GRID`` call the experts of one rank instead, with rows that a dispatcher seldom makes, and compare the output and
the gradients with those of each expert's own matrices in plain torch. A setting on torch's ``meta`` device shows where
results lie.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import types
from typing import TYPE_CHECKING, Any, NamedTuple

from ..cases import CRASHED, DIFFERS, HUNG, PASSED, Case, Topology
from ..ranks import megatron, moe_layer, shims
from ..ranks.moe_layer import DISTRIBUTIONS as DISTRIBUTIONS
from ..ranks.rank_numbers import ranges

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

_BACKWARD = "tensor_parallel/mappings.py"
_EP2 = Topology(dp=2, ep=2)
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
_FULL, _EMPTY, _UNEVEN = "full", "empty", "uneven"
_STEPS, _WITH_TOKENS = (_FULL, _EMPTY, _FULL), (_FULL, _UNEVEN, _FULL)


_STAND_IN = "the proof's grouped linears are stand-ins: a CPU cannot show whether yours cuts the graph on zero rows"
_REPORTED = "the author of pull request 4851 reports that the Transformer Engine of that time passes without the fix"


def _cases() -> Iterator[Case]:
    for dispatcher in ("alltoall", "allgather"):
        for recompute in (False, True):
            name = dispatcher + ("-recompute" if recompute else "")
            base = Case(name, _EP2, PASSED, options={"dispatcher": dispatcher, "recompute": recompute})
            core = dispatcher == "alltoall" and not recompute
            yield _variant(base, "cuts", HUNG, each=True)._replace(core=core)
            yield _variant(base, "keeps", PASSED)._replace(core=core)
            yield _variant(base, "same", PASSED, cuts=True, compare=True)._replace(core=core)
    padded = Case("fp8", _EP2, PASSED, options={"dispatcher": "alltoall", "fp8": True})
    yield _variant(padded, "cuts", HUNG)
    yield _variant(padded, "same", PASSED, cuts=True, compare=True)
    skipped = padded._replace(name="fp8-aligned", options={**padded.options, "aligned": True})
    yield _variant(skipped, "cuts", HUNG)._replace(core=True)
    yield _variant(skipped, "same", PASSED, cuts=True, compare=True)
    on_input = Case("on-input", _EP2, PASSED, options={"dispatcher": "alltoall", "on_input": True})
    yield _variant(on_input, "cuts", HUNG)
    yield _variant(on_input, "keeps", PASSED)
    wrapped = Case("ddp", Topology(dp=4, ep=2), PASSED, options={"dispatcher": "alltoall", "ddp": True})
    yield _variant(wrapped, "cuts", HUNG)._replace(untouched=CRASHED, at="finish_grad_sync")
    yield _variant(wrapped, "keeps", PASSED)


def _variant(base: Case, name: str, untouched: str, **options: Any) -> Case:
    chosen = {"cuts": untouched == HUNG, **base.options, **options}
    at = _BACKWARD if untouched == HUNG else ""
    return base._replace(name=f"{base.name}-{name}", untouched=untouched, at=at, options=chosen)


CASES = tuple(_cases())
_ACTIVATIONS: dict[str, tuple[str, bool, Mapping[str, Any]]] = {
    "gelu": ("gelu", False, {}),
    "clamped glu": ("silu", True, {"activation_func_clamp_value": 0.1}),
    "interleaved glu": ("silu", True, {"moe_mlp_glu_interleave_size": 8}),
    "Transformer Engine's": ("silu", True, {"use_te_activation_func": True}),
    "Transformer Engine's, interleaved": (
        *("silu", True),
        {"use_te_activation_func": True, "moe_mlp_glu_interleave_size": 8},
    ),
    "fused swiglu": ("silu", True, {"bias_activation_fusion": True}),
    "fused swiglu, interleaved": ("silu", True, {"bias_activation_fusion": True, "moe_mlp_glu_interleave_size": 8}),
    "fused geglu": ("gelu", True, {"bias_activation_fusion": True}),
    "fused quick geglu": ("quick_gelu", True, {"bias_activation_fusion": True}),
    "squared relu": ("squared_relu", False, {}),
    "fused squared relu": ("squared_relu", False, {"use_fused_weighted_squared_relu": True}),
}
"""Activations: the function, whether it is gated, and what else the configuration says."""
_NEEDS = {"fused geglu": "bias_geglu_impl", "fused quick geglu": "weighted_bias_quick_geglu_impl"}
"""What a forward that fuses these calls."""
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
_PRECISIONS = ("", "fp8", "mxfp8", "fp4")
_LINEARS: dict[str, dict[str, Any]] = {
    "linears that cut the graph": {"cuts": True, "each": True},
    "linears that fail on an empty input": {"fails": "empty input"},
    "linears that fail on an empty expert": {"fails": "empty expert"},
}
"""Grouped linears with which no row is a fault. Transformer Engine 2.0 and 2.1 fail if the last expert is empty."""
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
    every: dict[str, Mapping[str, Any]] = {}
    for precision in _PRECISIONS:
        for aligned in (False, True):
            kind: dict[str, Any] = {**({precision: True} if precision else {}), "aligned": aligned}
            name = f"{precision or 'bf16'}{', aligned' * aligned}"
            every |= {name: kind, f"{name}, bias": kind | {"biases": True}}
    every |= {
        "without gradients": {"trains": False},
        "one expert": {"experts": 1},
        "two ranks": {"dp": 2},
        "two ranks, fp8, bias": {"dp": 2, "fp8": True, "biases": True, "aligned": False},
        "two ranks, fp8, aligned": {"dp": 2, "fp8": True, "aligned": True},
        "on input": {"on_input": True},
        "recompute": {"recompute": True},
        "another device": {"device": "meta"},
        **{name: {"activation": name} for name in _ACTIVATIONS},
    }
    for name, options in every.items():
        for rows in _rows_of(options):
            yield _call(f"{name}, {rows}", rows, PASSED, options)
        for fault, linears in _LINEARS.items():
            if "fails" in linears or options.get("trains", True):
                yield _call(f"{name}, no row, {fault}", "no row", DIFFERS, {**options, **linears})
    for name in _ACTIVATIONS:
        if "interleaved" not in name:  # some commits then recompute another function, without that
            yield _call(f"recompute, {name}", "rows for all", PASSED, {"activation": name, "recompute": True})
    for path in ("fused", "grouped"):
        for rows in ("no row", "rows for all"):
            yield _call(f"{path}, {rows}", rows, PASSED, {"path": path})


def _rows_of(options: Mapping[str, Any]) -> Iterable[str]:
    """Return what the experts get: fewer kinds where that changes nothing, and what upstream's own forward takes."""
    is_padded = bool({*_PRECISIONS} & {*options})
    if is_padded and options.get("biases") and not options["aligned"]:
        return ("no row",)  # some commits split padded rows by the counts of before
    if options.keys() - {*_PRECISIONS, "aligned", "biases", "experts"}:
        return ("no row", "rows for all")
    return [name for name in _ROWS if not name.startswith("a buffer") or not (is_padded or options.get("biases"))]


def _call(name: str, rows: str, untouched: str, options: Mapping[str, Any]) -> Case:
    options = {"dispatcher": "alltoall", "calls": (rows,), **options}
    return Case(name, Topology(dp=options.get("dp", 1)), untouched, options=options)


GRID = list(_grid())
# the sizes of a user's job only change how likely an empty rank is
YOURS = next(case for case in CASES if case.name == "alltoall-cuts")
RULED_OUT = ("ep", "with EP 1 every rank has all experts and waits for no other rank's tokens")


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of a case's job sets. One rank that is called alone is one of several."""
    options = case.options
    called = options.get("calls", ())
    return {
        "moe_grouped_gemm": options.get("grouped", True),
        "expert_model_parallel_size": 2 if called else case.topology.ep,
        "a rank whose experts get no token": "no row" in called if called else not options.get("compare"),
        "a grouped GEMM that fails on no row": bool(options.get("cuts") or options.get("fails")),
    }


def about(installed: Mapping[str, str]) -> str:
    """Return the remark for the versions of the installed ``DISTRIBUTIONS``."""
    version = next((installed[name] for name in DISTRIBUTIONS if name in installed), None)
    if version is None:
        return f"no Transformer Engine is installed (a vendor's replacement would not be found); {_STAND_IN}"
    remark = f"Transformer Engine {version} is installed; {_REPORTED}; {_STAND_IN}"
    if version.split(".")[:2] in (["2", "0"], ["2", "1"]):
        remark += "; it also fails when only the last expert is empty, which the fix does not cure"
    return remark


_TOKENS = 32  # of each rank


class Step(NamedTuple):
    """What one rank did in one step."""

    tokens: int
    """Tokens that its experts got."""
    shape: tuple[int, ...]
    reaches_input: bool
    """Whether the input has a gradient."""
    gradients: dict[str, float | None]
    """The largest absolute gradient of each weight of its experts, by name; None where it has none."""
    differs: tuple[str, ...]
    """Gradients, by name, and the output, where they are not bit-identical to the untouched forward's."""


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


def on_rank(case: Case, rank: int) -> Any:
    """Run the steps, or the calls, as one rank."""
    shims.gloo_as_nccl()
    megatron.initialize(case.topology)
    if "calls" in case.options:
        return [_called(case, *_ROWS[name]) for name in case.options["calls"]]
    return _steps(case, rank)


def _steps(case: Case, rank: int) -> list[Step]:
    """Run the steps as one rank."""
    import torch

    layer = moe_layer.make(case.options, case.topology.ep)
    tokens: list[int] = []
    layer.experts.register_forward_pre_hook(lambda _, args: tokens.append(int(args[1].sum())))
    forwards = [layer.experts.forward]
    if case.options.get("compare"):
        forwards.append(types.MethodType(moe_layer.untouched_forward(), layer.experts))
    model = moe_layer.wrapped(layer) if case.options.get("ddp") else None
    steps = []
    for number, kind in enumerate(_kinds(case, rank)):
        _set_router(layer, kind)
        results = []
        for forward in forwards:
            layer.experts.forward = forward
            torch.manual_seed(100 * number + rank)
            tokens_here = torch.rand(_TOKENS, 1, moe_layer.HIDDEN, requires_grad=True, device=shims.DEVICE)
            results.append(moe_layer.once(layer, tokens_here, model))
        given = results[0]
        gradients = {name.removeprefix("experts."): size for name, size in moe_layer.largest(given).items()}
        names = given.keys() if len(results) > 1 else ()
        differs = tuple(name for name in names if not moe_layer.equal(given[name], results[1][name]))
        reaches = given["input"] is not None
        steps.append(Step(tokens[-1], tuple(given["output"].shape), reaches, gradients, differs))
    return steps


class Called(NamedTuple):
    """What the experts gave for some rows, and what is right; of another device only what a tensor is."""

    given: dict[str, Any]
    """The output, and the gradients of the rows, of their probabilities and of each weight."""
    wanted: dict[str, Any]
    """The same by each expert's own matrices."""
    biases: int | None
    """How many it left to the caller."""


def _called(case: Case, rows: int, counts: tuple[int, ...]) -> Called:
    """Call new experts with some rows, of which so many are each expert's."""
    import torch

    function = inspect.unwrap(sys.modules[moe_layer.MODULE].TEGroupedMLP.forward)
    names = {*inspect.signature(function).parameters, *_names(function.__code__)}
    options = _known(case.options, names)
    options["config"] = _config(options)
    device, trains = options.get("device", shims.DEVICE), options.get("trains", True)
    kind = {"device": device, "dtype": torch.float32 if rows else torch.bfloat16}
    layer = moe_layer.make(options, case.topology.ep)
    experts = layer.experts.to(**kind).train(trains)
    others = {name: it for name, it in _activation(options)[2].items() if name in names}
    _set_up(experts, options, others)
    if not options["recompute"]:
        _activate(experts, function)
    if "num_moe_experts" in options["config"]:
        counts = (sum(counts),)
    if options.get("aligned"):
        size = moe_layer.alignment(options)
        rows, counts = rows * size, tuple(count * size for count in counts)
    torch.manual_seed(rows)
    shape: dict[str, tuple[int, ...]] = {"input": (rows, moe_layer.HIDDEN), "probs": (rows,)}
    leaves = {name: torch.rand(size, **kind, requires_grad=trains) for name, size in shape.items()}
    given = {"permuted_probs": leaves["probs"]} if "permuted_probs" in names else {}
    is_fused = case.options.get("path") == "fused" and "_with_fused_impl" in names
    scales = leaves["probs"][:, None] if given else torch.ones(rows, 1, **kind)
    with moe_layer.precision(options, layer), torch.set_grad_enabled(trains):
        output, biases = function(experts, leaves["input"], tokens_per_expert=torch.tensor(counts), **given)
        wanted = _wanted(experts, others, leaves["input"], counts, scales, biases is None)
    wanted = leaves["input"] if is_fused else wanted
    leaves |= dict(experts.named_parameters())
    found, right = (_results(it, leaves) for it in (output, wanted))
    return Called(found, right, None if biases is None else len(biases))


def _names(code: types.CodeType) -> Iterator[str]:
    """Yield the names that a function and those inside of it use."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names(inner)


def _known(options: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return the options without what a forward does not know, by the names that it uses."""
    known = {**options, "fp4": options.get("fp4") and "quantization_padding" in names}
    known["on_input"] = options.get("on_input") and {"moe_apply_probs_on_input", "permuted_probs"} <= {*names}
    known["recompute"] = options.get("recompute") and "activation_recompute" in names
    if (needs := _NEEDS.get(options.get("activation", ""))) and needs not in names:
        del known["activation"]
    if "fp8_padding" in names or "quantization_padding" in names:
        return known
    # the first commits never pad, and add a bias that no linear has
    is_fp8 = bool(options.get("fp8") or options.get("mxfp8"))
    return {**known, "mxfp8": False, "fp8": is_fp8, "aligned": True, "biases": False}


def _activation(options: Mapping[str, Any]) -> tuple[str, bool, Mapping[str, Any]]:
    return _ACTIVATIONS.get(options.get("activation", ""), ("silu", True, {}))


def _config(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the configuration must say before the experts are made."""
    import torch

    name, is_gated, _ = _activation(options)
    known = {**vars(torch.nn.functional), "quick_gelu": _quick_gelu, "squared_relu": _squared_relu}
    function = vars(sys.modules[moe_layer.MODULE]).get(name) or known[name]
    alone = {"num_moe_experts": 1, "moe_router_topk": 1, "moe_router_pre_softmax": True}
    config = {"activation_func": function, "gated_linear_unit": is_gated}
    return {**config, **(alone if options.get("experts") else {})}


def _set_up(experts: Any, options: Mapping[str, Any], activation: Mapping[str, Any]) -> None:
    """Set what the constructor of the experts would ask Transformer Engine for, or what it lacks in this release."""
    for name, value in {**_NEWER, **activation}.items():
        if name in activation or not hasattr(experts.config, name):
            setattr(experts.config, name, value)
    path = options.get("path")
    experts._with_fused_impl, experts._use_grouped_tensor = path == "fused", path == "grouped"
    experts._fused_forward = lambda rows, *_: rows
    if path == "grouped":
        moe_layer.pad(experts, 16)
    if "use_te_activation_func" in activation:
        experts.activation_func = _swiglu


def _activate(experts: Any, forward: Any) -> None:
    """Let a forward call the activation that it defines: in a commit of 2026-03-25 it calls an older one of the class.

    That one takes no interleaved units.
    """
    inner = [it for it in forward.__code__.co_consts if getattr(it, "co_name", "") == "bias_act_func"]
    if inner and "bias_act_func" in forward.__code__.co_names:
        closure = tuple(types.CellType(experts) for _ in inner[0].co_freevars)
        experts.bias_act_func = types.FunctionType(inner[0], forward.__globals__, closure=closure)


def _quick_gelu(rows: Any) -> Any:
    return rows * (1.702 * rows).sigmoid()


def _squared_relu(rows: Any) -> Any:
    return rows.relu().square()


def _swiglu(rows: Any) -> Any:
    import torch

    gate, linear = rows.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * linear


def _wanted(
    experts: Any, activation: Mapping[str, Any], rows: Any, counts: Sequence[int], scales: Any, adds_bias: bool
) -> Any:
    """Return what each expert's own matrices make of its rows: in plain torch, without the forward."""
    import torch

    parts, fc1, fc2 = [], experts.linear_fc1, experts.linear_fc2
    *own, unused = zip(*(it.split([*counts, len(rows) - sum(counts)]) for it in (rows, scales)))
    for number, (given, scale) in enumerate(own):
        before, after = (scale, 1) if experts.config.moe_apply_probs_on_input else (1, scale)
        hidden = (given * before) @ getattr(fc1, f"weight{number}").t()
        hidden = _activated(experts.config, activation, hidden)
        parts.append((hidden * after) @ getattr(fc2, f"weight{number}").t())
        if adds_bias and fc2.biases:
            parts[-1] = parts[-1] + fc2.biases[number].to(given) * scale
    return torch.cat([*parts, unused[0] * 0])


def _activated(config: Any, activation: Mapping[str, Any], hidden: Any) -> Any:
    if not config.gated_linear_unit:
        return config.activation_func(hidden)
    if size := activation.get("moe_mlp_glu_interleave_size"):
        hidden = hidden.unflatten(-1, (-1, 2, size)).transpose(-3, -2).flatten(-3)
    gate, linear = hidden.chunk(2, dim=-1)
    if limit := activation.get("activation_func_clamp_value"):
        gate, linear = gate.clamp(max=limit), linear.clamp(-limit, limit)
    return config.activation_func(gate) * linear


def _results(output: Any, leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Return an output, and the gradients of what it is made from; on torch's ``meta`` device, what kind each is."""
    for leaf in leaves.values():
        leaf.grad = None
    if output.requires_grad:
        output.square().sum().backward()
    found = {"output": output.detach(), **{name: leaf.grad for name, leaf in leaves.items()}}
    if output.device.type != "meta":
        return found
    return {name: it if it is None else (it.dtype, it.shape, it.device.type) for name, it in found.items()}


def _kinds(case: Case, rank: int) -> Sequence[str]:
    """Return the steps of a rank. Of replicas of the experts, only the first expert-parallel group lacks tokens."""
    if case.options.get("compare") or rank >= case.topology.ep:
        return _WITH_TOKENS
    return _STEPS


def _set_router(layer: Any, kind: str) -> None:
    """Make the router choose any expert, the experts of rank 0, or one expert of each rank."""
    local = moe_layer.EXPERTS // _EP2.ep
    chosen = {_FULL: None, _EMPTY: range(local)}.get(kind, range(0, moe_layer.EXPERTS, local))
    moe_layer.route(layer, chosen)


def wrong(case: Case, values: Sequence[Any]) -> str:
    """Return what is wrong with what all ranks did; empty where each has the right output and gradients."""
    if "calls" not in case.options:
        return _wrong_steps(case, values)
    names = case.options["calls"]
    found = [
        f"{name}: {fault}" if len(names) > 1 else fault
        for calls in values
        for name, called in zip(names, calls)
        if (fault := _wrong_call(case, called))
    ]
    return found[0] if found else ""


def _wrong_call(case: Case, called: Called) -> str:
    import torch

    given, wanted = called.given, called.wanted
    if missing := [name for name in wanted if wanted[name] is not None and given[name] is None]:
        return f"no gradient of {', '.join(missing)}"
    if called.biases not in (None, 1, moe_layer.EXPERTS):
        return f"the second result has {called.biases} biases"
    for name, value in wanted.items():
        has, wants = ((it.dtype, it.shape) if torch.is_tensor(it) else it for it in (given[name], value))
        if has != wants:
            return f"{name}: {has}, and not {wants}"
        # by Transformer Engine's own kernels values differ by their precision
        is_exact = torch.is_tensor(value) and not case.options.get("te")
        if is_exact and not torch.allclose(given[name], value, rtol=1e-4, atol=1e-5):
            return f"{name} differs from that of each expert's own matrices"
    return ""


def _wrong_steps(case: Case, values: Sequence[list[Step]]) -> str:
    """Return what is wrong with the steps of all ranks; empty where each has the right gradients."""
    for rank, steps in enumerate(values):
        for number, (kind, step) in enumerate(zip(_kinds(case, rank), steps), 1):
            has_none = _lacks_tokens(case, rank, kind)
            assert (step.tokens == 0) == has_none, f"rank {rank} has {step.tokens} tokens in step {number}, {kind}"
            where = f"rank {rank}, step {number} ({kind})"
            if step.shape != (_TOKENS, 1, moe_layer.HIDDEN) or not step.reaches_input:
                return f"{where}: output {step.shape}, {'a' if step.reaches_input else 'no'} gradient of the input"
            missing = [name for name, largest in step.gradients.items() if largest is None]
            if missing or not step.gradients:
                return f"{where}: no gradient of {', '.join(missing) or 'any expert'}"
            if step.differs:
                return f"{where}: differs from the untouched forward: {', '.join(step.differs)}"
            if has_none != (not any(step.gradients.values())) and not case.options.get("ddp"):
                return f"{where}: {step.tokens} tokens, gradients {step.gradients}"
            if step.gradients != values[rank % case.topology.ep][number - 1].gradients:
                return f"{where}: gradients differ from its replica on rank {rank % case.topology.ep}"
    return ""


def _lacks_tokens(case: Case, rank: int, kind: str) -> bool:
    return kind == _EMPTY and kind in _kinds(case, rank) and rank % case.topology.ep > 0


def right(case: Case, values: Sequence[Any]) -> str:
    """Return what was seen."""
    if "calls" in case.options:
        return "the output and each gradient are those of each expert's own matrices"
    steps = f"{len(values[0])} steps"
    if case.options.get("compare"):
        return f"{steps} with tokens: output and all gradients bit-identical to the untouched forward"
    empty = ranges(rank for rank in range(len(values)) if _lacks_tokens(case, rank, _EMPTY))
    added = "" if case.options.get("ddp") else ", and all are zero there"  # replicas add their gradients
    return f"{steps}: rank {empty} has no token in one; every gradient of fc1 and fc2 exists{added}"
