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
    from collections.abc import Callable, Collection, Mapping, Sequence

    Gradients = Mapping[str, list[float]]

_AT = "the gradient of"
_ONE, _TWO, _OWN = Topology(), Topology(dp=2), Topology(dp=2, ep=2)
_BUFFERS = "fsdp_double_buffer", "maxpool_double_buffer"
_BATCHES, _ONCE = 3, {"batches": 1}
_SCALED, _MEAN, _SUMS = "gradient_reduce_div_fusion", "average_in_collective", "calculate_per_token_loss"
_FUSED, _COMM = "gradient_accumulation_fusion", "grad_comm_dtype"
_GRADS, _NARROW, _OLD = {"strategy": "optim_grads"}, {_COMM: "bfloat16"}, {"may_pass": True}  # right from 0.17 on
CASES = (
    Case("own-experts-2", _OWN, DIFFERS, f"{_AT} 0.experts.0.weight", core=True),
    Case("own-experts-weights-whole-2", _OWN, DIFFERS, _AT, _GRADS),
    Case("own-experts-bf16-2", _OWN, DIFFERS, _AT, _NARROW, core=True),
    Case("own-experts-fused-2", _OWN, DIFFERS, _AT, {_FUSED: True}, core=True),
    Case("one-rank-bf16", _ONE, DIFFERS, _AT, _NARROW, core=True),
    Case("one-rank-fused", _ONE, DIFFERS, _AT, {_FUSED: True}),
    Case("hybrid-2", _TWO, DIFFERS, _AT, {"outer": "no_shard"}, core=True),
    Case("shared-experts-2", _TWO, PASSED, core=True),
    Case("shared-experts-fused-2", _TWO, PASSED, options={_FUSED: True}),
    Case("own-experts-no-shard-2", _OWN, PASSED, options={"strategy": "no_shard"}, core=True),
)
GRID = [
    *CASES,
    Case("own, a loss per token", _OWN, DIFFERS, options={_SUMS: True, **_OLD}),
    Case("own, a loss per token, bf16", _OWN, DIFFERS, options={_SUMS: True, **_NARROW}),
    Case("own, mean in the collective", _OWN, DIFFERS, options={_MEAN: True, **_OLD}),
    Case("own, scaled before", _OWN, DIFFERS, options={_SCALED: False}),
    Case("own, one micro-batch", _OWN, DIFFERS, options={**_ONCE, **_OLD}),
    Case("own, one micro-batch, bf16", _OWN, DIFFERS, options={**_ONCE, **_NARROW}),
    Case("own, optimizer's states", _OWN, PASSED, options={"strategy": "optim"}),
    Case("one rank", _ONE, DIFFERS, options=_OLD),
    Case("own, two buffers", _OWN, DIFFERS, options={"more": {"fsdp_double_buffer": True}, **_GRADS}),
    Case("own, two buffers of any size", _OWN, DIFFERS, options={"more": dict.fromkeys(_BUFFERS, True), **_NARROW}),
    Case("own, no units", _OWN, DIFFERS, options={"units": False, **_GRADS, "more": {"fsdp_double_buffer": True}}),
    Case("own, gradients in bf16", _OWN, DIFFERS, options={"grads": "bfloat16"}),
    Case("shared, bf16", _TWO, PASSED, options=_NARROW),
    Case("shared, scaled before", _TWO, PASSED, options={_SCALED: False}),
    Case("outer ranks, bf16", _TWO, DIFFERS, options={"outer": "no_shard", **_NARROW}),
    # scaled by nobody from 0.17 on, whatever the size of a group
    Case("outer ranks sharded, sums, bf16", _TWO, DIFFERS, options={"outer": "optim", _SUMS: True, **_NARROW}),
]
HELD = {
    r"_group\.size|hybrid|hsdp|hfsdp|should_create|requires_grad|_fp32|main_params": "which buffers there are",
    "float8|uint8|high_precision|transpose|tbuf": "no weights in eight bits without a GPU",
    "meta|reset_|p.device|HAVE_TE|check_gpu": "weights without data get theirs before any gradient",
    "nccl_ub|buffer_all_in_one|get_rank|mbuf|not gbuf|ag_group|DTensor": "where memory is, and who gathers weights",
    '_strategy [!=]= .optim(_grads_params)?"': "there is no other strategy, and hybrid sharding refuses the rest",
    "is_expert_param": "no experts of their own before 0.16",
}
YOURS = Case("yours", _OWN, DIFFERS, _AT)


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of a case's job sets."""
    options = case.options
    return {
        "use_megatron_fsdp": True,
        "data_parallel_sharding_strategy": options.get("strategy", "optim_grads_params"),
        "weights with one rank to shard over (EP = DP)": case.topology != _TWO or "outer" in options,
        "version megatron-core": "0.16.1" if "may_pass" in options else "0.19.2",
        "megatron_fsdp_grad_comm_dtype": "bf16" if _COMM in options else None,
        "several micro-batches": options.get("batches", _BATCHES) > 1,
    }


def has_feature(function: ast.FunctionDef) -> bool:
    """Return whether gradients can be sharded."""
    return "is_grad_buffer_distributed" in ast.unparse(function)


def prepare() -> None:
    """Import Megatron-FSDP for a CPU, and let gloo scale what it reduces."""
    shims.cuda_on_cpu()
    import torch
    import torch.distributed as dist
    from torch.distributed import device_mesh

    here = type("Here", (str,), {"__format__": lambda *_: "0"})("cpu")
    torch.cuda.current_device = lambda: here  # a device, and a part of a device's name
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

    (wrap, takes), world, options = _wrapper(), case.topology.world, case.options
    outer, strategy, more = options.get("outer"), options.get("strategy"), options.get("more", {})
    if "mixed_precision_policy" not in takes:  # before 0.17 these have defects of their own, in each group
        outer, strategy = outer and "no_shard", strategy if strategy != "optim" else "no_shard"
    sizes = {"outer": world, "dp": 1, "tp": 1} if outer else {"dp": world, "tp": 1}
    if "maxpool_double_buffer" not in takes and strategy != "optim_grads":  # before 0.19 wrong with shared experts, too
        more = {}
    mesh = device_mesh.init_device_mesh(shims.DEVICE, (*sizes.values(),), mesh_dim_names=(*sizes,))
    experts = {"ep": case.topology.ep, **sizes, "dp": sizes["dp"] // case.topology.ep}
    theirs = device_mesh.init_device_mesh(shims.DEVICE, (*experts.values(),), mesh_dim_names=(*experts,))[tuple(sizes)]
    given: dict[str, Any] = {"device_mesh": mesh, "expt_device_mesh": theirs, "dp_shard_dim": "dp", "tp_dim": "tp"}
    if outer:
        given |= {"dp_outer_dim": "outer", "outer_dp_sharding_strategy": outer}
        given |= dict.fromkeys(("hybrid_fsdp_group", "hybrid_fsdp_expt_group"), torch.distributed.group.WORLD)
    if "mixed_precision_policy" in takes:
        narrow, grads = (getattr(torch, options[name]) if name in options else None for name in (_COMM, "grads"))
        given["mixed_precision_policy"] = _module().MixedPrecisionPolicy(grad_comm_dtype=narrow, main_grads_dtype=grads)
    kind = "experts" if "expt_device_mesh" in takes else "others"
    if kind == "others":  # before 0.16 none of these is right in any group of several ranks
        options = {name: value for name, value in options.items() if name not in (_MEAN, _SCALED, _FUSED)}
    given |= {name: options.get(name, False) for name in (_MEAN, _SUMS)}
    start = _model(case, rank, kind)
    if options.get(_FUSED):
        for it in start.parameters():
            it.register_post_accumulate_grad_hook(_fused)
    model = wrap(
        start,
        **{name: given[name] for name in given if name in takes},
        **{name: value for name, value in more.items() if name in takes},
        **{
            "fsdp_unit_modules": [type(start[0])] if options.get("units", True) else [],
            "device": torch.device(shims.DEVICE),
        },
        **{"zero_dp_strategy": strategy or "optim_grads_params"},
        **{"preproc_state_dict_for_dcp_ckpt": False, "sync_model_each_microbatch": False},
    )
    model.ddp_config.gradient_reduce_div_fusion = options.get(_SCALED, True)
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
    kind = "experts" if any("experts" in name for name in ranks[0]) else "others"
    due: list[dict[str, Any]] = []
    for rank in range(world):
        model = _model(case, rank, kind)
        for batch in range(options.get("batches", _BATCHES)):
            _loss(model, rank, batch).backward()
        due.append({name: it.grad.flatten() for name, it in model.named_parameters()})
    for name in due[0]:
        is_own = case.topology.ep > 1 and "experts" in name
        mean = 1 if options.get(_SUMS) or (is_own and options.get(_MEAN)) else world
        for members in [[rank] for rank in range(world)] if is_own else [[*range(world)]]:
            wanted = (sum(due[rank][name] for rank in members) / mean).tolist()
            parts = [ranks[rank][name] for rank in members]
            whole = all(len(part) == len(wanted) for part in parts)
            for found in parts if whole else [[value for part in parts for value in part]]:
                if len(found) != len(wanted) or any(abs(x - y) > abs(y) / 50 for x, y in zip(found, wanted)):
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


def _model(case: Case, rank: int, kind: str) -> Any:
    """Return two blocks, each of a dense layer and an expert: the one of this rank, if ranks have their own."""
    import torch

    class Block(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, at: int) -> None:
            super().__init__()
            self.dense, expert = (torch.nn.Linear(2, 2, bias=False) for _ in range(2))
            setattr(self, kind, torch.nn.ModuleList([expert]))
            own = rank if case.topology.ep > 1 and kind == "experts" else 0
            for it, first in ((self.dense, at), (expert, at + own)):
                it.weight.data.copy_(torch.tensor([[1.0, first], [-1.0, 2.0]]))
            if kind == "experts":
                expert.weight.allreduce = False

        def forward(self, given: Any) -> Any:
            return self.dense(given) + getattr(self, kind)[0](given)

    return torch.nn.Sequential(Block(0), Block(1))


def _loss(model: Any, rank: int, batch: int) -> Any:
    import torch

    return (model(torch.tensor([[1.0 + batch, 1.0 + rank]])) * torch.tensor([1.0, 3.0])).sum()


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 4) for value in values][:4]


def _wrapper() -> tuple[Any, Collection[str]]:
    """Return what shards a model, and what it takes: before 0.15.0, it has older names and shards an optimizer, too."""
    if new := getattr(_module(), "fully_shard_model", None):
        return new, inspect.signature(new).parameters
    old = _module().fully_shard

    def wrap(module: Any, sync_model_each_microbatch: bool, dp_outer_dim: Any = None, **given: Any) -> Any:
        given |= {"dp_inter_dim": dp_outer_dim, "use_hybrid_fsdp": dp_outer_dim is not None}
        return old(module, sync_grads_each_step=sync_model_each_microbatch, **given)[0]

    return wrap, {*inspect.signature(old).parameters, "dp_outer_dim"}


def _module() -> Any:
    return importlib.import_module("megatron.core.distributed.fsdp.src.megatron_fsdp.fully_shard")
