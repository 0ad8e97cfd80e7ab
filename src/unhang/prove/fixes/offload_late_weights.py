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
_ALL, _HALF, _OFF = {"fraction": 1.0}, {"fraction": 0.5}, {"fraction": None}
_PRECISE = "use_precision_aware_optimizer"
_AWARE, _MAIN, _STEPPED = {_PRECISE: True, "may_pass": True}, {"main": True}, {"steps": 1}  # 0.12 has it there too
CASES = (
    Case("all", _ONE, DIFFERS, _AT, _ALL, core=True),
    Case("half-2", _TWO, DIFFERS, _AT, _HALF, core=True),
    Case("none-2", _TWO, DIFFERS, _AT, {"fraction": 0.0}),
    Case("main-params-2", _TWO, DIFFERS, _AT, {**_ALL, **_MAIN}, core=True),
    Case("overlapped-2", _TWO, DIFFERS, _AT, {**_ALL, "overlap_cpu_optimizer_d2h_h2d": True}),
    Case("stepped-2", _TWO, DIFFERS, _AT, {**_HALF, **_STEPPED}),
    Case("aware-2", _TWO, DIFFERS, _AT, {**_HALF, **_AWARE}, core=True),
    Case("aware-stepped", _ONE, DIFFERS, _AT, {**_ALL, **_AWARE, **_STEPPED}),
    Case("not-late", _ONE, PASSED, options={**_ALL, "late": False}, core=True),
    Case("no-offload-2", _TWO, PASSED, options={**_OFF, **_MAIN}, core=True),
)
GRID = [
    *CASES,
    Case("no offload, the model's own", _TWO, PASSED, options=_OFF),
    # upstream refuses main parameters there, where else the model's are taken, and looks for some under Megatron-FSDP
    Case("aware, main parameters", _ONE, DIFFERS, options={**_ALL, **_AWARE, **_MAIN, "beyond": True}),
    Case("Megatron-FSDP", _ONE, PASSED, options={**_ALL, "fsdp": True, "beyond": True}),
]
HELD = {
    "fsdp:": "Megatron-FSDP without offload is refused from 0.19 on",
    "use_precision_aware": "only Transformer Engine's optimizer, on a GPU, gets here with it",
    "float8|quantized": "no weights in eight bits without a GPU",
}
YOURS = Case("yours", _TWO, DIFFERS, _AT, _HALF)
_RATE = 1.5


def settings(case: Case) -> dict[str, Any] | None:
    """Return what the user of a case's job sets; None where a wrapper is only said to be there."""
    known = {
        "optimizer_cpu_offload": case.options["fraction"] is not None,
        _PRECISE: _PRECISE in case.options,
        "version megatron-core": "0.19.2",
        "weights that are loaded after the optimizer is made, without its state": case.options.get("late", True),
    }
    return None if "fsdp" in case.options else known


def has_feature(function: ast.FunctionDef) -> bool:
    """Return whether the function knows the hybrid optimizer."""
    return "HybridDeviceOptimizer" in ast.unparse(function)


def caveat(case: Case) -> str:
    """Return what the case supposes of the user's job."""
    return "" if case.is_control else "supposes weights that are loaded late, and reload_model_params() after that"


def prepare() -> None:
    """Import the optimizers for a CPU, without Transformer Engine, and with what upstream's own fix adds to them."""
    shims.cuda_on_cpu()
    import torch

    pinned = type("Pinned", (torch.Tensor,), {"is_cuda": False})
    torch.Tensor.is_cuda = property(lambda _: True)
    torch.Tensor.pin_memory = lambda self, *_: self.as_subclass(pinned)
    sys.modules.update(dict.fromkeys(("transformer_engine", "apex", "amp_C")))  # type: ignore[arg-type]
    importlib.import_module("megatron.core.distributed")
    module, config = (_module(name) for name in ("distrib_optimizer", "optimizer_config"))
    module.quantize_param_shard = lambda *_: None  # that of 0.12 refuses an empty list
    config.is_te_min_version = lambda *_: False
    as_it_is = module.DistributedOptimizer._copy_model_params_to_main_params

    def without_offload(self: Any, state_dict: Any) -> None:
        hybrid, self.optimizer = self.optimizer, None
        as_it_is(self, state_dict)
        self.optimizer = hybrid

    def reload(self: Any) -> None:
        for param, inner in self.param_to_inner_param.items():
            inner.data.copy_(param)

    kind = module.DistributedOptimizer
    for name in ("ensure_master_weights_for_param_sync", "assert_master_weights_resident"):  # of a commit
        setattr(kind, name, getattr(kind, name, lambda *_: None))
    kind._copy_model_params_to_shard_main_params = without_offload
    if hasattr(module, "HybridDeviceOptimizer"):  # from 0.12 on
        module.HybridDeviceOptimizer.reload_model_params = reload


def on_rank(case: Case, rank: int) -> tuple[list[list[float]], bool]:
    """Load the weights and take a step; return them, and whether main parameters were asked for."""
    import torch
    from megatron.core import distributed, optimizer
    from megatron.core.transformer.transformer_config import TransformerConfig

    shims.gloo_as_nccl()
    fraction, given = case.options["fraction"], {"bf16": True, "params_dtype": torch.bfloat16}
    with shims.on_cpu():
        megatron.initialize(case.topology)
        config = TransformerConfig(num_layers=1, hidden_size=4, num_attention_heads=4, **given)
        start, loaded, gradients = _weights()
        model = torch.nn.ParameterDict({name: torch.nn.Parameter(it.bfloat16()) for name, it in start.items()})
        sharded = distributed.DistributedDataParallelConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True)
        wrapped = distributed.DistributedDataParallel(config, sharded, model)
        if fraction is not None and case.options.get("feature", True):
            given |= {"optimizer_cpu_offload": True, "optimizer_offload_fraction": fraction, "pin_cpu_grads": False}
            given |= {name: name in case.options for name in ("overlap_cpu_optimizer_d2h_h2d", _PRECISE)}
        given |= {"lr": _RATE, "weight_decay": 0.0, "clip_grad": 0.0, "use_distributed_optimizer": True}
        known = inspect.signature(optimizer.get_megatron_optimizer).parameters
        gloo = {name: False for name in ("use_gloo_process_groups",) if name in known}
        updates = optimizer.get_megatron_optimizer(
            optimizer.OptimizerConfig(optimizer="adam", **given), [wrapped], **gloo
        )
        (each,) = getattr(updates, "chained_optimizers", [updates])
        copy, main = each._copy_model_params_to_main_params, {}  # all that reload_model_params() calls
        if case.options.get("main") and "state_dict" in inspect.signature(copy).parameters:
            main = {"state_dict": {"model": loaded}}
        for number, is_late in enumerate(_loads(case), 1):
            if is_late:
                for name, param in model.items():
                    param.data.copy_(loaded[name])
                sharded.use_custom_fsdp = sharded.use_megatron_fsdp = "fsdp" in case.options
                copy(**main)
                sharded.use_custom_fsdp = sharded.use_megatron_fsdp = False
            wrapped.zero_grad_buffer()
            updates.zero_grad()
            for name, param in model.items():
                param.main_grad.copy_(number * gradients[name])
            wrapped.finish_grad_sync()
            updates.step()
        return [param.detach().flatten().tolist() for param in model.values()], bool(main)


def wrong(case: Case, ranks: Sequence[tuple[list[list[float]], bool]]) -> str:
    """Return what is wrong with the weights of a rank; empty where nothing is.

    Due is what torch's AdamW makes of them in float32. Its moments stay when others are loaded.
    """
    import torch

    start, loaded, gradients = _weights()
    params = {name: torch.nn.Parameter(it.bfloat16().float()) for name, it in start.items()}
    updates = torch.optim.AdamW(params.values(), lr=_RATE, weight_decay=0.0)
    for number, is_late in enumerate(_loads(case), 1):
        for name, param in params.items():
            if is_late and "fsdp" not in case.options:
                is_main = ranks[0][1] and _PRECISE not in case.options
                param.data.copy_(loaded[name] if is_main else loaded[name].bfloat16())
            param.grad = number * gradients[name]
        updates.step()
    due = [param.detach().bfloat16().flatten().tolist() for param in params.values()]
    return next((f"{_AT} {it[0][:3]} after a step, due {due[0][:3]}" for it, _ in ranks if it != due), "")


def right(case: Case, ranks: Sequence[tuple[list[list[float]], bool]]) -> str:
    """Return what was seen."""
    return f"{_AT} {ranks[0][0][0][:3]} after a step, as due"


def _loads(case: Case) -> list[bool]:
    """Return of each step whether weights are loaded before it."""
    return [False] * case.options.get("steps", 0) + [case.options.get("late", True)]


def _weights() -> list[dict[str, Any]]:
    """Return the weights to start from, those to load, which bfloat16 rounds, and the gradients.

    Neither a rank's part nor half of the elements ends where a weight does.
    """
    import torch

    sizes = {"one": torch.arange(12.0).view(4, 3), "two": torch.arange(10.0).view(5, 2)}
    kinds = [(it / 8, 2.003 + 0.037 * it, it % 3 - 1.5) for it in sizes.values()]
    return [dict(zip(sizes, kind)) for kind in zip(*kinds)]


def _module(name: str) -> Any:
    return importlib.import_module(f"megatron.core.optimizer.{name}")
