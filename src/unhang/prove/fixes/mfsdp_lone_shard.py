"""megatron-core: the real Megatron-FSDP on real ranks, several micro-batches, beside the same model in one process.

Each rank has an expert of its own, or part of one that all have. gloo gets NCCL's mean and its sum of what is scaled
first. A hook stands in for Transformer Engine's fused accumulation: it writes where Megatron-FSDP says, and over or
upon what is there.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from typing import TYPE_CHECKING, Any

from ..cases import DIFFERS, PASSED, Case, Topology
from ..ranks import shims

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Gradients = Mapping[str, list[float]]

_AT = "the gradient of"
_ONE, _TWO, _OWN = Topology(), Topology(dp=2), Topology(dp=2, ep=2)
_NARROW, _BATCHES = {"grad_comm_dtype": "bfloat16"}, 3
_SUMS, _FUSED = {"calculate_per_token_loss": True}, {"gradient_accumulation_fusion": True}
_GRADS, _ONCE = "optim_grads", {"batches": 1}
CASES = (
    Case("own-experts", _OWN, DIFFERS, f"{_AT} 0.experts.0.weight", core=True),
    Case("own-experts-weights-whole", _OWN, DIFFERS, _AT, {"strategy": _GRADS}),
    Case("own-experts-bf16", _OWN, DIFFERS, _AT, _NARROW, core=True),
    Case("own-experts-fused", _OWN, DIFFERS, _AT, _FUSED, core=True),
    Case("one-rank-bf16", _ONE, DIFFERS, _AT, _NARROW),
    Case("shared-experts", _TWO, PASSED, core=True),
    Case("shared-experts-fused", _TWO, PASSED, options=_FUSED),
    Case("own-experts-no-shard", _OWN, PASSED, options={"strategy": "no_shard"}, core=True),
)
GRID = [
    *(case for case in CASES),
    Case("own, a loss per token", _OWN, PASSED, options={**_SUMS, "newer": True}),
    Case("own, a loss per token, bf16", _OWN, DIFFERS, options={**_SUMS, **_NARROW}),
    Case("own, mean in the collective", _OWN, PASSED, options={"average_in_collective": True, "newer": True}),
    Case("own, scaled before", _OWN, DIFFERS, options={"gradient_reduce_div_fusion": False}),
    Case("own, one micro-batch", _OWN, PASSED, options={**_ONCE, "newer": True}),
    Case("own, one micro-batch, bf16", _OWN, DIFFERS, options={**_ONCE, **_NARROW}),
    Case("own, optimizer's states", _OWN, PASSED, options={"strategy": "optim", "newer": True}),
    Case("one rank", _ONE, PASSED, options={"newer": True}),
    Case("shared, bf16", _TWO, PASSED, options=_NARROW),
    Case("shared, weights whole", _TWO, PASSED, options={"strategy": _GRADS}),
    Case("shared, scaled before", _TWO, PASSED, options={"gradient_reduce_div_fusion": False}),
    Case("shared, outer ranks", _TWO, DIFFERS, options={"outer": "no_shard"}),
    Case("shared, outer ranks sharded", _TWO, DIFFERS, options={"outer": "optim"}),
]
HELD: dict[str, str] = {}
YOURS = Case("yours", _OWN, DIFFERS, _AT)


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of a case's job sets."""
    return {}


def has_feature(function: ast.FunctionDef) -> bool:
    """Return whether gradients can be sharded."""
    return "is_grad_buffer_distributed" in ast.unparse(function)


def prepare() -> None:
    """Import Megatron-FSDP for a CPU, and let gloo scale what it reduces."""
    shims.cuda_on_cpu()
    import torch
    import torch.distributed as dist
    from torch.distributed import device_mesh

    torch.cuda.current_device = lambda: 0  # a part of a device's name
    vars(device_mesh._mesh_resources).setdefault("child_to_root_mapping", {})
    dist._make_nccl_premul_sum = Scaled
    for name in ("all_reduce", "reduce_scatter_tensor"):
        setattr(dist, name, _scaling(getattr(dist, name)))
    _module()


class Scaled(float):
    """NCCL's sum of what each rank scales first."""


def _scaling(reduce: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of torch.distributed which also takes the scaled sum and the mean."""
    import torch.distributed as dist

    takes = inspect.signature(reduce)

    def scaled(*args: Any, **kwargs: Any) -> Any:
        given = takes.bind(*args, **kwargs)
        operation, last = given.arguments.get("op"), [*takes.parameters][int("input" in takes.parameters)]
        if isinstance(operation, Scaled) or operation == dist.ReduceOp.AVG:
            factor = float(operation) if isinstance(operation, Scaled) else 1 / given.arguments["group"].size()
            if last == "input":  # stays as it is
                given.arguments[last] = given.arguments[last] * factor
            else:
                given.arguments[last].mul_(factor)
            given.arguments["op"] = dist.ReduceOp.SUM
        return reduce(*given.args, **given.kwargs)

    return scaled


def on_rank(case: Case, rank: int) -> Gradients:
    """Run the micro-batches under Megatron-FSDP. Return this rank's part of each gradient."""
    import torch
    from torch.distributed import device_mesh

    world, options, wrap = case.topology.world, case.options, _module().fully_shard_model
    takes = inspect.signature(wrap).parameters
    outer = options.get("outer")
    sizes = {"outer": world, "dp": 1, "tp": 1} if outer else {"dp": world, "tp": 1}
    mesh = device_mesh.init_device_mesh(shims.DEVICE, (*sizes.values(),), mesh_dim_names=(*sizes,))
    experts = {"ep": case.topology.ep, **sizes, "dp": sizes["dp"] // case.topology.ep}
    theirs = device_mesh.init_device_mesh(shims.DEVICE, (*experts.values(),), mesh_dim_names=(*experts,))[(*sizes,)]
    given: dict[str, Any] = {"device_mesh": mesh, "expt_device_mesh": theirs, "dp_shard_dim": "dp", "tp_dim": "tp"}
    if outer:
        given |= {"dp_outer_dim": "outer", "outer_dp_sharding_strategy": outer}
        given |= dict.fromkeys(("hybrid_fsdp_group", "hybrid_fsdp_expt_group"), torch.distributed.group.WORLD)
    if "mixed_precision_policy" in takes:
        narrow = getattr(torch, options["grad_comm_dtype"]) if "grad_comm_dtype" in options else None
        given["mixed_precision_policy"] = _module().MixedPrecisionPolicy(grad_comm_dtype=narrow)
    given |= {name: options.get(name, False) for name in ("average_in_collective", "calculate_per_token_loss")}
    start = _model(rank if case.topology.ep > 1 else 0)
    if _FUSED.items() <= options.items():
        for it in start.parameters():
            it.register_post_accumulate_grad_hook(_fused)
    model = wrap(
        start,
        **{name: given[name] for name in given if name in takes},
        **{"fsdp_unit_modules": [type(start[0])], "device": torch.device(shims.DEVICE)},
        **{"zero_dp_strategy": options.get("strategy", "optim_grads_params")},
        **{"preproc_state_dict_for_dcp_ckpt": False, "sync_model_each_microbatch": False},
    )
    model.ddp_config.gradient_reduce_div_fusion = options.get("gradient_reduce_div_fusion", True)
    batches = options.get("batches", _BATCHES)
    for batch in range(batches):
        model.is_last_microbatch = batch == batches - 1
        _loss(model, rank, batch).backward()
    model.finish_grad_sync()
    parts = {name.removeprefix("module."): it.grad for name, it in model.named_parameters()}
    return {name: [] if it is None else it._local_tensor.flatten().tolist() for name, it in parts.items()}


def wrong(case: Case, ranks: Sequence[Gradients]) -> str:
    """Return which gradient is not that of one process; empty if none is."""
    world, options = case.topology.world, case.options
    models = [_model(rank if case.topology.ep > 1 else 0) for rank in range(world)]
    for rank, model in enumerate(models):
        for batch in range(options.get("batches", _BATCHES)):
            _loss(model, rank, batch).backward()
    due = [{name: it.grad.flatten() for name, it in model.named_parameters()} for model in models]
    whole = options.get("strategy") == "no_shard"
    for name in due[0]:
        own = case.topology.ep > 1 and "experts" in name
        mean = world if not options.get("calculate_per_token_loss") else 1
        mean = 1 if own and options.get("average_in_collective") else mean
        of = [[rank] for rank in range(world)] if own else [[*range(world)]]
        for members in of:
            wanted = (sum(due[rank][name] for rank in members) / mean).tolist()
            parts = [ranks[rank][name] for rank in members]
            alike = whole or "outer" in options and options["outer"] == "no_shard"
            for found in parts if alike else [[value for part in parts for value in part]]:
                if len(found) != len(wanted) or any(abs(x - y) > 0.02 * abs(y) + 1e-6 for x, y in zip(found, wanted)):
                    return f"{_AT} {name} is {_rounded(found)}, due {_rounded(wanted)}"
    return ""


def right(case: Case, ranks: Sequence[Gradients]) -> str:
    """Return what was seen."""
    return f"{_AT} {(name := [*ranks[0]][-1])} is {_rounded(ranks[0][name])}, as due"


def _fused(param: Any) -> None:
    """Do what Transformer Engine does with a weight's gradient."""
    place = param.get_main_grad()
    (place.copy_ if getattr(param, "overwrite_main_grad", False) else place.add_)(param.grad)
    param.grad_added_to_main_grad = True


def _model(number: int) -> Any:
    """Return two blocks, each of a dense layer and an expert: the one of this number."""
    import torch

    class Block(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, at: int) -> None:
            super().__init__()
            self.dense, expert = (torch.nn.Linear(2, 2, bias=False) for _ in range(2))
            self.experts = torch.nn.ModuleList([expert])
            for it, first in ((self.dense, at), (expert, at + number)):
                it.weight.data.copy_(torch.tensor([[1.0, first], [-1.0, 2.0]]))
            expert.weight.allreduce = False

        def forward(self, given: Any) -> Any:
            return self.dense(given) + self.experts[0](given)

    return torch.nn.Sequential(Block(0), Block(1))


def _loss(model: Any, rank: int, batch: int) -> Any:
    import torch

    return (model(torch.tensor([[1.0 + batch, 1.0 + rank]])) * torch.tensor([1.0, 3.0])).sum()


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 4) for value in values][:4]


def _module() -> Any:
    return importlib.import_module("megatron.core.distributed.fsdp.src.megatron_fsdp.fully_shard")
