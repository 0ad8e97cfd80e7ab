"""megatron-core: the real ``MoELayer`` and its AllGather dispatcher, on real expert-parallel ranks.

Stand-ins in words of our own take the place of Transformer Engine's grouped linears and fused permutation, which need a
GPU. The fused permutation has a map of its own. Where it gets rows and is to return none, it refuses, as from
Transformer Engine 2.15 on, or its backward pass fails, as before; and to no row, its inverse returns that. So this
shows what becomes of the ranks of a job with such a pair, and that the rewrite cures it. It does not show the kernels,
nor streams or CUDA graphs.

Each job has three steps: tokens for all ranks, tokens for the first two experts alone, and tokens for all again. Each
step runs once more without fusion. The output and the gradients must be the same. A control has another dispatcher,
and no batch on the last rank: pull request 3626 as written hangs there.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from ..cases import CRASHED, PASSED, Case, Outcome, Topology
from ..ranks import gloo, megatron, moe_layer, shims
from ..ranks.moe_layer import DISTRIBUTIONS as DISTRIBUTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_EP2, _EP4 = Topology(dp=2, ep=2), Topology(dp=4, ep=4)
_REFUSED = "moe_permute (mask map) requires num_out_tokens > 0, got 0"  # as Transformer Engine 2.15 says it
_NO_ROWS = "is invalid for input of size 0"
_NO_BATCH = {"fusion": False, "empty": False, "dispatcher": "alltoall", "no_batch": True}
CASES = (
    Case("refuses", _EP2, "ranks", CRASHED, _REFUSED, {"refuses": True}, core=True),
    Case("returns", _EP2, "ranks", CRASHED, _NO_ROWS, core=True),
    Case("ep4-refuses", _EP4, "ranks", CRASHED, _REFUSED, {"refuses": True}),
    Case("ep4-returns", _EP4, "ranks", CRASHED, _NO_ROWS),
    Case("unfused", _EP2, "ranks", PASSED, options={"fusion": False}, core=True),
    Case("tokens", _EP2, "ranks", PASSED, options={"empty": False}, core=True),
    Case("alltoall-no-batch", _EP2, "ranks", PASSED, options=_NO_BATCH, core=True),
)
_TOKENS = 16  # of each rank
_FULL, _EMPTY = "full", "empty"
_WITH_TOKENS = 2  # experts, in a step of the second kind
YOURS = CASES[0]  # the smallest job: the sizes only change how likely an empty rank is
RULED_OUT = ("ep", "with EP 1 every rank has all experts, and so the tokens of all")


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


def run(case: Case, deadline_s: float) -> Outcome:
    """Run the steps on every rank, and check what was fused, the output and the gradients."""

    def body(rank: int) -> list[Step]:
        shims.gloo_as_nccl()
        megatron.initialize(case.topology)
        return _steps(case, rank)

    world = gloo.run(case.topology.world, body, deadline_s=deadline_s)
    return world.outcome(
        lambda ranks: _wrong(case, ranks),
        lambda ranks: f"{len(ranks[0])} steps: output and all gradients are those without fusion",
    )


def _kinds(case: Case) -> Sequence[str]:
    return (_FULL, _EMPTY if case.options.get("empty", True) else _FULL, _FULL)


def _steps(case: Case, rank: int) -> list[Step]:
    """Run the steps as one rank."""
    import torch

    called: list[str] = []
    _stand_in(bool(case.options.get("refuses")), called)
    layer = moe_layer.make({"dispatcher": "allgather", "cuts": False, **case.options}, case.topology.ep)
    batch = 0 if case.options.get("no_batch") and rank == case.topology.world - 1 else _TOKENS
    tokens: list[int] = []
    layer.experts.register_forward_pre_hook(lambda _, args: tokens.append(int(args[1].sum())))
    steps = []
    for number, kind in enumerate(_kinds(case)):
        moe_layer.route(layer, None if kind == _FULL else range(_WITH_TOKENS))
        results = []
        for fusion in (bool(case.options.get("fusion", True)), False):
            layer.config.moe_permute_fusion = fusion
            torch.manual_seed(100 * number + rank)
            results.append(moe_layer.once(layer, torch.rand(batch, 1, moe_layer.HIDDEN, requires_grad=True)))
        given, wanted = results
        differs = tuple(name for name in wanted if not moe_layer.equal(given[name], wanted[name]))
        steps.append(Step(tokens[-1], tuple(called), moe_layer.largest(given), differs))
        called.clear()
    return steps


def _wrong(case: Case, values: list[list[Step]]) -> str:
    """Return what is wrong with the steps of all ranks; empty where nothing is."""
    for rank, steps in enumerate(values):
        for number, (kind, step) in enumerate(zip(_kinds(case), steps), 1):
            where = f"rank {rank}, step {number} ({kind})"
            has_none = kind == _EMPTY and rank >= _WITH_TOKENS * case.topology.ep // moe_layer.EXPERTS
            assert (step.tokens == 0) == has_none, f"{where}: {step.tokens} tokens"
            fuses = case.options.get("fusion", True) and not has_none
            if step.fused != (("permute", "unpermute") if fuses else ()):
                return f"{where}: {step.tokens} tokens, fused: {', '.join(step.fused) or 'nothing'}"
            if step.differs:
                return f"{where}: differs from the run without fusion: {', '.join(step.differs)}"
            missing = [name for name, largest in step.gradients.items() if largest is None]
            if missing or not step.gradients:
                return f"{where}: no gradient of {', '.join(missing) or 'any expert'}"
            if has_none != (not any(step.gradients.values())):
                return f"{where}: {step.tokens} tokens, gradients {step.gradients}"
    return ""


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
