"""megatron-core: the real distributed optimizer, and the real hybrid one inside, on weights that are loaded late.

The real DDP wraps a small model in bfloat16. Its weights are loaded once the optimizer is made, which then takes a
step, as torch's AdamW does in float32. Every tensor passes for one on a GPU, but those that the hybrid optimizer pins.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import math
import sys
from typing import Any

from ..cases import DIFFERS, PASSED, Case, Topology
from ..ranks import megatron, shims

_IS_LATE = "weights that are loaded after the optimizer is made, without its state"
_AT = "the weights are"
_ONE, _TWO = Topology(), Topology(dp=2)
_ALL, _HALF, _OFF = {"fraction": 1.0}, {"fraction": 0.5}, {"fraction": None}
_OVERLAP, _PRECISE = "overlap_cpu_optimizer_d2h_h2d", "use_precision_aware_optimizer"
_AWARE, _MAIN = {_PRECISE: True, "may_pass": True}, {"main": True}  # 0.12 has the defect with it, too
_RECIPE = "fp8_recipe"  # 0.13 has the defect with some of these
_LATE, _STEPPED = [True], {"late": [False, True]}  # of each step: whether weights are loaded before it
CASES = (
    Case("all", _ONE, DIFFERS, _AT, _ALL, core=True),
    Case("half-2", _TWO, DIFFERS, _AT, _HALF, core=True),
    Case("none-2", _TWO, DIFFERS, _AT, {"fraction": 0.0}),
    Case("main-params-2", _TWO, DIFFERS, _AT, {**_ALL, **_MAIN}, core=True),
    Case("overlapped-2", _TWO, DIFFERS, _AT, {**_ALL, _OVERLAP: True}),
    Case("stepped-2", _TWO, DIFFERS, _AT, {**_HALF, "late": [True, True]}),
    Case("aware-2", _TWO, DIFFERS, _AT, {**_HALF, **_AWARE}, core=True),
    Case("aware-blockwise", _ONE, DIFFERS, _AT, {**_ALL, **_AWARE, _RECIPE: "blockwise"}, core=True),
    Case("aware-stepped", _ONE, DIFFERS, _AT, {**_ALL, **_AWARE, **_STEPPED}),
    Case("not-late", _ONE, PASSED, options={**_ALL, "late": [False]}, core=True),
    Case("no-offload-2", _TWO, PASSED, options={**_OFF, **_MAIN}, core=True),
)
GRID = [
    *(case for case in CASES if _RECIPE not in case.options),
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
    recipe = case.options.get(_RECIPE)
    late = {_IS_LATE: case.options.get("late") != [False], "version megatron-core": "0.13.1" if recipe else "0.19.2"}
    known = {"optimizer_cpu_offload": case.options["fraction"] is not None, _PRECISE: _PRECISE in case.options}
    return None if "fsdp" in case.options else {**known, **late, _RECIPE: recipe}


def has_feature(function: ast.FunctionDef) -> bool:
    """Return whether the function knows the hybrid optimizer."""
    return "HybridDeviceOptimizer" in ast.unparse(function)


def prepare() -> None:
    """Import the optimizers for a CPU, without Transformer Engine, and with what upstream's own fix adds to them."""
    shims.cuda_on_cpu()
    import torch

    pinned = type("Pinned", (torch.Tensor,), {"is_cuda": False})
    torch.Tensor.is_cuda = property(lambda _: True)
    torch.Tensor.pin_memory = lambda self, *_: self.as_subclass(pinned)
    sys.modules.update(dict.fromkeys(("transformer_engine", "apex", "amp_C")))  # type: ignore[arg-type]
    importlib.import_module("megatron.core.distributed")
    module: Any = importlib.import_module("megatron.core.optimizer.distrib_optimizer")
    module.quantize_param_shard = lambda *_: None  # that of 0.12 refuses an empty list
    vars(sys.modules["megatron.core.optimizer.optimizer_config"]).update(is_te_min_version=lambda *_: False)
    as_it_is = (kind := module.DistributedOptimizer)._copy_model_params_to_main_params

    def without_offload(self: Any, state_dict: Any) -> None:
        hybrid, self.optimizer = self.optimizer, None
        as_it_is(self, state_dict)
        self.optimizer = hybrid

    def reload(self: Any) -> None:
        for param, inner in self.param_to_inner_param.items():
            inner.data.copy_(param)

    for name in ("ensure_master_weights_for_param_sync", "assert_master_weights_resident"):  # of a commit
        setattr(kind, name, getattr(kind, name, lambda *_: None))
    kind._copy_model_params_to_shard_main_params = without_offload
    if hasattr(module, "HybridDeviceOptimizer"):  # from 0.12 on
        module.HybridDeviceOptimizer.reload_model_params = reload


def on_rank(case: Case, rank: int) -> tuple[list[list[float]], str]:
    """Load the weights and take a step. Return them, and the precision that the load is due to keep, or ``none``."""
    import torch
    from megatron.core import distributed, optimizer
    from megatron.core.transformer.transformer_config import TransformerConfig

    shims.gloo_as_nccl()
    start, loaded, gradients = _weights()
    fraction, given = case.options["fraction"], {"bf16": True, "params_dtype": torch.bfloat16}
    with shims.on_cpu():
        megatron.initialize(case.topology)
        config = TransformerConfig(num_layers=1, hidden_size=4, num_attention_heads=4, **given)
        model = torch.nn.ParameterDict({name: torch.nn.Parameter(it.bfloat16()) for name, it in start.items()})
        sharded = distributed.DistributedDataParallelConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True)
        wrapped = distributed.DistributedDataParallel(config, sharded, model)
        given |= {"lr": _RATE, "weight_decay": 0.0, "clip_grad": 0.0, "use_distributed_optimizer": True}
        if fraction is not None and case.options.get("feature", True):
            given |= {"optimizer_cpu_offload": True, "optimizer_offload_fraction": fraction, "pin_cpu_grads": False}
            given |= {name: name in case.options for name in (_OVERLAP, _PRECISE)}
            given |= {name: case.options.get(name) for name in vars(optimizer.OptimizerConfig) if name == _RECIPE}
        make = optimizer.get_megatron_optimizer
        gloo = {name: False for name in inspect.signature(make).parameters if name == "use_gloo_process_groups"}
        updates = make(optimizer.OptimizerConfig(optimizer="adam", **given), [wrapped], **gloo)
        copy = getattr(updates, "chained_optimizers", [updates])[0]._copy_model_params_to_main_params
        is_fsdp = "fsdp" in case.options and "_fsdp" in str(copy.__code__.co_names)  # not in the hybrid's first commits
        main = {name: {"model": loaded} for name in inspect.signature(copy).parameters if "main" in case.options}
        for number, is_late in enumerate(case.options.get("late", _LATE), 1):
            if is_late:
                model.load_state_dict(loaded)
                sharded.use_custom_fsdp = sharded.use_megatron_fsdp = is_fsdp
                copy(**main)
                sharded.use_custom_fsdp = sharded.use_megatron_fsdp = False
            wrapped.zero_grad_buffer()
            updates.zero_grad()
            for name, param in model.items():
                param.main_grad.copy_(number * gradients[name])
            wrapped.finish_grad_sync()
            updates.step()
        due = "none" if is_fsdp else "float32" if main and _PRECISE not in case.options else "bfloat16"
        return [param.detach().flatten().tolist() for param in model.values()], due


def wrong(case: Case, ranks: list[tuple[list[list[float]], str]]) -> str:
    """Return where a rank's weights are not what torch's AdamW makes of them, whose moments stay at a load."""
    import torch

    start, loaded, gradients = _weights()
    params = {name: torch.nn.Parameter(it.bfloat16().float()) for name, it in start.items()}
    updates = torch.optim.AdamW(params.values(), lr=_RATE, weight_decay=0.0)
    for number, is_late in enumerate(case.options.get("late", _LATE), 1):
        for name, param in params.items():
            if is_late and ranks[0][1] != "none":
                param.data.copy_(loaded[name].to(getattr(torch, ranks[0][1])))
            param.grad = number * gradients[name]
        updates.step()
    due = [param.detach().bfloat16().flatten().tolist() for param in params.values()]
    each = [pair for weights, _ in ranks for pair in zip(weights, due)]
    return next((f"{_AT} {it[:3]} after a step, due {to[:3]}" for it, to in each if it != to), "")


def right(case: Case, ranks: list[tuple[list[list[float]], str]]) -> str:
    """Return what was seen."""
    return f"{_AT} {ranks[0][0][0][:3]} after a step, as due"


def _weights() -> list[dict[str, Any]]:
    """Return the weights to start from, those to load, which bfloat16 rounds, and the gradients."""
    import torch

    # two ranks share the second, half is offloaded on each, and a vector has a group of its own
    shapes = {"one": (4, 3), "two": (50, 2), "vector": (6,)}
    every = [torch.arange(float(math.prod(shape))).view(shape) for shape in shapes.values()]
    kinds = [(it / 8, 2.003 + 0.037 * it, it % 3 - 1.5) for it in every]
    return [dict(zip(shapes, kind)) for kind in zip(*kinds)]
