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
_BATCHES, _ONCE, _OLD = 3, {"batches": 1}, {"may_pass": True}  # right from 0.17 on
_SCALED, _MEAN, _SUMS = "gradient_reduce_div_fusion", "average_in_collective", "calculate_per_token_loss"
_FUSED, _COMM, _MAIN = "gradient_accumulation_fusion", "grad_comm_dtype", "main_grads_dtype"
_STRATEGY, _OUTER = "zero_dp_strategy", "outer_dp_sharding_strategy"
_GRADS, _NARROW, _DOUBLE = {_STRATEGY: "optim_grads"}, {_COMM: "bfloat16"}, {"fsdp_double_buffer": True}
CASES = (
    Case("own-experts-2", _OWN, DIFFERS, f"{_AT} 0.experts.0.weight", core=True),
    Case("own-experts-weights-whole-2", _OWN, DIFFERS, _AT, _GRADS),
    Case("own-experts-bf16-2", _OWN, DIFFERS, _AT, _NARROW, core=True),
    Case("own-experts-fused-2", _OWN, DIFFERS, _AT, {_FUSED: True}, core=True),
    Case("one-rank-bf16", _ONE, DIFFERS, _AT, _NARROW, core=True),
    Case("one-rank-fused", _ONE, DIFFERS, _AT, {_FUSED: True}),
    Case("hybrid-2", _TWO, DIFFERS, _AT, {_OUTER: "no_shard"}, core=True),
    Case("shared-experts-2", _TWO, PASSED, core=True),
    Case("shared-experts-fused-2", _TWO, PASSED, options={_FUSED: True}),
    Case("own-experts-no-shard-2", _OWN, PASSED, options={_STRATEGY: "no_shard"}, core=True),
)
GRID = [
    *CASES,
    Case("own, a loss per token", _OWN, DIFFERS, options={_SUMS: True, **_OLD}),
    Case("own, mean in the collective", _OWN, DIFFERS, options={_MEAN: True, **_OLD}),
    Case("own, scaled before", _OWN, DIFFERS, options={_SCALED: False}),
    Case("own, one micro-batch", _OWN, DIFFERS, options={**_ONCE, **_OLD}),
    Case("own, one micro-batch, bf16", _OWN, DIFFERS, options={**_ONCE, **_NARROW}),
    Case("own, optimizer's states", _OWN, PASSED, options={_STRATEGY: "optim"}),
    Case("one rank", _ONE, DIFFERS, options=_OLD),
    Case("own, two buffers", _OWN, DIFFERS, options={**_DOUBLE, **_GRADS}),
    Case("own, two buffers of any size", _OWN, DIFFERS, options={**_DOUBLE, "maxpool_double_buffer": True, **_NARROW}),
    Case("own, no units", _OWN, DIFFERS, options={**_DOUBLE, **_GRADS, "fsdp_unit_modules": []}),
    Case("own, gradients in bf16", _OWN, DIFFERS, options={_MAIN: "bfloat16"}),
    Case("outer ranks, bf16", _TWO, DIFFERS, options={_OUTER: "no_shard", **_NARROW}),
    # scaled by nobody from 0.17 on, whatever the size of a group
    Case("outer ranks sharded, sums, bf16", _TWO, DIFFERS, options={_OUTER: "optim", _SUMS: True, **_NARROW}),
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
        "data_parallel_sharding_strategy": options.get(_STRATEGY, "optim_grads_params"),
        "weights with one rank to shard over (EP = DP)": case.topology != _TWO or _OUTER in options,
        "version megatron-core": "0.16.1" if "may_pass" in options else "0.19.2",
        "megatron_fsdp_grad_comm_dtype": "bf16" if _COMM in options else None,
        "several micro-batches": "batches" not in options,
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
    dist._make_nccl_premul_sum = float
    for name in ("all_reduce", "reduce_scatter_tensor"):
        setattr(dist, name, _scaling(getattr(dist, name)))
    _module()


def _scaling(reduce: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of torch.distributed which also takes a mean, or a factor for what each rank has."""
    import torch.distributed as dist

    def scaled(*tensors: Any, op: Any = dist.ReduceOp.SUM, **given: Any) -> Any:
        if op == dist.ReduceOp.AVG:
            op = 1 / given["group"].size()
        if isinstance(op, float):
            for tensor in tensors:
                tensor.mul_(op)
            given |= {name: it * op for name, it in given.items() if name == "input"}  # stays as it is
            op = dist.ReduceOp.SUM
        return reduce(*tensors, op=op, **given)

    return scaled


def on_rank(case: Case, rank: int) -> Gradients:
    """Run the micro-batches under Megatron-FSDP. Return this rank's part of each gradient."""
    import torch

    wrap, options = _module().fully_shard_model, dict(case.options)
    takes, world, ep = inspect.signature(wrap).parameters, case.topology.world, case.topology.ep
    kind = "experts" if "expt_device_mesh" in takes else "others"
    if kind == "others":  # before 0.16 none of these is right in any group of several ranks
        options = {name: value for name, value in options.items() if name not in (_MEAN, _SCALED, _FUSED)}
    if "mixed_precision_policy" not in takes:  # before 0.17 these have defects of their own, in each group
        options |= {name: "no_shard" for name in (_STRATEGY, _OUTER) if options.get(name) == "optim"}
    if "maxpool_double_buffer" not in takes and _STRATEGY not in options:  # before 0.19 wrong with shared experts, too
        options.pop(*_DOUBLE, None)
    sizes = {"outer": world, "dp": 1, "tp": 1} if _OUTER in options else {"dp": world, "tp": 1}
    whole, theirs = (
        torch.distributed.device_mesh.init_device_mesh(shims.DEVICE, (*it.values(),), mesh_dim_names=(*it,))
        for it in (sizes, {"ep": ep, **sizes, "dp": sizes["dp"] // ep})
    )
    narrow = {name: getattr(torch, options[name]) for name in (_COMM, _MAIN) if name in options}
    start = _model(case, rank, kind)
    given: dict[str, Any] = {
        **{"device_mesh": whole, "expt_device_mesh": theirs[tuple(sizes)], "dp_shard_dim": "dp", "tp_dim": "tp"},
        **{
            "fsdp_unit_modules": [type(start[0])],
            "device": torch.device(shims.DEVICE),
            _STRATEGY: "optim_grads_params",
        },
        **{"preproc_state_dict_for_dcp_ckpt": False, "sync_model_each_microbatch": False, **options, "module": start},
    }
    if _OUTER in options:
        given |= dict.fromkeys(("hybrid_fsdp_group", "hybrid_fsdp_expt_group"), torch.distributed.group.WORLD)
        given["dp_outer_dim"] = "outer"
    if "mixed_precision_policy" in takes:
        given["mixed_precision_policy"] = _module().MixedPrecisionPolicy(**narrow)
    for it in start.parameters():
        if _FUSED in options:
            it.register_post_accumulate_grad_hook(_fused)
    model = wrap(**{name: value for name, value in given.items() if name in takes})
    model.ddp_config.gradient_reduce_div_fusion = options.get(_SCALED, True)
    for batch in range(last := options.get("batches", _BATCHES)):
        model.is_last_microbatch = batch == last - 1
        _loss(model, rank, batch).backward()
    model.finish_grad_sync()
    parts = {name.removeprefix("module."): it.grad for name, it in model.named_parameters()}
    return {name: [] if it is None else it._local_tensor.flatten().tolist() for name, it in parts.items()}


def wrong(case: Case, ranks: Sequence[Gradients]) -> str:
    """Return which gradient is not that of one process; empty if none is."""
    import torch

    kind, due = "experts" if any("experts" in name for name in ranks[0]) else "others", []
    for rank in range(case.topology.world):
        model = _model(case, rank, kind)
        for batch in range(case.options.get("batches", _BATCHES)):
            _loss(model, rank, batch).backward()
        due.append({name: it.grad.flatten() for name, it in model.named_parameters()})
    for name in due[0]:
        is_own, every = case.topology.ep > 1 and "experts" in name, [it[name] for it in due]
        is_sum = _SUMS in case.options or (is_own and _MEAN in case.options)
        wanted = (torch.cat(every) if is_own else sum(every)) / (1 if is_sum else len(due))
        found = torch.tensor([value for it in ranks for value in it[name]])
        wanted = wanted.repeat(max(1, len(found) // len(wanted)))  # each rank may have the whole
        if found.shape != wanted.shape or not torch.allclose(found, wanted, rtol=0.02, atol=0):
            return f"{_AT} {name} is {_rounded(found.tolist())}, due {_rounded(wanted.tolist())}"
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

    class Block(torch.nn.ModuleDict):  # type: ignore[misc]
        def forward(self, given: Any) -> Any:
            return self["dense"](given) + self[kind][0](given)

    blocks = [{name: torch.nn.Linear(2, 2, bias=False) for name in ("dense", kind)} for _ in range(2)]
    for at, block in enumerate(blocks):
        for name, it in block.items():
            own = rank * (case.topology.ep > 1 and name == "experts")
            it.weight.data.copy_(torch.tensor([[1.0, at + own], [-1.0, 2.0]]))
            it.weight.allreduce = name != "experts"
    return torch.nn.Sequential(*(Block({**it, kind: torch.nn.ModuleList([it[kind]])}) for it in blocks))


def _loss(model: Any, rank: int, batch: int) -> Any:
    import torch

    return (model(torch.tensor([[1.0 + batch, 1.0 + rank]])) * torch.tensor([1.0, 3.0])).sum()


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 4) for value in values]


def _module() -> Any:
    return importlib.import_module("megatron.core.distributed.fsdp.src.megatron_fsdp.fully_shard")
