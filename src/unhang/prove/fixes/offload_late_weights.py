"""megatron-core: the real distributed optimizer and the real hybrid one inside, on weights that are loaded late.

A small model in bfloat16 is wrapped by the real DDP, on real ranks. Its weights are loaded once the optimizer is made,
and it takes a step; torch's AdamW in float32, on the loaded weights, is the reference. On a CPU, every tensor passes
for one on a GPU, but those that the hybrid optimizer pins.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from typing import TYPE_CHECKING, Any

from ..cases import DIFFERS, PASSED, Case, Topology
from ..ranks import megatron, shims

if TYPE_CHECKING:
    from collections.abc import Sequence

_AT = "the weights are"
_ONE, _TWO = Topology(), Topology(dp=2)
_ALL, _HALF, _NONE, _OFF = ({"fraction": it} for it in (1.0, 0.5, 0.0, None))
_AWARE, _MAIN = {"aware": True, "may_pass": True}, {"main": True}  # up to 0.12 it is wrong too
CASES = (
    Case("all", _ONE, DIFFERS, _AT, _ALL, core=True),
    Case("half-2", _TWO, DIFFERS, _AT, _HALF, core=True),
    Case("none-2", _TWO, DIFFERS, _AT, _NONE),
    Case("main-params-2", _TWO, DIFFERS, _AT, {**_ALL, **_MAIN}, core=True),
    Case("aware-2", _TWO, DIFFERS, _AT, {**_ALL, **_AWARE}, core=True),
    Case("not-late", _ONE, PASSED, options={**_ALL, "late": False}, core=True),
    Case("no-offload-2", _TWO, PASSED, options=_OFF, core=True),
)
GRID = [
    *(it._replace(name=f"the case {it.name}") for it in CASES),
    Case("after a step", _TWO, DIFFERS, options={**_HALF, "steps": 1}),
    Case("overlapped", _TWO, DIFFERS, options={**_ALL, "overlap": True}),
    Case("aware, half", _TWO, DIFFERS, options={**_HALF, **_AWARE}),
    Case("aware, after a step", _ONE, DIFFERS, options={**_ALL, **_AWARE, "steps": 1}),
    # upstream refuses main parameters there; else it is the model's that are taken
    Case("aware, main parameters", _ONE, DIFFERS, options={**_ALL, **_AWARE, **_MAIN, "beyond": True}),
    Case("main parameters, not offloaded", _TWO, PASSED, options={**_OFF, **_MAIN}),
    Case("Megatron-FSDP", _ONE, PASSED, options={**_ALL, "fsdp": True}),
]
HELD = {
    r"fsdp:": "Megatron-FSDP without offload is refused from 0.19 on",
    r"use_precision_aware": "only Transformer Engine's optimizer, on a GPU, gets here with it",
    r"float8|quantized": "no weights in eight bits without a GPU",
}
YOURS = Case("yours", _TWO, DIFFERS, _AT, _HALF)
_OPTIMIZER = "megatron.core.optimizer"
_SHAPES, _RATE = {"one": (4, 3), "two": (5, 2)}, 1.5
"""Neither two ranks nor half of the elements end where a weight does."""


def settings(case: Case) -> dict[str, Any] | None:
    """Return what the user of a case's job sets; None where a wrapper is only said to be there."""
    if case.options.get("fsdp"):
        return None
    return {
        "optimizer_cpu_offload": case.options["fraction"] is not None,
        "use_precision_aware_optimizer": case.options.get("aware", False),
        "version megatron-core": "0.19.2",
        "weights that are loaded after the optimizer is made, without its state": case.options.get("late", True),
    }


def has_feature(function: ast.FunctionDef) -> bool:
    """Return whether the function knows the hybrid optimizer."""
    return "HybridDeviceOptimizer" in ast.unparse(function)


def caveat(case: Case) -> str:
    """Return what the case supposes of the user's job."""
    return "" if case.is_control else "supposes weights that are loaded late, and reload_model_params() after that"


def prepare() -> None:
    """Import the optimizers for a CPU, without Transformer Engine, with what upstream's own fix calls."""
    shims.cuda_on_cpu()
    import torch

    pinned = type("Pinned", (torch.Tensor,), {"is_cuda": False})
    torch.Tensor.is_cuda = property(lambda _: True)
    torch.Tensor.pin_memory = lambda self, *_: self.as_subclass(pinned)
    sys.modules.update(dict.fromkeys(("transformer_engine", "apex", "amp_C")))  # type: ignore[arg-type]
    importlib.import_module("megatron.core.distributed")
    module = importlib.import_module(f"{_OPTIMIZER}.distrib_optimizer")
    module.quantize_param_shard = lambda *_: None  # that of 0.12 refuses an empty list
    importlib.import_module(f"{_OPTIMIZER}.optimizer_config").is_te_min_version = lambda *_: False
    kind, copy = module.DistributedOptimizer, module.DistributedOptimizer._copy_model_params_to_main_params

    def as_without_offload(self: Any, state_dict: Any) -> None:
        hybrid, self.optimizer = self.optimizer, None
        copy(self, state_dict)
        self.optimizer = hybrid

    def reload(self: Any) -> None:
        for param, inner in self.param_to_inner_param.items():
            inner.data.copy_(param)

    if not hasattr(kind, "_copy_model_params_to_shard_main_params"):
        kind._copy_model_params_to_shard_main_params = as_without_offload
        if hasattr(module, "HybridDeviceOptimizer"):  # from 0.12 on
            module.HybridDeviceOptimizer.reload_model_params = reload


def on_rank(case: Case, rank: int) -> list[list[float]]:
    """Load the weights, take a step, and return them."""
    import torch
    from megatron.core import distributed, optimizer
    from megatron.core.transformer.transformer_config import TransformerConfig

    shims.gloo_as_nccl()
    options, half = case.options, {"bf16": True, "params_dtype": torch.bfloat16}
    offload = {} if options["fraction"] is None or not options.get("feature", True) else {
        **{"optimizer_cpu_offload": True, "optimizer_offload_fraction": options["fraction"], "pin_cpu_grads": False},
        **{"use_precision_aware_optimizer": options.get("aware", False)},
        **{"overlap_cpu_optimizer_d2h_h2d": options.get("overlap", False)},
    }  # fmt: skip
    with shims.on_cpu():
        megatron.initialize(case.topology)
        config = TransformerConfig(num_layers=1, hidden_size=4, num_attention_heads=4, **half)
        start, loaded = _weights()
        model = torch.nn.ParameterDict({name: torch.nn.Parameter(it.bfloat16()) for name, it in start.items()})
        sharded = distributed.DistributedDataParallelConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True)
        wrapped = distributed.DistributedDataParallel(config, sharded, model)
        given = {**half, **offload, "lr": _RATE, "weight_decay": 0.0, "clip_grad": 0.0}
        known = inspect.signature(optimizer.get_megatron_optimizer).parameters
        updates = optimizer.get_megatron_optimizer(
            optimizer.OptimizerConfig(optimizer="adam", use_distributed_optimizer=True, **given),
            [wrapped],
            **{name: False for name in ("use_gloo_process_groups",) if name in known},
        )
        for step in range(options.get("steps", 0) + 1):
            if step == options.get("steps", 0) and options.get("late", True):
                for name, param in model.items():
                    param.data.copy_(loaded[name])
                _reload(updates, {"model": loaded} if options.get("main") else None, options.get("fsdp", False))
            wrapped.zero_grad_buffer()
            updates.zero_grad()
            for number, param in enumerate(model.values()):
                param.main_grad.copy_(_gradient(param.shape, number + step))
            wrapped.finish_grad_sync()
            updates.step()
        return [param.detach().flatten().tolist() for param in model.values()]


def wrong(case: Case, ranks: Sequence[list[list[float]]]) -> str:
    """Return what is wrong with the weights of a rank; empty where nothing is."""
    due = _due(case)
    return next((f"{_AT} {_few(it)} after a step, due {_few(due)}" for it in ranks if it != due), "")


def right(case: Case, ranks: Sequence[list[list[float]]]) -> str:
    """Return what was seen."""
    return f"{_AT} {_few(ranks[0])} after a step, as due"


def _due(case: Case) -> list[list[float]]:
    """Return what torch's AdamW makes of the weights in float32; their moments stay when others are loaded."""
    import torch

    options, (start, loaded) = case.options, _weights()
    if not (options.get("main") and not options.get("aware") and _takes_main()):
        loaded = {name: it.bfloat16() for name, it in loaded.items()}
    params = [torch.nn.Parameter(it.bfloat16().float()) for it in start.values()]
    updates = torch.optim.AdamW(params, lr=_RATE, weight_decay=0.0)
    for step in range(options.get("steps", 0) + 1):
        for number, (param, late) in enumerate(zip(params, loaded.values())):
            if step == options.get("steps", 0) and options.get("late", True) and not options.get("fsdp"):
                param.data.copy_(late)
            param.grad = _gradient(param.shape, number + step)
        updates.step()
    return [param.detach().bfloat16().flatten().tolist() for param in params]


def _weights() -> list[dict[str, Any]]:
    """Return the weights to start from, and those to load, which bfloat16 rounds."""
    import torch

    sizes = {name: torch.arange(rows * columns).view(rows, columns) for name, (rows, columns) in _SHAPES.items()}
    return [{name: it / 8 for name, it in sizes.items()}, {name: 2.003 + 0.037 * it for name, it in sizes.items()}]


def _gradient(shape: Sequence[int], number: int) -> Any:
    import torch

    return (torch.arange(shape[0] * shape[1]).view(*shape) + number) % 3 - 1.5


def _reload(updates: Any, main: Any, is_fsdp: bool) -> None:
    """Call ``reload_model_params``, with main parameters where it takes some; under Megatron-FSDP if that is said."""
    for each in getattr(updates, "chained_optimizers", [updates]):
        name = "use_megatron_fsdp" if hasattr(each.ddp_config, "use_megatron_fsdp") else "use_custom_fsdp"
        setattr(each.ddp_config, name, is_fsdp)
        each.reload_model_params(**{"state_dict": main} if _takes_main() else {})
        setattr(each.ddp_config, name, False)


def _takes_main() -> bool:
    module = importlib.import_module(f"{_OPTIMIZER}.optimizer")
    return "state_dict" in inspect.signature(module.MegatronOptimizer.reload_model_params).parameters


def _few(weights: list[list[float]]) -> list[float]:
    return [round(value, 4) for value in weights[0][:3]]
