"""megatron-core: the gradient of a real router's weight by its auxiliary losses alone, after the real finalizer.

The router is a module of its own in Megatron's data parallelism. Its tokens are split over the ranks of TP and CP, each
data-parallel rank has its own sequence, and the model's loss is zero. The finalizer divides by all tokens that are not
padded. The right gradient is that of the same loss in plain torch, of all tokens in one process.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

from ..cases import DIFFERS, PASSED, Case, Outcome, Topology
from ..ranks import gloo, megatron, routers

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

AUX, SEQUENCE, GLOBAL, Z = "aux_loss", "seq_aux_loss", "global_aux_loss", "z_loss"
EVEN, UNEVEN = (1, 3), (3,)
"""Which tokens of a sequence are padded: as many in both halves, or one in the second."""


class Loss(NamedTuple):
    """One loss of one micro-batch."""

    kind: str
    padded: tuple[int, ...] = ()
    sequences: int = 1
    prompt: int = 0
    """How many tokens at the start of a sequence have no target: the loss function does not count these."""

    def text(self) -> str:
        """Return which loss it is."""
        padded = f", padded at {', '.join(map(str, self.padded))}" if self.padded else ""
        prompt = f", a prompt of {self.prompt}" if self.prompt else ""
        return f"{self.kind}{padded}{f', {self.sequences} sequences' if self.sequences > 1 else ''}{prompt}"


_ONE, _TWO, _CP, _BOTH = Topology(), Topology(tp=2), Topology(cp=2), Topology(tp=2, cp=2)
_DP, _TP_DP = Topology(dp=2), Topology(tp=2, dp=2)


def _case(name: str, topology: Topology, loss: Loss, core: bool = True) -> Case:
    """Return a case that some releases pass: it depends on what they multiply by, and on whether they know padding."""
    return Case(name, topology, "ranks", DIFFERS, loss.kind, {"losses": (loss,), "may_pass": True}, core)


def _control(name: str, topology: Topology, *losses: Loss, **options: Any) -> Case:
    return Case(name, topology, "ranks", PASSED, options={"losses": losses, **options}, core=True)


CASES = (
    _case("aux", _TWO, Loss(AUX)),
    _case("aux-cp", _CP, Loss(AUX)),
    _case("aux-tp-cp", _BOTH, Loss(AUX), core=False),
    _case("aux-tp-dp", _TP_DP, Loss(AUX), core=False),
    _case("aux-even", _TWO, Loss(AUX, EVEN)),
    _case("aux-uneven", _TWO, Loss(AUX, UNEVEN)),
    _case("aux-uneven-dp", _TP_DP, Loss(AUX, UNEVEN), core=False),
    _case("aux-prompt", _TWO, Loss(AUX, prompt=2)),
    _case("sequences", _TWO, Loss(SEQUENCE, sequences=2)),
    _case("sequences-alone", _ONE, Loss(SEQUENCE, sequences=2)),
    _case("sequences-even", _TWO, Loss(SEQUENCE, EVEN, 2)),
    _case("z", _TWO, Loss(Z)),
    _case("z-uneven", _TWO, Loss(Z, UNEVEN)),
    _case("global", _TP_DP, Loss(GLOBAL)),
    _case("global-even", _TP_DP, Loss(GLOBAL, EVEN)),
    _control("one", _ONE, Loss(AUX), Loss(SEQUENCE), Loss(Z)),
    _control("one-padded", _ONE, Loss(AUX, EVEN), Loss(AUX, UNEVEN), Loss(SEQUENCE, EVEN), Loss(Z, UNEVEN)),
    _control("global-dp", _DP, Loss(GLOBAL)),
    _control("global-dp-padded", _DP, Loss(GLOBAL, EVEN), Loss(GLOBAL, UNEVEN)),
    _control("per-batch", _TWO, Loss(AUX), Loss(SEQUENCE, sequences=2), Loss(Z), per_token=False),
)
_TOKENS, _WIDTH, _EXPERTS, _TOPK, _CLOSE = 4, 3, 4, 2, 1e-5


def case_for(topology: Topology, upstream: str, shapes: Collection[str]) -> Case:
    """Return the case of a user's job, of at most two ranks of TP and CP each. Without any, some releases pass."""
    few = Topology(tp=min(topology.tp, 2), cp=min(topology.cp, 2))
    losses = (Loss(AUX), Loss(AUX, EVEN), Loss(SEQUENCE, sequences=2), Loss(Z))
    return Case("yours", few, "ranks", DIFFERS, "_loss", {"losses": losses, "may_pass": few.world == 1})


def caveat(case: Case) -> str:
    """Return what the case supposes of the user's job."""
    supposed = "supposes per-token loss and auxiliary losses, with and without a padding mask"
    return f"{supposed}, and several sequences in a micro-batch"


def prepare() -> None:
    """Import megatron-core's routers for a CPU."""
    import torch

    torch.compile = lambda function, **_: function  # it starts threads, which a fork does not have
    routers.on_cpu()


class Gradient(NamedTuple):
    """The gradient of the router's weight by one loss."""

    of: str
    found: list[float]
    right: list[float]

    def is_right(self) -> bool:
        """Return whether it is what it should be."""
        return all(abs(one - other) < _CLOSE for one, other in zip(self.found, self.right))

    def text(self) -> str:
        """Return the norms of both."""
        found, right = (sum(one * one for one in values) ** 0.5 for values in (self.found, self.right))
        return f"{self.of}: the gradient is {found:.4f}, right is {right:.4f}"


def run(case: Case, deadline_s: float) -> Outcome:
    """Run one step for each loss on every rank."""
    world = gloo.run(case.topology.world, lambda rank: _on_rank(case), deadline_s=deadline_s)
    return world.outcome(_wrong, lambda ranks: "; ".join(one.text() for one in ranks[0]) or "no such loss here")


def _wrong(ranks: Sequence[Sequence[Gradient]]) -> str:
    """Return the gradients that are wrong on some rank; empty where none is."""
    wrong = [next((rank[at] for rank in ranks if not rank[at].is_right()), None) for at in range(len(ranks[0]))]
    return "; ".join(one.text() for one in wrong if one)


def _on_rank(case: Case) -> list[Gradient]:
    """Return the gradient of each loss of the case that this release has."""
    from megatron.core.transformer.moe.router import TopKRouter

    megatron.initialize(case.topology)
    knows_padding = "padding_mask" in inspect.signature(TopKRouter.forward).parameters
    per_token = case.options.get("per_token", True)
    return [
        Gradient(loss.text(), _real(case.topology, loss, per_token), _plain(case.topology, loss))
        for loss in (Loss(*given) for given in case.options["losses"])
        if (knows_padding or not loss.padded) and (loss.kind != GLOBAL or hasattr(TopKRouter, "_apply_global_aux_loss"))
    ]


def _drawn(loss: Loss, rank: int) -> tuple[Any, Any, Any]:
    """Return the tokens of a data-parallel rank, the router's weight, and which tokens are not padded."""
    import torch

    torch.manual_seed(3)
    tokens, weight = torch.randn(_TOKENS, 2, _WIDTH), torch.randn(_EXPERTS, _WIDTH)
    for _ in range(rank):
        tokens = torch.randn(_TOKENS, 2, _WIDTH)
    valid = torch.tensor([place not in loss.padded for place in range(_TOKENS)])
    # the same sequence twice: its mean does not change
    return tokens[:, :1].repeat(1, loss.sequences, 1), weight, valid[:, None].repeat(1, loss.sequences)


def _real(topology: Topology, loss: Loss, per_token: bool) -> list[float]:
    """Return the gradient after a step of the real router and the real finalizer."""
    import torch
    from megatron.core import distributed, parallel_state
    from megatron.core.distributed.finalize_model_grads import finalize_model_grads

    router = _router(topology, loss, per_token)
    wrapped = distributed.DistributedDataParallel(
        router.config, distributed.DistributedDataParallelConfig(use_distributed_optimizer=False), router
    )
    tokens, weight, valid = _drawn(loss, parallel_state.get_data_parallel_rank())
    with torch.no_grad():
        router.weight.copy_(weight)
    of_cp = _TOKENS // topology.cp
    first = parallel_state.get_context_parallel_rank() * of_cp
    # before 0.13 the loss functions sum the tokens over CP, and not the finalizer
    is_summed = "with_context_parallel" not in inspect.getsource(finalize_model_grads)
    targets = valid.clone()
    targets[: loss.prompt] = False
    counted = (targets if is_summed else targets[first : first + of_cp]).sum().to(torch.int)
    of_tp = of_cp // topology.tp
    first += parallel_state.get_tensor_model_parallel_rank() * of_tp
    own = slice(first, first + of_tp)
    probs, _ = wrapped(tokens[own], **({"padding_mask": ~valid[own]} if loss.padded else {}))
    (probs.sum() * 0).backward()
    finalize_model_grads([wrapped], counted if per_token else None)
    gradient: list[float] = router.weight.main_grad.flatten().tolist()
    return gradient


def _router(topology: Topology, loss: Loss, per_token: bool) -> Any:
    from megatron.core.transformer.moe import moe_utils
    from megatron.core.transformer.moe.router import TopKRouter
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(
        num_layers=1,
        hidden_size=_WIDTH,
        num_attention_heads=2,
        kv_channels=2,
        num_moe_experts=_EXPERTS,
        moe_router_topk=_TOPK,
        moe_router_load_balancing_type="none" if loss.kind == Z else loss.kind,
        moe_aux_loss_coeff=0.0 if loss.kind == Z else 1.0,
        moe_z_loss_coeff=1.0 if loss.kind == Z else None,
        calculate_per_token_loss=per_token,
        tensor_model_parallel_size=topology.tp,
        context_parallel_size=topology.cp,
        sequence_parallel=topology.tp > 1,
        add_bias_linear=False,
        use_cpu_initialization=True,
    )
    accepted = inspect.signature(TopKRouter).parameters
    names = [name for name in ("model_comm_pgs", "pg_collection") if name in accepted]
    router = TopKRouter(config, **{name: getattr(moe_utils, f"get_default_{name}")() for name in names})
    router.set_layer_number(1)
    return router.train()


def _plain(topology: Topology, loss: Loss) -> list[float]:
    """Return the gradient of the mean loss of all tokens, in plain torch and in one process."""
    import torch

    drawn = [_drawn(loss, rank) for rank in range(topology.dp)]
    weight = drawn[0][1].requires_grad_()
    rows = [(tokens[valid] @ weight.t(), valid.sum()) for tokens, _, valid in drawn]
    if loss.kind == GLOBAL:
        # without padding megatron-core counts the tokens of one data-parallel rank; that is another matter
        total = _balance(torch.cat([logits for logits, _ in rows])) / (1 if loss.padded else topology.dp)
    else:
        each = [(_balance(it) if loss.kind != Z else it.logsumexp(-1).square().mean()) * count for it, count in rows]
        total = sum(each) / sum(count for _, count in rows)
    # the finalizer divides by the tokens that have a target, and the router counts all
    (total * _TOKENS / (_TOKENS - loss.prompt)).backward()
    gradient: list[float] = weight.grad.flatten().tolist()
    return gradient


def _balance(logits: Any) -> Any:
    """Return the balancing loss of tokens: by expert, the share of tokens times the mean score."""
    import torch

    scores = logits.softmax(-1)
    share = torch.zeros_like(scores).scatter(1, scores.topk(_TOPK, dim=-1).indices, 1.0).mean(0) / _TOPK
    return _EXPERTS * (share * scores.mean(0)).sum()
