"""ms-swift: the gradients of its real log probabilities and KL divergence on real ranks, beside one without shards.

megatron-core is real, its groups and the functions that the rewrite uses. The model is one output layer: each rank has
its rows of the weight, and the gradient of the hidden states is summed over the ranks, as Megatron's layer does.
"""

from __future__ import annotations

import importlib
import itertools
import sys
from typing import TYPE_CHECKING, Any

from ..cases import DIFFERS, PASSED, Case, Topology
from ..ranks import megatron, shims
from ..ranks.around import Around, Filled

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WARM = ("torch",)
BESIDE = {"ms-swift": ("megatron-core",)}
_TWO, _FOUR = Topology(tp=2), Topology(tp=4)
_SIZES = (Topology(), _TWO, Topology(tp=2, dp=2), _FOUR)
_WRONG = "the gradient of the weight: norm"
_GRPO: dict[str, Any] = {"loss": "grpo"}
_GKD: dict[str, Any] = {"loss": "gkd"}
_PEAKED: dict[str, Any] = {"scale": 8.0}
_BATCH: dict[str, Any] = {"batch": 2, "transposed": True}
CASES = (
    Case("grpo-tp2", _TWO, DIFFERS, _WRONG, _GRPO, core=True),
    Case("grpo-tp2-peaked", _TWO, DIFFERS, _WRONG, {**_GRPO, **_PEAKED}, core=True),
    Case("grpo-tp2-batch", _TWO, DIFFERS, _WRONG, {**_GRPO, **_BATCH}),
    Case("grpo-tp4", _FOUR, DIFFERS, _WRONG, _GRPO),
    Case("gkd-tp2", _TWO, DIFFERS, _WRONG, _GKD, core=True),
    Case("gkd-tp2-peaked", _TWO, DIFFERS, _WRONG, {**_GKD, **_PEAKED}),
    Case("gkd-tp2-batch", _TWO, DIFFERS, _WRONG, {**_GKD, **_BATCH}),
    Case("grpo-tp1", Topology(), PASSED, options=_GRPO, core=True),
    Case("gkd-tp1", Topology(), PASSED, options=_GKD),
    Case("grpo-tp2-no-gradient", _TWO, PASSED, options={**_GRPO, "grad": False}, core=True),
)
_FAR: dict[str, Any] = {"far": 100.0}
_KINDS = {"plain": {}, "peaked": _PEAKED, "batch": _BATCH, "far": _FAR, "apart": {"apart": 10.0}}
_OF_GKD: dict[str, dict[str, Any]] = {
    "peaked": {"tokens": 1},
    "batch": {"transposed": True, "flat": False},
    "far": {"far": -150.0},
}
"""What differs in GKD. Its loss takes the logits of chunks of tokens, without a batch, and the last may be of one."""
GRID = [
    Case(
        f"{loss}, {kind}, {'gradient' if grad else 'no gradient'}, TP {topology.tp}, DP {topology.dp}",
        topology,
        DIFFERS if grad and topology.tp > 1 else PASSED,
        # of GRPO's functions none takes such a view from ms-swift 4.6 on
        options={
            **{"loss": loss, "grad": grad, **_KINDS[kind], "transposed": False},
            **({"flat": True, **_OF_GKD.get(kind, {})} if loss == "gkd" else {}),
        },
    )
    for topology, loss, kind, grad in itertools.product(_SIZES, ("grpo", "gkd"), _KINDS, (True, False))
]
YOURS = Case("yours", _TWO, DIFFERS, _WRONG, _GRPO)
RULED_OUT = ("tp", "without shards of the vocabulary, the function is torch's own")
_VOCABULARY, _HIDDEN, _TOKENS = 16, 6, 9
_MODULE = "swift.megatron.trainers.vocab_parallel_utils"


def caveat(case: Case) -> str:
    """Return what the case leaves open."""
    return "only GRPO, and GKD with the teacher's whole vocabulary, take their gradient from this function"


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of such a job sets."""
    return {
        **{"rlhf_type": case.options["loss"], "gkd_logits_topk": None},
        "tensor_model_parallel_size": case.topology.tp,
        "the policy is trained": case.options.get("grad", True),
    }


def prepare() -> None:
    """Import the real functions, without the packages around them."""
    shims.cuda_on_cpu()
    sys.meta_path.insert(0, Around("swift", {_MODULE}, Filled))
    importlib.import_module(_MODULE)


def wrong(case: Case, ranks: Sequence[tuple[Any, Any, Any]]) -> str:
    """Return what is wrong with the values and the gradients of the ranks."""
    return "; ".join(dict.fromkeys(text for text, is_right in _compared(case, ranks) if not is_right))


def right(case: Case, ranks: Sequence[tuple[Any, Any, Any]]) -> str:
    """Return what was seen."""
    return "; ".join(dict.fromkeys(text for text, _ in _compared(case, ranks)))


def _compared(case: Case, ranks: Sequence[tuple[Any, Any, Any]]) -> Iterator[tuple[str, bool]]:
    """Yield how far values and gradients are from those of one process, and whether that is only rounding."""
    import torch

    hidden, weight, slope, labels, teacher, factors = _job(case)
    log_probs = torch.log_softmax(hidden @ weight.t() + slope, -1)
    if case.options["loss"] == "gkd":
        values = (teacher.exp() * (teacher - log_probs)).sum(-1)
    else:
        values = log_probs.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1) * (labels != -100)
    (values * factors).sum().backward()
    near = 1e-4 if {"far", "apart"} & {*case.options} else 1e-5
    for dtype in {rank[0].dtype for rank in ranks} - {values.dtype}:
        yield f"the values are {dtype}", False
    apart = max(float((rank[0] - values).abs().max()) for rank in ranks)
    yield f"the values are {apart:.0e} from those of one process", apart < near * max(1.0, float(values.abs().max()))
    replicas = range(0, len(ranks), case.topology.tp) if case.options.get("grad", True) else ()
    for own in [ranks[first : first + case.topology.tp] for first in replicas]:
        rows = torch.cat([rank[1] for rank in own])
        found = [("weight", rows, weight.grad), *(("hidden states", rank[2], hidden.grad) for rank in own)]
        for name, got, due in found:
            cosine = float(torch.nn.functional.cosine_similarity(got.flatten(), due.flatten(), dim=0))
            text = f"the gradient of the {name}: norm {got.norm():.2f}, due {due.norm():.2f}, cosine {cosine:.3f}"
            yield text, bool((got - due).abs().max() < near * due.abs().max())


def on_rank(case: Case, rank: int) -> tuple[Any, Any, Any]:
    """Return what one rank computes: values, its rows of the weight's gradient, the gradient of the hidden states."""
    import torch
    from megatron.core import parallel_state

    module = importlib.import_module(_MODULE)
    megatron.initialize(case.topology)
    hidden, weight, slope, labels, teacher, factors = _job(case)
    replica, own = divmod(rank, case.topology.tp)
    shard = torch.arange(_VOCABULARY).chunk(case.topology.tp)[own]
    weight = weight.detach()[shard].requires_grad_()
    with torch.set_grad_enabled(case.options.get("grad", True)):
        # another replica's logits are further off, so that their maximum is of no use here
        logits = hidden @ weight.t() + case.options.get("far", 0.0) * (1 + 1.5 * replica) + slope[shard]
        if case.options.get("transposed"):  # a view, as of a model that has the sequence first
            logits = logits.transpose(0, 1).contiguous().transpose(0, 1)
        if case.options.get("flat"):
            logits, teacher = logits.flatten(0, 1), teacher.flatten(0, 1)
        if case.options["loss"] == "gkd":
            values = module.vocab_parallel_kl_div(module.vocab_parallel_log_softmax(logits), teacher[..., shard])
            values = values.view_as(factors)
        elif case.options.get("transposed"):
            values = module.vocab_parallel_gather_logps(logits, labels)
        else:  # with the entropy, which takes no such view
            values, _ = module.compute_logps_and_entropy_from_logits(logits, labels, compute_entropy=True)
    if values.requires_grad:
        (values * factors).sum().backward()
        torch.distributed.all_reduce(hidden.grad, group=parallel_state.get_tensor_model_parallel_group())
    return values.detach(), weight.grad, hidden.grad


def _job(case: Case) -> tuple[Any, ...]:
    """Return hidden states, weight, what is added to the logits, labels, a teacher and each token's factor."""
    import torch

    torch.manual_seed(0)
    tokens = (case.options.get("batch", 1), case.options.get("tokens", _TOKENS))
    hidden = torch.randn(*tokens, _HIDDEN)
    weight = torch.randn(_VOCABULARY, _HIDDEN) * case.options.get("scale", 1.0) ** 0.5
    labels = torch.distributions.Categorical(logits=hidden @ weight.t()).sample()
    labels[0, 4:5] = -100  # of a prompt
    teacher = torch.log_softmax(torch.randn(*tokens, _VOCABULARY), -1)
    slope = torch.arange(_VOCABULARY) * case.options.get("apart", 0.0)  # shards may be far apart
    return hidden.requires_grad_(), weight.requires_grad_(), slope, labels, teacher, torch.randn(tokens)
