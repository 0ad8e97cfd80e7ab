"""megatron-core: the real ``MoELayer`` and its AllGather dispatcher, on real expert-parallel ranks.

Stand-ins in words of our own take the place of Transformer Engine's grouped linears and fused permutation, which need a
GPU. The fused permutation has a map of its own. Where it gets rows and is to return none, it refuses, as from
Transformer Engine 2.15 on, or its backward pass fails, as before; and to no row, its inverse returns that. So this
shows what becomes of the ranks of a job with such a pair, and that the rewrite cures it. It does not show the kernels,
nor streams or CUDA graphs.

Each job has three steps: tokens for all ranks, tokens for the first two experts alone, and tokens for all again. Each
step runs once more without fusion. The output and the gradients must be the same. A control has another dispatcher,
and no batch on the last rank: pull request 3626 as written hangs there. Others have few tokens. A function that is
judged alone runs beside a mate as the fix leaves it.
"""

from __future__ import annotations

import ast
import copy
import inspect
import re
import textwrap
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..cases import CRASHED, HUNG, PASSED, Case, Topology
from ..ranks import megatron, moe_layer, shims
from ..ranks.moe_layer import DISTRIBUTIONS as DISTRIBUTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_EP2, _EP4 = Topology(dp=2, ep=2), Topology(dp=4, ep=4)
_REFUSED = "moe_permute (mask map) requires num_out_tokens > 0, got 0"  # as Transformer Engine 2.15 says it
_NO_ROWS = "is invalid for input of size 0"
_ALONE = {"without": "empty-expert-hang"}
_NO_BATCH = {"fusion": False, "empty": False, "dispatcher": "alltoall", "no_batch": True}
CASES = (
    Case("refuses", _EP2, CRASHED, _REFUSED, {"refuses": True}, core=True),
    Case("returns", _EP2, CRASHED, _NO_ROWS, core=True),
    Case("ep4-refuses", _EP4, CRASHED, _REFUSED, {"refuses": True}),
    Case("ep4-returns", _EP4, CRASHED, _NO_ROWS),
    Case("unfused", _EP2, PASSED, options={"fusion": False}, core=True),
    Case("tokens", _EP2, PASSED, options={"empty": False}, core=True),
    Case("alltoall-no-batch", _EP2, PASSED, options=_NO_BATCH, core=True),
    Case("cuts", _EP2, CRASHED, _REFUSED, {"refuses": True, "cuts": True, **_ALONE}, patched=HUNG),
)
_CLASS = "MoEAllGatherTokenDispatcher"
_PERMUTES = (f"{_CLASS}.dispatch_postprocess", f"{_CLASS}.token_permutation")
_UNPERMUTES = (f"{_CLASS}.combine_preprocess", f"{_CLASS}.token_unpermutation")
_FULL, _EMPTY, _OTHERS, _FEW, _FIRST, _LAST = "full", "empty", "others empty", "few", "first", "last"
_MIDDLE = "middle"
_TOKENS = 16  # of each rank
_CHOSEN = {_FULL: None, _EMPTY: (0, 1), _OTHERS: (2, 3), _FEW: (0, 1), _FIRST: (0, 2), _LAST: (1, 3), _MIDDLE: (1, 2)}
"""The experts of a step's tokens. With few, one token has the others."""
_REFUSES, _FEWER, _SOME = {"refuses": True}, {"kinds": (_FEW, _FULL)}, {"kinds": (_FIRST, _LAST)}
_INFERS, _CONTROLS = {"trains": False}, (_FEWER["kinds"], _SOME["kinds"])
GRID = [
    Case(
        f"{'permuted' if of is _PERMUTES else 'unpermuted'}, {topology.text()}, {options}",
        topology,
        CRASHED
        if topology.ep > 1 and options.get("fusion", True) and options.get("kinds") not in _CONTROLS
        else PASSED,
        options={**options, "of": of},
    )
    for of in (_PERMUTES, _UNPERMUTES)
    for topology, each in (
        (Topology(), ({"kinds": (_FEW, _OTHERS, _MIDDLE)},)),
        (_EP2, (_REFUSES, {"bias": True}, {**_REFUSES, **_INFERS}, _INFERS, {"fusion": False}, _FEWER, _SOME)),
        (_EP2, ({"kinds": (_OTHERS, _FULL)},)),
        (Topology(tp=2, etp=2), (_FEWER,)),
        (Topology(tp=2, dp=2, ep=2, etp=2), (_REFUSES, _SOME)),
        (_EP4, ({**_FEWER, "bias": True}, {})),
    )
    for options in each
]
YOURS = CASES[0]  # the smallest job: the sizes only change how likely an empty rank is
RULED_OUT = ("ep", "with EP 1 every rank has all experts, and so the tokens of all")


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of a case's job sets."""
    of_each = moe_layer.EXPERTS // case.topology.ep
    chosen = [it for kind in _kinds(case) if kind != _FEW and (it := _CHOSEN[kind])]
    return {
        "moe_permute_fusion": case.options.get("fusion", True),
        "moe_token_dispatcher_type": case.options.get("dispatcher", "allgather"),
        "expert_model_parallel_size": case.topology.ep,
        "a rank whose experts get no token": any(
            len({one // of_each for one in it}) < case.topology.ep for it in chosen
        ),
    }


def about(installed: Mapping[str, str]) -> str:
    """Return the remark for the versions of the installed ``DISTRIBUTIONS``."""
    stand_in = "the proof's fused permutation is a stand-in, because a CPU cannot run Transformer Engine's"
    version = next((installed[name] for name in DISTRIBUTIONS if name in installed), None)
    if version is None:
        return f"no Transformer Engine is installed, without which nothing is fused; {stand_in}"
    parts = tuple(map(int, re.findall(r"\d+", version)[:2]))
    does = "refuses to return no row" if parts >= (2, 15) else "fails in its backward pass without a row"
    return f"Transformer Engine {version} is installed, which by its source {does}; {stand_in}"


class Step(NamedTuple):
    """What one rank did in one step."""

    tokens: int
    """Tokens that its experts got."""
    fused: tuple[str, ...]
    """The fused calls, in order."""
    gradients: Mapping[str, float | None]
    """The largest absolute gradient of each weight of its experts, by name; None where it has none."""
    differs: tuple[str, ...]
    """The output and the gradients, by name, where they are not those of the same step without fusion."""


def prepare() -> None:
    """Import megatron-core for a CPU."""
    shims.cuda_on_cpu()
    moe_layer.stand_in()


def has_feature(function: ast.FunctionDef) -> bool:
    """Return whether the function fuses anything."""
    return "moe_permute_fusion" in ast.unparse(function)


def _kinds(case: Case) -> Sequence[str]:
    second = _EMPTY if case.options.get("empty", True) else _FULL
    kinds: Sequence[str] = case.options.get("kinds", (_FULL, second, _FULL))
    return kinds


def on_rank(case: Case, rank: int) -> list[Step]:
    """Run the steps as one rank."""
    import torch

    called: list[str] = []
    shims.gloo_as_nccl()
    megatron.initialize(case.topology)
    _stand_in(bool(case.options.get("refuses")), called)
    options = {"dispatcher": "allgather", "cuts": False, **case.options}
    layer = moe_layer.make(options, case.topology.ep, case.topology.tp)
    _mate(case.options.get("of"), getattr(layer.token_dispatcher, "tp_ep_group", None))
    batch = 0 if case.options.get("no_batch") and rank == case.topology.world - 1 else _TOKENS
    trains = case.options.get("trains", True)
    tokens: list[int] = []

    def received(_: Any, given: Any) -> None:
        tokens.append(int(given[1].sum()))
        layer.token_dispatcher._empty_local_dispatch = tokens[-1] == 0  # as pull request 3626 leaves it to its mate

    layer.experts.register_forward_pre_hook(received)
    if has_bias := bool(case.options.get("bias")) and _takes_bias():
        layer.token_dispatcher.add_bias = True
        layer.experts.register_forward_hook(lambda _, given, found: (found[0], found[0] * 2))
    layer.train(trains)
    layer.config.moe_permute_fusion = bool(case.options.get("fusion", True))
    unfused = copy.copy(layer.config)
    unfused.moe_permute_fusion = False
    steps = []
    for number, kind in enumerate(_kinds(case)):
        moe_layer.route(layer, _CHOSEN[kind])
        results = []
        for config in (layer.config, unfused):
            layer.token_dispatcher.config = config
            torch.manual_seed(100 * number + rank)
            given = torch.rand(batch, 1, moe_layer.HIDDEN)
            if kind == _FEW and rank == 0:
                with torch.no_grad():
                    layer.router.weight[2:] = -1
                given[0] *= -1
            if trains:
                results.append(moe_layer.once(layer, given.requires_grad_()))
            else:
                with torch.no_grad():
                    results.append({"output": layer(given)[0]})
        given, wanted = results
        differs = tuple(name for name in wanted if not moe_layer.equal(given[name], wanted[name]))
        if has_bias:
            called[1:2] = []  # one more, for the bias
        steps.append(Step(tokens[-1], tuple(called), moe_layer.largest(given), differs))
        called.clear()
    return steps


def _function(names: Sequence[str]) -> Any:
    """Return which of these functions the release has."""
    from megatron.core.transformer.moe import token_dispatcher

    known = vars(getattr(token_dispatcher, _CLASS))
    return next(known[name.partition(".")[2]] for name in names if name.partition(".")[2] in known)


def _takes_bias() -> bool:
    """Return whether the release gives back a bias, as up to 0.12.0."""
    return "add_bias" in _function(_UNPERMUTES).__code__.co_names


def _mate(of: Sequence[str] | None, group: Any) -> None:
    """Let a mate that is not judged do as the fix does: without a token for a local expert, it does not fuse.

    A commit between two releases gets what its closest release lacks.
    """
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import mappings
    from megatron.core.transformer.moe import moe_utils, token_dispatcher

    def permute(*given: Any, **others: Any) -> Any:
        if others.get("fused") and of is _UNPERMUTES:
            others["fused"] = int(others["num_out_tokens"]) > 0
        return moe_utils.permute(*given, **others)[:wanted]

    def unpermute(rows: Any, *given: Any, **others: Any) -> Any:
        if others.get("fused") and of is _PERMUTES:
            others["fused"] = len(rows) > 0
        return moe_utils.unpermute(rows, *given, **others)

    def gathered(rows: Any, **_: Any) -> Any:
        return mappings.gather_from_sequence_parallel_region(rows, group=group)

    def scattered(rows: Any, **_: Any) -> Any:
        return mappings.reduce_scatter_to_sequence_parallel_region(rows, group=group)

    tree = ast.parse(textwrap.dedent(inspect.getsource(_function(_PERMUTES))))
    targets = [it.targets[0] for it in ast.walk(tree) if isinstance(it, ast.Assign) and "permute(" in ast.unparse(it)]
    wanted = next((len(it.elts) for it in targets if isinstance(it, ast.Tuple)), None)
    vars(token_dispatcher).update(permute=permute, unpermute=unpermute)
    of_old = {
        "gather_from_sequence_parallel_region_to_moe": gathered,
        "reduce_scatter_to_sequence_parallel_region_from_moe": scattered,
    }
    vars(token_dispatcher).setdefault("tensor_parallel", SimpleNamespace(**of_old))
    vars(token_dispatcher).setdefault("parallel_state", parallel_state)


def wrong(case: Case, values: Sequence[list[Step]]) -> str:
    """Return what is wrong with the steps of all ranks; empty where nothing is."""
    size, own = case.topology, moe_layer.EXPERTS // case.topology.ep
    for rank, steps in enumerate(values):
        first = rank // size.etp % size.ep * own
        for number, (kind, step) in enumerate(zip(_kinds(case), steps), 1):
            where = f"rank {rank}, step {number} ({kind})"
            chosen = None if kind == _FEW else _CHOSEN[kind]
            has_none = chosen is not None and not {*chosen} & {*range(first, first + own)}
            assert (step.tokens == 0) == has_none, f"{where}: {step.tokens} tokens"
            fuses = case.options.get("fusion", True) and case.options.get("feature", True) and not has_none
            if step.fused != (("permute", "unpermute") if fuses else ()):
                return f"{where}: {step.tokens} tokens, fused: {', '.join(step.fused) or 'nothing'}"
            if step.differs:
                return f"{where}: differs from the run without fusion: {', '.join(step.differs)}"
            if not case.options.get("trains", True):
                continue
            missing = [name for name, largest in step.gradients.items() if largest is None]
            if missing or not step.gradients:
                return f"{where}: no gradient of {', '.join(missing) or 'any expert'}"
            if has_none != (not any(step.gradients.values())):
                return f"{where}: {step.tokens} tokens, gradients {step.gradients}"
    return ""


def right(case: Case, values: Sequence[list[Step]]) -> str:
    """Return what was seen."""
    return f"{len(values[0])} steps: output and all gradients are those without fusion"


def _stand_in(refuses: bool, called: list[str]) -> None:
    """Put a fused pair into the module that calls it. It appends the name of each call to ``called``."""
    import torch
    from megatron.core.transformer.moe import moe_utils, router

    class Permute(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, rows: Any, order: Any) -> Any:
            ctx.save_for_backward(order)
            ctx.rows = len(rows)
            return rows[order]

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            if len(gradient) == 0 and ctx.rows:
                raise AttributeError("the backward pass of the fused permutation lacks what it needs without a row")
            (order,) = ctx.saved_tensors
            return gradient.new_zeros(ctx.rows, gradient.shape[1]).index_add_(0, order, gradient), None

    def permute(rows: Any, routing_map: Any, num_out_tokens: Any) -> tuple[Any, Any]:
        called.append("permute")
        if refuses and len(rows) and int(num_out_tokens) == 0:
            raise AssertionError(_REFUSED)
        places = routing_map.bool().T.contiguous()  # by expert, then by token: the place of each row, -1 for none
        order = places.nonzero()[:, 1]
        fused_map = places.flatten().cumsum(0).view_as(places).masked_fill(~places, 0) - 1
        return Permute.apply(rows, order), fused_map

    def unpermute(rows: Any, fused_map: Any, merging_probs: Any = None, restore_shape: Any = None) -> Any:
        called.append("unpermute")
        if len(rows) == 0:
            return rows
        order = (fused_map >= 0).nonzero()[:, 1]
        return rows.new_zeros(restore_shape).index_add_(0, order, rows)

    names: Any = vars(moe_utils)
    names.update(HAVE_TE=True, fused_permute=permute, fused_unpermute=unpermute)
    # without Transformer Engine, upstream's takes no empty batch
    vars(router)["router_gating_linear"] = lambda rows, weight, *_: torch.nn.functional.linear(rows, weight)
