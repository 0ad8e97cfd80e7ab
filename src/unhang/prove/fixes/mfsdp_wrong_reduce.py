"""megatron-core: the real Megatron-FSDP on real ranks, several micro-batches, beside the same model in one process.

Each rank has data of its own. gloo gets NCCL's mean, and its sum of what is scaled first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..cases import DIFFERS, PASSED, Case, Topology
from ..ranks import megatron_fsdp

_AT = "the gradient of"
_ONE, _TWO, _FOUR, _OWN = Topology(), Topology(dp=2), Topology(dp=4), Topology(dp=2, ep=2)
_STRATEGY, _OUTER, _BATCHES, _EACH = "zero_dp_strategy", "outer", "micro-batches", "sync_model_each_microbatch"
_SUMS, _BUFFERS = {"calculate_per_token_loss": True}, {"fsdp_double_buffer": True}
_NARROW, _SENT, _ONCE, _MAY = {"bfloat16": True}, {"sent": True}, {_BATCHES: 1, _EACH: True}, {"may_pass": True}
_WHOLE, _GRADS, _PARAMS = ({_STRATEGY: it} for it in ("no_shard", "optim_grads", "optim_grads_params"))
_MEAN, _DIVISION = "average_in_collective", "gradient_reduce_div_fusion"
_OLD = {**_PARAMS, **_NARROW, **_MAY}  # wrong before 0.16; the rest of what is wrong is so in 0.16
CASES = (
    Case("zero1-2", _TWO, DIFFERS, _AT, _MAY, core=True),
    Case("zero1", _ONE, DIFFERS, _AT, _MAY, core=True),
    Case("zero1-own-experts-2", _OWN, DIFFERS, _AT, _MAY, core=True),
    Case("zero1-hybrid-4", _FOUR, DIFFERS, _AT, {_OUTER: 2, **_MAY}, core=True),
    Case("zero1-bf16-2", _TWO, DIFFERS, _AT, {**_NARROW, **_MAY}),
    Case("bf16-2", _TWO, DIFFERS, _AT, _OLD, core=True),
    Case("zero2-bf16-2", _TWO, DIFFERS, _AT, {**_OLD, **_GRADS}),
    Case("no-shard-2", _TWO, PASSED, options=_WHOLE, core=True),
    Case("sharded-2", _TWO, PASSED, options=_PARAMS, core=True),
    Case("zero2-2", _TWO, PASSED, options=_GRADS, core=True),
)
GRID = [
    *CASES,
    Case("a sum", _TWO, DIFFERS, options={**_SUMS, **_MAY}),
    Case("one micro-batch", _TWO, DIFFERS, options={**_ONCE, **_MAY, "times": 1.001}),  # no 16 bits hold that
    Case("two buffers", _TWO, DIFFERS, options={**_BUFFERS, **_MAY, _MEAN: True, "overlap_param_gather": False}),
    Case("hybrid, ranks alone inside", _TWO, DIFFERS, options={_OUTER: 2, **_MAY}),
    Case("one micro-batch, two buffers, bf16", _TWO, DIFFERS, options={**_OLD, **_ONCE, **_BUFFERS}),
    Case("hybrid, bf16", _FOUR, DIFFERS, options={**_OLD, _OUTER: 2}),
    Case("scaled apart", _TWO, DIFFERS, options={**_PARAMS, **_MAY, _DIVISION: False}),
    Case("a sum, bf16", _TWO, PASSED, options={**_PARAMS, **_NARROW, **_SUMS}),
    Case("whole, bf16", _TWO, PASSED, options={**_WHOLE, **_NARROW}),
    Case("two buffers of ZeRO-2", _TWO, PASSED, options={**_GRADS, **_BUFFERS}),
    Case("another type sent", _FOUR, DIFFERS, options={_OUTER: 2, **_SENT, **_MAY}),
    Case("another type sent, sharded", _TWO, PASSED, options={**_PARAMS, **_SENT}),
    Case("another type sent, whole", _TWO, PASSED, options={**_WHOLE, **_SENT}),
    # finish_grad_sync reduces it again: for two ranks, both errors of 0.16 make up for each other; later ones are wrong
    Case("reduced twice", _TWO, PASSED, options={"overlap_grad_reduce": False, **_NARROW, "beyond": True}),
]
HELD = {
    "outer_dp_sharding|er_fsdp_group|custom_grad": "what goes over the outer ranks has its shard by then",
    "average_in_collective": "who divides what goes over the outer ranks",
    "rs_stream|async_op": "when it is reduced: a CPU has one stream",
}
YOURS = Case("yours", _TWO, DIFFERS, _AT)


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of a case's job sets."""
    options = case.options
    return {
        "use_megatron_fsdp": True,
        "data_parallel_sharding_strategy": options.get(_STRATEGY, "optim"),
        "overlap_grad_reduce": options.get("overlap_grad_reduce", True),
        "version megatron-core": "0.15.3" if {_STRATEGY, *_NARROW} <= {*options} or _DIVISION in options else "0.16.1",
        "grad_reduce_in_bf16": "bfloat16" in options,
        "calculate_per_token_loss": "calculate_per_token_loss" in options,
        "main_grads_dtype": "fp32",
        _DIVISION: options.get(_DIVISION, True),
        "ddp_average_in_collective": _MEAN in options,
    }


def prepare() -> None:
    """Import Megatron-FSDP for a CPU, and let gloo scale what it reduces."""
    megatron_fsdp.prepare()
    megatron_fsdp.scale_what_is_reduced()


def on_rank(case: Case, rank: int) -> Mapping[str, list[float]]:
    """Run the micro-batches under Megatron-FSDP. Return this rank's part of each gradient."""
    import torch

    options, policy = {_EACH: False, _STRATEGY: "optim", **case.options}, "mixed_precision_policy"
    dtype = torch.bfloat16 if "bfloat16" in options else torch.float32
    if megatron_fsdp.takes(policy):
        sent = {"grad_comm_dtype": torch.bfloat16} if "sent" in options else {}
        options[policy] = megatron_fsdp.module().MixedPrecisionPolicy(main_grads_dtype=dtype, **sent)
    else:
        options["grad_reduce_in_fp32"] = dtype == torch.float32
    if not (has_experts := megatron_fsdp.takes("expt_device_mesh")):
        options.pop(_MEAN, None)  # to ask for it crashes there
    own = case.topology.ep > 1 and has_experts
    start = _model("experts" if own else "dense").to(dtype)
    if megatron_fsdp.takes("dp_inter_dim"):
        options[_OUTER] = 1  # in candidates of 0.14 and 0.15, callers leave out the outer ranks
    model = megatron_fsdp.wrapped(start, case.topology.ep, options.pop(_OUTER, 1), **options)
    model.ddp_config.gradient_reduce_div_fusion = options.get(_DIVISION, True)
    _train(model, rank, case, dtype)
    return megatron_fsdp.gradients(model)


def wrong(case: Case, ranks: Sequence[Mapping[str, list[float]]]) -> str:
    """Return which gradient is not that of one process; empty if none is."""
    import torch

    models = [_model(next(iter(ranks[0])).split(".")[1]) for _ in ranks]
    for rank, model in enumerate(models):
        _train(model, rank, case, torch.float32)

    def due_of(name: str) -> Any:
        each = torch.stack([it.get_parameter(name).grad for it in models])
        due = (each if "experts" in name else each.sum(0)).flatten()
        return due if {*_SUMS} <= {*case.options} else due / len(models)

    return megatron_fsdp.differing(ranks, due_of, 0.02 if {*_NARROW, *_SENT} & {*case.options} else 1e-5)


def right(case: Case, ranks: Sequence[Mapping[str, list[float]]]) -> str:
    """Return what was seen."""
    return f"{_AT} {(name := next(iter(ranks[0])))} is {ranks[-1][name]}, as due"


def _model(kind: str) -> Any:
    """Return two units of one weight each, which each rank has of its own if it is an expert's."""
    import torch

    class Unit(torch.nn.ModuleDict):  # type: ignore[misc]
        def forward(self, given: Any) -> Any:
            return self[kind](given)

    model = torch.nn.Sequential(*(Unit({kind: torch.nn.Linear(2, 2, bias=False)}) for _ in range(2)))
    for at, unit in enumerate(model):
        unit[kind].weight.data.copy_(torch.tensor([[1.0, at], [-1.0, 2.0]]))
        unit[kind].weight.allreduce = kind != "experts"
    return model


def _train(model: Any, rank: int, case: Case, dtype: Any) -> None:
    """Run the micro-batches of a rank, and add up the gradients."""
    import torch

    for batch in range(last := case.options.get(_BATCHES, 3)):
        model.is_last_microbatch = batch == last - 1
        given = torch.tensor([[1.0 + batch, 1.0 + rank]], dtype=dtype) * case.options.get("times", 1.0)
        (model(given) * torch.tensor([1.0, 3.0], dtype=dtype)).sum().backward()
