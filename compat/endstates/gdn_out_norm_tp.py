"""gdn-out-norm-tp: the gradient of each parameter on each tensor-parallel rank, before it is summed and after."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

from unhang.compat.endstates.endstate import EndState, Outcome, Source, called, parameters
from unhang.compat.endstates.standin import StandIn
from unhang.compat.endstates.tensors import Misfit, Tensor, torch
from unhang.shapes.branches import branches
from unhang.shapes.shape import Function

LAYER = "decoder.layers.1"
NORM = f"{LAYER}.self_attention.out_norm"
PART, MARKED, WHOLE, MEAN, SPLIT = "part", "marked", "whole", "mean", "split"
"""What a rank has of a gradient: a part of the sum; that, but the whole without sequence parallelism; the whole; an
estimate; its own slice."""
OTHERS = {
    "decoder.layers.0.input_layernorm.weight": MARKED,
    "decoder.layers.0.self_attention.linear_qkv.weight": SPLIT,
    "vision_model.encoder.out_norm.weight": WHOLE,
    f"{LAYER}.cross_attention.out_norm.bias": WHOLE,
    f"{LAYER}.self_attention.out_norm_of_all.weight": WHOLE,
    f"{LAYER}.my_self_attention.out_norm.weight": WHOLE,
    f"{LAYER}.self_attention.my_out_norm.weight": WHOLE,
    f"{LAYER}.self_attention.norm.weight": WHOLE,
    "decoder.layers.2.self_attention.out_norm.weight": SPLIT,
    f"{LAYER}.self_attention.in_proj.weight": SPLIT,
    f"{LAYER}.mlp.router.weight": MEAN,
}
"""The parameters of every model, and what a rank has of their gradients."""
QK = ("decoder.layers.0.self_attention.q_layernorm.weight", "decoder.layers.0.self_attention.k_layernorm.weight")
RMS, WITH_BIAS, TWO = (f"{NORM}.weight",), (f"{NORM}.weight", f"{NORM}.bias"), (f"{NORM}.weight", f"mtp.{NORM}.weight")
FSDP, DTENSOR, PLAIN = "megatron fsdp", "dtensor", "plain"
_SIZES = (2, 1, 3)


class Setting(NamedTuple):
    """One model on the ranks of a tensor-parallel group."""

    ranks: int = 2
    norms: tuple[str, ...] = RMS
    """The parameters of the output norms of gated delta nets."""
    sequence_parallel: bool = False
    qk: bool = False
    """Whether there are norms of query and key."""
    gradients: str = PLAIN
    lacks: str = ""
    """``frozen`` if the parameters of the norm need no gradient, ``none`` if they got none."""
    chunks: int = 1
    given: bool = True
    """Whether the function gets the group, if it takes one."""


class Grad(StandIn):
    """A gradient, or what several are flattened into."""

    def __init__(self, values: Sequence[int]) -> None:
        super().__init__("grad", values=list(values))

    @property
    def data(self) -> Grad:
        return self

    @property
    def _local_tensor(self) -> Grad:
        return self

    def copy_(self, other: Grad) -> None:
        if len(self.values) != len(other.values):
            raise Misfit(f"{len(other.values)} values for {len(self.values)}")
        self.values[:] = other.values


class Reduction(NamedTuple):
    """One all-reduce of a rank."""

    group: object
    operation: str
    values: tuple[int, ...]


def named(setting: Setting) -> dict[str, str]:
    """Return the parameters of the model, and what a rank has of each gradient."""
    return {**OTHERS, **dict.fromkeys(QK if setting.qk else (), PART), **dict.fromkeys(setting.norms, PART)}


def kind_of(setting: Setting, name: str) -> str:
    """Return what a rank has of a gradient in this job."""
    kind = named(setting)[name]
    return kind if kind != MARKED else PART if setting.sequence_parallel else WHOLE


def gradient(setting: Setting, name: str, rank: int) -> list[int]:
    """Return what backward leaves of a gradient on a rank. No two ranks or parameters have the same, but of a whole."""
    place = list(named(setting)).index(name)
    of = 0 if kind_of(setting, name) == WHOLE else rank
    return [1000 * (place + 1) + 12 * (of + 1) ** 2 + 120 * at for at in range(_SIZES[place % 3])]


def wanted(setting: Setting, name: str, rank: int) -> list[int]:
    """Return the gradient that a rank is to have in the end."""
    mine, kind = gradient(setting, name, rank), kind_of(setting, name)
    if kind not in (PART, MEAN) or (name in setting.norms and setting.lacks):
        return mine
    total = [sum(each) for each in zip(*(gradient(setting, name, one) for one in range(setting.ranks)))]
    return total if kind == PART else [one // setting.ranks for one in total]


def param_of(setting: Setting, name: str, rank: int) -> StandIn:
    """Return a parameter, as backward leaves it on a rank."""
    lacks = setting.lacks if name in setting.norms else ""
    is_marked = setting.sequence_parallel and (name in setting.norms or named(setting)[name] == MARKED)
    marks = {"sequence_parallel": True} if is_marked else {}
    marks |= {"average_gradients_across_tp_domain": True} if named(setting)[name] == MEAN else {}
    if not name.endswith("bias"):  # megatron-core sets it on all parameters, and other trainers on those that are split
        marks["tensor_model_parallel"] = named(setting)[name] == SPLIT
    absent = {"sequence_parallel", "average_gradients_across_tp_domain", "tensor_model_parallel"} - set(marks)
    main_grad = None if lacks else Grad(gradient(setting, name, rank))
    return StandIn(name, absent, requires_grad=lacks != "frozen", main_grad=main_grad, **marks)


def run_rank(source: Source, setting: Setting, rank: int, known: Sequence[list[int]]) -> tuple[list[Reduction], Any]:
    """Run the function as one rank. Return its reductions, of which the first get what is ``known``, and gradients."""
    did: list[Reduction] = []
    group = StandIn("tp_group", size=lambda: setting.ranks, rank=lambda: rank)

    def all_reduce(tensor: Grad, op: str = "sum", group: object = None, async_op: bool = False) -> None:
        did.append(Reduction(group, op, tuple(tensor.values)))
        if len(did) <= len(known):
            tensor.values[:] = known[len(did) - 1]

    def unflattened(flat: Grad, tensors: Sequence[Grad]) -> list[Grad]:
        ends = list(itertools.accumulate(len(one.values) for one in tensors))
        return [Grad(flat.values[end - len(one.values) : end]) for end, one in zip(ends, tensors)]

    params = {name: param_of(setting, name, rank) for name in named(setting)}
    parts = [list(params.items())[at :: setting.chunks] for at in range(setting.chunks)]
    fsdp = setting.gradients == FSDP
    chunks = [
        StandIn(
            "model_chunk",
            ddp_config=StandIn("ddp_config", use_megatron_fsdp=fsdp, use_custom_fsdp=fsdp),
            named_parameters=lambda part=part: iter(part),
        )
        for part in parts
    ]
    distributed = StandIn(
        "torch.distributed",
        ReduceOp=StandIn("ReduceOp", SUM="sum", AVG="avg"),
        all_reduce=all_reduce,
        get_rank=lambda group=None: rank,
        get_world_size=lambda group=None: setting.ranks,
    )
    names = {
        "_flatten_dense_tensors": lambda tensors: Grad([value for one in tensors for value in one.values]),
        "_unflatten_dense_tensors": unflattened,
        "_get_main_grad_attr": lambda param, use_custom_fsdp=False: "main_grad",
        "_unshard_if_dtensor": lambda tensor: Grad(tensor.values) if setting.gradients == DTENSOR else tensor,
        "_reshard_if_dtensor": lambda tensor, like: Grad(tensor.values) if setting.gradients == DTENSOR else tensor,
        "get_attr_wrapped_model": lambda model, attr: getattr(model, attr),
        "get_tensor_model_parallel_group_if_none": lambda tp_group: tp_group or group,
        "parallel_state": StandIn(
            "parallel_state",
            get_tensor_model_parallel_world_size=lambda: setting.ranks,
            get_tensor_model_parallel_group=lambda: group,
        ),
        "torch": StandIn("torch", distributed=distributed),
    }
    config = StandIn("config", sequence_parallel=setting.sequence_parallel, qk_layernorm=setting.qk)
    given = [group] if setting.given and "tp_group" in parameters(source.function) else []
    called(source, names)(chunks, config, *given)
    if any(one.group is not group for one in did):
        raise Misfit("an all-reduce in another group")
    return did, {name: one.main_grad.values if one.main_grad else None for name, one in params.items()}


class NonTensorModelParallelGrads(EndState):
    """The end state of the function."""

    varied: ClassVar[dict[str, str]] = {
        "config.qk_layernorm": "qk",
        "config.sequence_parallel": "sequence_parallel",
        "ddp_config.use_megatron_fsdp": "gradients",
        **dict.fromkeys(("grad", "param.requires_grad"), "lacks"),
        **dict.fromkeys(("grads", "name", "param"), "norms and qk, and those of every model"),
        "tp_group.size": "ranks",
        "parallel_state.get_tensor_model_parallel_world_size": "ranks",
    }
    held: ClassVar[dict[str, str]] = {"getattr": "a builtin"}
    without: ClassVar[dict[str, Any]] = {"norms": ()}

    def configurations(self, function: Function) -> Iterator[Setting]:
        off_on, norms = (False, True), ((), RMS, WITH_BIAS, TWO)
        lacking = ("", "frozen", "none")[: 3 if "grad" in branches(function) else 2]  # older ones fail without any
        for ranks, some, parallel, qk in itertools.product((1, 2, 4), norms, off_on, off_on):
            for kind, lacks, chunks in itertools.product((PLAIN, FSDP, DTENSOR), lacking, (1, 2)):
                yield Setting(ranks, some, parallel, qk, kind, lacks, chunks, given=chunks == 1)

    def concerned(self, configuration: Setting) -> bool:
        is_partial = configuration.ranks > 1 and not configuration.sequence_parallel
        return is_partial and bool(configuration.norms) and not configuration.lacks

    def observe(self, source: Source, configuration: Setting) -> Outcome:
        known: list[list[int]] = []
        while True:
            ran = [run_rank(source, configuration, rank, known) for rank in range(configuration.ranks)]
            reductions = [[(one.operation, len(one.values)) for one in did] for did, _ in ran]
            if any(one != reductions[0] for one in reductions):
                return Outcome(frozenset({"the ranks do not reduce the same"}), repr(reductions))
            if len(reductions[0]) == len(known):
                break
            total = [sum(each) for each in zip(*(did[len(known)].values for did, _ in ran))]
            is_mean = reductions[0][len(known)][0] == "avg"
            known.append([one // configuration.ranks for one in total] if is_mean else total)
        faults = {
            f"the gradient of {name} is not {'the sum' if kind_of(configuration, name) == PART else 'right'}"
            for rank, (_, found) in enumerate(ran)
            for name, values in found.items()
            if values is not None and values != wanted(configuration, name, rank)
        }
        if len({operation for operation, _ in reductions[0]}) < len(reductions[0]):
            faults.add("more than one all-reduce of a kind")
        return Outcome(frozenset(faults), repr((reductions, [found for _, found in ran])))


class Heads(NamedTuple):
    """What a rank has of a gated delta net."""

    heads: int = 4
    width: int = 3


class GatedNorm(EndState):
    """The end state of the gated norm, which is wrong if one norm is that of each head."""

    varied: ClassVar[dict[str, str]] = {}

    def configurations(self, function: Function) -> Iterator[Heads]:
        yield from itertools.starmap(Heads, itertools.product((1, 2, 4), (3, 2)))

    def concerned(self, configuration: Heads) -> bool:
        return configuration.heads > 1

    def observe(self, source: Source, configuration: Heads) -> Outcome:
        seen: list[tuple[int, ...]] = []

        def out_norm(x: Tensor) -> Tensor:
            seen.append(x.shape)
            return x

        itself = StandIn("self", out_norm=out_norm, act_fn=lambda gate: gate)
        of_heads = Tensor(2, "bfloat16", "cuda", shape=(5, *configuration))
        called(source, {"torch": torch()})(itself, of_heads, of_heads)
        is_shared = configuration.heads > 1 and seen == [(5 * configuration.heads, configuration.width)]
        return Outcome(frozenset({"the heads share a norm"} if is_shared else ()), repr(seen))


END_STATES = {
    "_allreduce_non_tensor_model_parallel_grads": NonTensorModelParallelGrads(),
    "GatedDeltaNet._torch_compiled_gated_norm": GatedNorm(),
    "GatedDeltaNet._apply_gated_norm": GatedNorm(),
    "_GDNBase._apply_gated_norm": GatedNorm(),
}
