"""megatron-core: the real Megatron-FSDP on real ranks, several micro-batches, beside the same model in one process.

Each rank has an expert of its own, or part of one that all have. gloo gets NCCL's sum of what is scaled first. A hook
stands in for Transformer Engine's fused accumulation, which writes over what is there or adds to it, as it is told.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from ..cases import CRASHED, DIFFERS, PASSED, Case, Topology
from ..ranks import megatron_fsdp

_AT = "the gradient of"
_ONE, _TWO, _OWN = Topology(), Topology(dp=2), Topology(dp=2, ep=2)
_SUMS, _FUSED, _MEAN = "calculate_per_token_loss", "gradient_accumulation_fusion", "average_in_collective"
_COMM, _KEPT, _UNITS = "grad_comm_dtype", "main_grads_dtype", "fsdp_unit_modules"
_STRATEGY, _OUTER, _ALL = "zero_dp_strategy", "outer_dp_sharding_strategy", "optim_grads_params"
_REPEATED, _UNUSED = "mtp_use_repeated_layer", "blocks or experts that a micro-batch leaves out"
_BATCHES, _BUFFERS = "micro-batches", "fsdp_double_buffer"
_GRADS, _NARROW, _DOUBLE = {_STRATEGY: "optim_grads"}, {_COMM: "bfloat16"}, {_BUFFERS: True}
_OLD, _ONCE = {"may_pass": True}, {_BATCHES: 1}  # right from 0.17 on
CASES = (
    Case("own-experts-2", _OWN, DIFFERS, f"{_AT} 0.experts.weight", core=True),
    Case("own-experts-bf16-2", _OWN, DIFFERS, _AT, _NARROW, core=True),
    Case("own-experts-fused-2", _OWN, DIFFERS, _AT, {_FUSED: True}, core=True),
    Case("one-rank-bf16", _ONE, DIFFERS, _AT, _NARROW, core=True),
    Case("one-rank-fused", _ONE, DIFFERS, _AT, {_FUSED: True}),
    Case("hybrid-2", _TWO, DIFFERS, _AT, {_OUTER: "no_shard"}, core=True),
    Case("shared-experts-2", _TWO, PASSED, core=True),
    Case("shared-experts-fused-2", _TWO, PASSED, options={_FUSED: True}),
    Case("own-experts-no-shard-2", _OWN, PASSED, options={_STRATEGY: "no_shard"}, core=True),
    Case("repeated", _ONE, DIFFERS, _AT, {_REPEATED: True, **_OLD}, core=True, patched=DIFFERS),
    Case("unused", _ONE, PASSED, options={_UNUSED: 4, **_DOUBLE}, patched=CRASHED),
)
GRID = [
    *(case for case in CASES if case.patched == PASSED),
    Case("own, a loss per token", _OWN, DIFFERS, options={_SUMS: True, **_OLD}),
    Case("own, one micro-batch", _OWN, DIFFERS, options={**_ONCE, **_OLD}),
    Case("own, one micro-batch, bf16", _OWN, DIFFERS, options={**_ONCE, **_NARROW}),
    Case("own, optimizer's states", _OWN, PASSED, options={_STRATEGY: "optim"}),
    Case("one rank", _ONE, DIFFERS, options=_OLD),
    Case("own, two buffers", _OWN, DIFFERS, options={**_DOUBLE, **_GRADS}),
    Case("own, two buffers, bf16", _OWN, DIFFERS, options={**_DOUBLE, **_GRADS, **_NARROW}),
    Case("own, no units, kept in bf16", _OWN, DIFFERS, options={**_DOUBLE, **_GRADS, _UNITS: [], _KEPT: "bfloat16"}),
    Case("one rank, a mean, bf16", _ONE, DIFFERS, options={_MEAN: True, **_NARROW}),
    Case("outer ranks sharded, sums, bf16", _TWO, DIFFERS, options={_OUTER: "optim", _SUMS: True, **_NARROW}),
]
HELD = {
    r"_group\.size|hybrid|hsdp|hfsdp|should_create|requires_grad|_fp32|main_params|is_expert": "which buffers",
    "float8|uint8|high_precision|transpose|tbuf": "no weights in eight bits without a GPU",
    "meta|reset_|p.device|HAVE_TE|check_gpu": "weights without data get theirs before any gradient",
    "nccl_ub|buffer_all_in_one|get_rank|mbuf|not gbuf|ag_group|DTensor|MaxPool": "where memory is, and who gathers",
    r"_strategy [!=]= .optim(_grads_params)?\W": "there is no other strategy, and hybrid sharding refuses the rest",
    "average_in_collective|div_fusion": "who divides, in groups of any size",
}
YOURS = Case("yours", _OWN, DIFFERS, _AT)


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of a case's job sets."""
    options, is_scaled = case.options, case.topology != _ONE and not {_BATCHES, _SUMS} & {*case.options}
    return {
        "use_megatron_fsdp": True,
        "data_parallel_sharding_strategy": options.get(_STRATEGY, _ALL),
        "weights of one rank (EP = DP)": case.topology != _TWO or _OUTER in options,
        "version megatron-core": "0.16.1" if "may_pass" in options else "0.19.2",
        "megatron_fsdp_grad_comm_dtype": "bf16" if _COMM in options else None,
        "several scaled or fused micro-batches": _FUSED in options or is_scaled,
        **{name: name in options for name in (_REPEATED, _BUFFERS, _UNUSED)},
        "recompute_granularity": "full" if _REPEATED in options else None,
    }


def has_feature(function: ast.FunctionDef) -> bool:
    """Return whether gradients can be sharded."""
    return "is_grad_buffer_distributed" in ast.unparse(function)


def prepare() -> None:
    """Import Megatron-FSDP for a CPU, and let gloo scale what it reduces."""
    megatron_fsdp.prepare()
    megatron_fsdp.scale_what_is_reduced()


def on_rank(case: Case, rank: int) -> Mapping[str, list[float]]:
    """Run the micro-batches under Megatron-FSDP. Return this rank's part of each gradient."""
    import torch

    options, policy, topology = {**case.options}, "mixed_precision_policy", case.topology
    if not (has_experts := megatron_fsdp.takes("expt_device_mesh")):
        options.pop(_FUSED, None)  # before 0.16 not right in any group of several ranks
        options.pop(_MEAN, None)  # and raises without a mesh of experts
    if megatron_fsdp.takes(policy):
        narrow = {name: torch.bfloat16 for name in (_COMM, _KEPT) if name in options}
        options[policy] = megatron_fsdp.module().MixedPrecisionPolicy(**narrow)
    else:  # before 0.17 these have defects of their own, in each group
        options |= {name: "no_shard" for name in (_STRATEGY, _OUTER) if options.get(name) == "optim"}
    start = _model(case, rank, "experts" if has_experts and _REPEATED not in options else "others")
    for it in start.parameters():
        if _FUSED in options:
            it.register_post_accumulate_grad_hook(_fused)
    outer = topology.world if _OUTER in options else 1
    model = megatron_fsdp.wrapped(start, topology.ep, outer, sync_model_each_microbatch=False, **options)
    _train(model, rank, case)
    return megatron_fsdp.gradients(model)


def wrong(case: Case, ranks: Sequence[Mapping[str, list[float]]]) -> str:
    """Return which gradient is not that of one process; empty if none is."""
    import torch

    models = [_model(case, rank, [*ranks[0]][1].split(".")[1]) for rank in range(case.topology.world)]
    for rank, model in enumerate(models):
        for it in model.parameters():
            it.grad = torch.zeros_like(it)
        _train(model, rank, case)

    def due_of(name: str) -> Any:
        each = torch.stack([it.get_parameter(name).grad.flatten() for it in models])
        due = each if case.topology.ep > 1 and "experts" in name else each.sum(0)
        return due.flatten() / (1 if _SUMS in case.options else len(models))

    return megatron_fsdp.differing(ranks, due_of)


def right(case: Case, ranks: Sequence[Mapping[str, list[float]]]) -> str:
    """Return what was seen."""
    return f"{_AT} {(name := [*ranks[0]][1])} is {ranks[0][name]}, as due"


def _fused(param: Any) -> None:
    """Do what Transformer Engine does with a weight's gradient."""
    place = param.get_main_grad()
    (place.copy_ if getattr(param, "overwrite_main_grad", False) else place.add_)(param.grad)
    param.grad_added_to_main_grad = True


def _model(case: Case, rank: int, kind: str) -> Any:
    """Return two blocks, each of a dense layer and an expert: the one of this rank, if ranks have their own."""
    import torch
    from torch.utils.checkpoint import checkpoint

    class Block(torch.nn.ModuleDict):  # type: ignore[misc]
        def once(self, given: Any) -> Any:
            return sum(it(given) for name, it in self.items() if name == "dense" or _UNUSED not in case.options)

        def forward(self, given: Any) -> Any:
            if _REPEATED not in case.options:
                return self.once(given)
            return checkpoint(self.once, checkpoint(self.once, given, use_reentrant=True), use_reentrant=True)

    parts = ([torch.nn.Linear(2, 2, bias=False) for _ in range(2)] for _ in range(case.options.get(_UNUSED, 2)))
    model = torch.nn.Sequential(*(Block(zip(("dense", kind), it)) for it in parts))
    for at, block in enumerate(model):
        for name, it in block.items():
            own = rank * (case.topology.ep > 1 and name == "experts")
            it.weight.data.copy_(torch.tensor([[1.0, at + own], [-1.0, 2.0]]))
            it.weight.allreduce = name != "experts"
    return model


def _train(model: Any, rank: int, case: Case) -> None:
    """Run the micro-batches of a rank, and add up the gradients."""
    import torch

    for batch in range(last := case.options.get(_BATCHES, 3)):
        model.is_last_microbatch = batch == last - 1
        given = torch.tensor([[1.0 + batch, 1.0 + rank]], requires_grad=True)
        (model(given) * torch.tensor([1.0, 3.0])).sum().backward()
