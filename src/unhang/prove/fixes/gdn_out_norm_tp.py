"""megatron-core: the real finalizer of gradients, after a backward pass through the real gated norm, on real ranks.

The model is small: a norm of the input, the output norm of a gated delta net with its gate, and the norm of another
module that all ranks have in whole; another output norm is in a chunk of its own. Its norms are torch's. What lies
between them, the delta rule and the projections, is left out: each rank takes its own heads of what the norm of the
input gives. All heads in one process are the reference. The default has no sequence parallelism. The gradients of
``_OTHERS`` are made up.
"""

from __future__ import annotations

import importlib
import inspect
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..cases import DIFFERS, PASSED, Case, Topology
from ..ranks import megatron, shims

if TYPE_CHECKING:
    from collections.abc import Sequence

_NORM = "self_attention.out_norm."
_TWO, _FOUR = Topology(tp=2), Topology(tp=4)
_SP, _BIAS, _QK = {"sequence_parallel": True}, {"norm": "LayerNorm"}, {"qk_layernorm": True}
_FSDP = {"grad": "megatron-fsdp"}
CASES = (
    Case("tp2", _TWO, DIFFERS, _NORM, core=True),
    Case("tp2-bias", _TWO, DIFFERS, f"{_NORM}bias", _BIAS, core=True),
    Case("tp4", _FOUR, DIFFERS, _NORM),
    Case("tp2-dp2", Topology(tp=2, dp=2), DIFFERS, _NORM),
    Case("tp2-sequence-parallel", _TWO, PASSED, options=_SP, core=True),
    Case("tp2-bias-sequence-parallel", _TWO, PASSED, options={**_SP, **_BIAS}),
    Case("tp1", Topology(), PASSED, core=True),
    Case("tp2-own-norm", _TWO, PASSED, options={"own": True}, patched=DIFFERS),
)
_SUMS = "_allreduce_non_tensor_model_parallel_grads"
_GATED = ("GatedDeltaNet._torch_compiled_gated_norm", "GatedDeltaNet._apply_gated_norm", "_GDNBase._apply_gated_norm")
GRID = [
    *(it._replace(options={**it.options, "of": [_SUMS]}) for it in CASES if it.patched == PASSED),
    *(
        Case(name, _TWO, untouched, options={**options, "of": [_SUMS]})
        for name, untouched, options in (
            ("norms of query and key", DIFFERS, _QK),
            ("norms of query and key, sequence parallel", PASSED, {**_QK, **_SP}),
            ("Megatron-FSDP", DIFFERS, _FSDP),
            ("Megatron-FSDP, sequence parallel", PASSED, {**_FSDP, **_SP}),
            ("Megatron-FSDP, no gradient", PASSED, {**_FSDP, **_SP, "lacks": "none"}),
            ("distributed tensors", DIFFERS, {"grad": "distributed"}),
            ("frozen", PASSED, {"lacks": "frozen"}),
        )
    ),
    Case("a gated norm", _TWO, DIFFERS, options={"of": _GATED}),
    Case("a gated norm of all heads", Topology(), PASSED, options={"of": _GATED}),
]
_LAYER = "decoder.layers.1"
_PART, _WHOLE, _MEAN, _SPLIT = "part", "whole", "mean", "split"
"""What a rank has of a gradient: a part of the sum; the whole; an estimate; its own slice."""
_OTHERS = {
    "decoder.layers.0.self_attention.linear_qkv.weight": _SPLIT,
    f"{_LAYER}.cross_attention.out_norm.bias": _WHOLE,
    f"{_LAYER}.self_attention.out_norm_of_all.weight": _WHOLE,
    f"{_LAYER}.my_self_attention.out_norm.weight": _WHOLE,
    f"{_LAYER}.self_attention.my_out_norm.weight": _WHOLE,
    f"{_LAYER}.self_attention.norm.weight": _WHOLE,
    f"{_LAYER}.self_attention.in_proj.weight": _SPLIT,
    "decoder.layers.2.self_attention.out_norm.weight": _SPLIT,
    f"{_LAYER}.mlp.router.weight": _MEAN,
    "decoder.layers.0.self_attention.out_norm.weight": _PART,
}
_OF_QK = dict.fromkeys((f"decoder.layers.0.self_attention.{it}_layernorm.weight" for it in "qk"), _PART)
YOURS = Case("yours", _TWO, DIFFERS, _NORM)
RULED_OUT = ("tp", "with TP 1 one rank has all heads")
_TOKENS, _WIDTH = 8, 3


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of a case's job sets."""
    own = case.options.get("own", False)
    return {
        "experimental_attention_variant": None if own else "gated_delta_net",
        "tensor_model_parallel_size": case.topology.tp,
        "sequence_parallel": case.options.get("sequence_parallel", False),
        "training of the output norms": case.options.get("lacks") != "frozen",
        "a self_attention.out_norm of your own that each rank computes whole": own,
    }


def caveat(case: Case) -> str:
    """Return what the case supposes of the user's job."""
    return "" if case.is_control else "supposes gated delta nets, and no sequence parallelism"


def prepare() -> None:
    """Import megatron-core for a CPU. Up to 0.14 the finalizer asks for the gradient with another argument."""
    shims.cuda_on_cpu()
    import torch

    torch.compile = lambda function, **_: function  # it needs a compiler for C++
    finalizer, _ = _finalizer(), _gated_norm()
    attribute = finalizer._get_main_grad_attr
    finalizer._get_main_grad_attr = lambda param, *_: attribute(param)


class Grad(NamedTuple):
    """The gradient of a parameter on a rank, rounded."""

    before: list[float] | None
    after: list[float] | None
    """What the finalizer leaves."""
    again: list[float] | None
    """Half of what it leaves in a second step, in which all gradients are twice as large."""
    due: list[float] | None


def on_rank(case: Case, rank: int) -> dict[str, Grad]:
    """Return what this rank has of each gradient, before the finalizer and after, and what is due."""
    import torch

    options, lacks = case.options, case.options.get("lacks")
    function = getattr(_finalizer(), _SUMS)
    shims.gloo_as_nccl()
    megatron.initialize(case.topology)
    part = rank % case.topology.tp
    model, whole = (_model(case, part, is_due) for is_due in (False, True))
    _loss(case, model, None if options.get("own") else part).backward()
    _loss(case, whole).backward()
    named, due = ({name: it for one in chunks for name, it in one.named_parameters()} for chunks in (model, whole))
    if lacks == "frozen" or "is None" in inspect.getsource(function):  # older ones fail without any
        for name in (it for it in named if lacks and (_NORM in it or named[it].average_gradients_across_tp_domain)):
            named[name].requires_grad_(lacks != "frozen")
            named[name].grad = due[name].grad = named[name].grad if lacks == "frozen" else None
    before = {name: _values(it.grad) for name, it in named.items()}
    kind = options.get("grad", "grad")
    attribute = "grad" if kind == "grad" else "main_grad"
    if kind != "grad":
        sizes = case.topology.world, 1
        mesh = torch.distributed.device_mesh.init_device_mesh(shims.DEVICE, sizes, mesh_dim_names=("tp", "dp"))["dp"]
        for param in named.values():
            of_mesh = torch.distributed.tensor.DTensor.from_local
            param.main_grad = None if param.grad is None else of_mesh(param.grad, mesh)
            param.data = param.data.bfloat16()
    for chunk in model:
        chunk.ddp_config = SimpleNamespace(use_custom_fsdp=False, use_megatron_fsdp=kind == "megatron-fsdp")
    config = {it: bool(options.get(it)) for it in ("sequence_parallel", "qk_layernorm")}
    first, steps = {name: getattr(it, attribute) for name, it in named.items()}, []
    for step in (1, 2):
        for name, it in first.items():
            setattr(named[name], attribute, None if it is None else it * step)
        if options.get("of") != _GATED:
            function(model, SimpleNamespace(**config))
        steps.append({name: _values(getattr(it, attribute), step) for name, it in named.items()})
    after, again = steps
    return {name: Grad(before[name], it, again[name], _values(due[name].grad)) for name, it in after.items()}


def wrong(case: Case, ranks: Sequence[dict[str, Grad]]) -> str:
    """Return the gradients of the last parameter that are not those of all heads; empty where all are."""
    for name in reversed(ranks[0]):
        found = [rank[name] for rank in ranks]
        if any(not _close(it) for it in found):
            each = (f"rank {at}: {it.before}, then {it.after}" for at, it in enumerate(found))
            return f"the gradient of {name} is due {found[0].due}; {'; '.join(each)}"
    return ""


def right(case: Case, ranks: Sequence[dict[str, Grad]]) -> str:
    """Return what was seen."""
    norms = [name for name in ranks[0] if name.startswith(f"{_LAYER}.{_NORM}")]
    return f"{', '.join(f'{name} {ranks[0][name].after}' for name in norms)}, as of all heads"


def _values(grad: Any, step: int = 1) -> list[float] | None:
    """Return a gradient, in whole where it is a distributed tensor, in as many digits as no order of a sum changes."""
    if grad is None:
        return None
    return [round(value / step, 4) for value in getattr(grad, "_local_tensor", grad).tolist()]


def _close(grad: Grad) -> bool:
    found, due = (grad.after, grad.again), grad.due
    if due is None:
        return found == (None, None)
    return all(it is not None and all(abs(one - other) < 3e-4 for one, other in zip(it, due)) for it in found)


def _loss(case: Case, model: Sequence[Any], part: int | None = None) -> Any:
    """Return the loss of the heads of one rank and of the tokens that every rank has in whole; or of all heads."""
    import torch
    from megatron.core.tensor_parallel import mappings

    heads, tp = 2 * case.topology.tp, case.topology.tp
    random = torch.Generator().manual_seed(1)
    inputs, gate, scale = (torch.randn(_TOKENS, heads, _WIDTH, generator=random) for _ in range(3))
    mtp, main = model
    layer = main.get_submodule(_LAYER)
    mine, own = inputs, slice(None)
    if part is not None:
        own = slice(part * heads // tp, (part + 1) * heads // tp)
    if part is not None and case.options.get("sequence_parallel"):
        mine = mine[part * _TOKENS // tp : (part + 1) * _TOKENS // tp]
    hidden = layer.input_layernorm(mine.flatten(1))
    if part is not None and case.options.get("sequence_parallel"):
        hidden = mappings.gather_from_sequence_parallel_region(hidden)
    elif part is not None:
        hidden = mappings.copy_to_tensor_model_parallel_region(hidden)
    loss = (main.vision_model.encoder.out_norm(inputs) * scale).sum()
    of_heads = hidden.view(_TOKENS, heads, _WIDTH)[:, own].contiguous()
    for attention, states in ((layer.self_attention, of_heads), (mtp.mtp.self_attention, inputs[:, own].contiguous())):
        gated = _gated_norm()(attention, states, gate[:, own].contiguous())
        loss = loss + (gated * scale[:, own].reshape(-1, _WIDTH)).sum()
    return loss


def _model(case: Case, rank: int, whole: bool) -> Sequence[Any]:
    """Return the two chunks of a model, with the gradients that are made up: those of a rank, or those due there."""
    import torch

    mtp, main = torch.nn.Module(), torch.nn.Module()
    norm = getattr(torch.nn, case.options.get("norm", "RMSNorm"))
    kinds = {**_OTHERS, **(_OF_QK if case.options.get("qk_layernorm") else {})}
    for place, (name, kind) in enumerate(kinds.items()):
        param = torch.nn.Parameter(torch.zeros(1 + place % 3))
        parts = [100.0 * place + (1 + at) ** 2 for at in range(case.topology.tp)]
        due = {_PART: sum(parts), _MEAN: sum(parts) / len(parts)} if whole else {}
        param.grad = torch.full_like(param, due.get(kind, parts[rank * (kind != _WHOLE)]))
        _at(main, name, param)
    _at(main, f"{_LAYER}.input_layernorm", norm(2 * case.topology.tp * _WIDTH))
    for chunk, layer in ((mtp, "mtp"), (main, _LAYER)):
        _at(chunk, f"{layer}.{_NORM}"[:-1], norm(_WIDTH))
        chunk.get_submodule(f"{layer}.self_attention").act_fn = torch.nn.functional.silu
    _at(main, "vision_model.encoder.out_norm", norm(_WIDTH))
    for name, param in (*mtp.named_parameters(), *main.named_parameters()):
        kind = kinds.get(name, _WHOLE if name.startswith("vision") else _PART)
        param.sequence_parallel = bool(case.options.get("sequence_parallel")) and kind == _PART
        param.average_gradients_across_tp_domain = kind == _MEAN
        if not name.endswith("bias"):  # megatron-core sets it on all, and other trainers on those that are split
            param.tensor_model_parallel = kind == _SPLIT
    return mtp, main


def _at(module: Any, name: str, part: Any) -> None:
    """Put a module or a parameter into a module, by its qualified name."""
    *path, own = name.split(".")
    for step in path:
        if not hasattr(module, step):
            module.add_module(step, type(module)())
        module = getattr(module, step)
    setattr(module, own, part)


def _finalizer() -> Any:
    return importlib.import_module("megatron.core.distributed.finalize_model_grads")


def _gated_norm() -> Any:
    """Return the release's own function: the output norm of the heads, times their gate."""
    of = importlib.import_module("megatron.core.ssm.gated_delta_net").GatedDeltaNet
    return getattr(of, "_torch_compiled_gated_norm", None) or of._apply_gated_norm
