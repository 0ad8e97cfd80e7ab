"""ms-swift: the gradients of its real log probabilities and KL divergence on real ranks, beside one without shards.

megatron-core is real, its groups and the functions that the rewrite uses. The model is one output layer: each rank has
its rows of the weight, and the gradient of the hidden states is summed over the ranks, as Megatron's layer does.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..cases import DIFFERS, PASSED, Case, Outcome, Topology
from ..ranks import gloo, megatron, shims

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WARM = ("torch",)
BESIDE = {"ms-swift": ("megatron-core",)}
_TWO, _FOUR = Topology(tp=2), Topology(tp=4)
_WRONG = "the gradient of the weight: norm"
_GRPO: dict[str, Any] = {"loss": "grpo"}
_GKD: dict[str, Any] = {"loss": "gkd"}
_PEAKED, _BATCH = {"scale": 8.0}, {"batch": 2, "transposed": True}
CASES = (
    Case("grpo-tp2", _TWO, "ranks", DIFFERS, _WRONG, _GRPO, core=True),
    Case("grpo-tp2-peaked", _TWO, "ranks", DIFFERS, _WRONG, {**_GRPO, **_PEAKED}, core=True),
    Case("grpo-tp2-batch", _TWO, "ranks", DIFFERS, _WRONG, {**_GRPO, **_BATCH}),
    Case("grpo-tp4", _FOUR, "ranks", DIFFERS, _WRONG, _GRPO),
    Case("gkd-tp2", _TWO, "ranks", DIFFERS, _WRONG, _GKD, core=True),
    Case("gkd-tp2-peaked", _TWO, "ranks", DIFFERS, _WRONG, {**_GKD, **_PEAKED}),
    Case("gkd-tp2-batch", _TWO, "ranks", DIFFERS, _WRONG, {**_GKD, **_BATCH}),
    Case("grpo-tp1", Topology(), "ranks", PASSED, options=_GRPO, core=True),
    Case("gkd-tp1", Topology(), "ranks", PASSED, options=_GKD),
    Case("grpo-tp2-no-gradient", _TWO, "ranks", PASSED, options={**_GRPO, "grad": False}, core=True),
)
YOURS = Case("yours", _TWO, "ranks", DIFFERS, _WRONG, _GRPO)
RULED_OUT = ("tp", "without shards of the vocabulary, the function is torch's own")
_VOCABULARY, _HIDDEN, _TOKENS = 16, 6, 9
_MODULE = "swift.megatron.trainers.vocab_parallel_utils"


def caveat(case: Case) -> str:
    """Return what the case leaves open."""
    return "only GRPO, and GKD with the teacher's whole vocabulary, take their gradient from this function"


def prepare() -> None:
    """Import the real functions; the packages around them are empty."""
    shims.cuda_on_cpu()
    (root,) = PathFinder.find_spec("swift").submodule_search_locations  # type: ignore[union-attr, misc]
    for name in ("swift", "swift.megatron", "swift.megatron.trainers"):
        sys.modules[name] = module = ModuleType(name)
        module.__path__ = [root + name.removeprefix("swift").replace(".", "/")]
    importlib.import_module(_MODULE)


def run(case: Case, deadline_s: float) -> Outcome:
    """Compute values and gradients on every rank, and compare them with those of one process."""
    world = gloo.run(case.topology.world, lambda rank: _sharded(case, rank), deadline_s=deadline_s)
    return world.outcome(
        lambda ranks: "; ".join(text for text, is_right in _compared(case, ranks) if not is_right),
        lambda ranks: "; ".join(text for text, _ in _compared(case, ranks)),
    )


def _compared(case: Case, ranks: Sequence[tuple[Any, Any, Any]]) -> Iterator[tuple[str, bool]]:
    """Yield how far values and gradients are from those of one process, and whether that is only rounding."""
    import torch

    values, weight, hidden = _whole(case)
    apart = max(float((rank[0] - values).abs().max()) for rank in ranks)
    text = f"the values are {apart:.0e} from those of one process"
    yield text, apart < 1e-5 * max(1.0, float(values.abs().max()))
    if not case.options.get("grad", True):
        return
    found = {"weight": torch.cat([rank[1] for rank in ranks]), "hidden states": ranks[0][2]}
    for (name, got), due in zip(found.items(), (weight, hidden)):
        cosine = float(torch.nn.functional.cosine_similarity(got.flatten(), due.flatten(), dim=0))
        text = f"the gradient of the {name}: norm {got.norm():.2f}, due {due.norm():.2f}, cosine {cosine:.3f}"
        yield text, bool((got - due).abs().max() < 1e-5 * due.abs().max())


def _sharded(case: Case, rank: int) -> tuple[Any, Any, Any]:
    """Return what one rank computes: values, its rows of the weight's gradient, the gradient of the hidden states."""
    import torch
    import torch.distributed as dist

    module = importlib.import_module(_MODULE)
    megatron.initialize(case.topology)
    hidden, weight, labels, teacher, factors = _job(case)
    size = _VOCABULARY // case.topology.tp
    shard = slice(rank * size, rank * size + size)
    hidden, weight = hidden.requires_grad_(), weight[shard].clone().requires_grad_()
    with torch.set_grad_enabled(case.options.get("grad", True)):
        logits = hidden @ weight.t()
        if case.options.get("transposed"):  # a view, as of a model that has the sequence first
            logits = logits.transpose(0, 1).contiguous().transpose(0, 1)
        if case.options["loss"] == "gkd":
            values = module.vocab_parallel_kl_div(module.vocab_parallel_log_softmax(logits), teacher[..., shard])
        elif case.options.get("transposed"):
            values = module.vocab_parallel_gather_logps(logits, labels)
        else:  # with the entropy, which takes no such view
            values, _ = module.compute_logps_and_entropy_from_logits(logits, labels, compute_entropy=True)
    if values.requires_grad:
        (values * factors).sum().backward()
        dist.all_reduce(hidden.grad)
    return values.detach(), weight.grad, hidden.grad


def _whole(case: Case) -> tuple[Any, Any, Any]:
    """Return what one process computes that has the whole vocabulary."""
    import torch

    hidden, weight, labels, teacher, factors = _job(case)
    hidden, weight = hidden.requires_grad_(), weight.requires_grad_()
    log_probs = torch.log_softmax(hidden @ weight.t(), -1)
    if case.options["loss"] == "gkd":
        values = (teacher.exp() * (teacher - log_probs)).sum(-1)
    else:
        values = log_probs.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1) * (labels != -100)
    (values * factors).sum().backward()
    return values.detach(), weight.grad, hidden.grad


def _job(case: Case) -> tuple[Any, ...]:
    """Return hidden states, weight, labels, a teacher's log probabilities, and each token's factor in the loss."""
    import torch

    torch.manual_seed(0)
    tokens = (case.options.get("batch", 1), _TOKENS)
    hidden = torch.randn(*tokens, _HIDDEN)
    weight = torch.randn(_VOCABULARY, _HIDDEN) * case.options.get("scale", 1.0) ** 0.5
    labels = torch.distributions.Categorical(logits=hidden @ weight.t()).sample()
    labels[0, 4] = -100  # of a prompt
    teacher = torch.log_softmax(torch.randn(*tokens, _VOCABULARY), -1)
    return hidden, weight, labels, teacher, torch.randn(tokens)
