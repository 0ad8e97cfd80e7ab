"""trl: the gradient of each optimizer step by the real ``_compute_loss``, beside that of the window's own tokens.

Each rank has its part of a generation, cut into micro-batches; gradient accumulation adds up those of a window. Models,
which give the log probabilities, and what the modules import are stand-ins. Ranks are averaged, as DDP does.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import math
import sys
from collections import defaultdict
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ..cases import DIFFERS, PASSED, Case, Topology
from ..ranks.around import Around, any_module

if TYPE_CHECKING:
    from collections.abc import Sequence

_TRAINERS = {
    "trl.trainer.grpo_trainer": "GRPOTrainer",
    "trl.experimental.gspo_token.grpo_trainer": "GRPOTrainer",
    "trl.experimental.dppo.dppo_trainer": "DPPOTrainer",
}
_AROUND = (
    *("trl", "transformers", "accelerate", "datasets", "huggingface_hub", "pandas", "peft", "liger_kernel", "vllm"),
    *("wandb", "trackio", "rich", "tokenizers", "jinja2", "requests"),
)
_LENGTHS = {1: ((3, 7), (6, 4), (8, 2)), 2: ((1, 2, 4, 3), (3, 1, 1, 5), (6, 1, 2, 1))}
"""The tokens of each answer of a micro-batch, of all ranks; as many in each, so that a window's share is exact."""
_TOKENS, _MOST = 10, 8
_COEFFICIENT = 0.5


def _case(name: str, generation: int, window: int, *, core: bool = False, ranks: int = 1, **more: Any) -> Case:
    more = {"generation": generation, "window": window, "loss": "dapo", **more}
    is_wrong = generation != window and more["loss"] != "grpo" and not more.get("is_evaluation")
    end = (DIFFERS, "norm") if is_wrong else (PASSED, "")
    return Case(name, Topology(dp=ranks), *end, more, core)


CASES = (
    _case("half", 4, 2, core=True),
    _case("twice", 2, 4, core=True),
    _case("four-times", 2, 8, core=True),
    _case("two-ranks", 2, 4, ranks=2),
    _case("equal", 4, 4, core=True),
    _case("another-loss", 4, 2, core=True, loss="grpo"),
)
GRID = [
    *(
        _case(f"{generation} a generation, {window} a step, {ranks} ranks", generation, window, ranks=ranks)
        for (generation, window), ranks in itertools.product(((1, 1), (4, 2), (2, 4), (3, 3), (6, 4)), (1, 2))
    ),
    _case("an evaluation", 4, 2, is_evaluation=True),
    _case("an evaluation, one micro-batch a generation", 1, 1, is_evaluation=True),
    _case("the last step of an epoch is shorter", 2, 4, rest=2),
    _case("the same on two ranks", 2, 8, rest=6, ranks=2),
    _case("answers with a tool's tokens", 4, 2, has_tools=True),
    _case("cispo", 4, 2, loss="cispo"),
    _case("grpo", 4, 2, loss="grpo"),
    _case("a bonus for entropy", 4, 2, has_bonus=True),
    _case("a bonus for entropy, as many micro-batches", 3, 3, has_bonus=True),
]
_OTHERS = "of each token's loss, of what is logged, or of a loss that is not divided by a number of tokens of all ranks"
HELD = {r"^(?!.*(model\.training|'dapo')).*": _OTHERS}
YOURS = CASES[0]._replace(name="yours", core=False)


def settings(case: Case) -> dict[str, Any] | None:
    """Return what the user of such a job sets; nothing makes a job only evaluate."""
    options = case.options
    sizes = {"steps_per_generation": options["generation"], "gradient_accumulation_steps": options["window"]}
    more = {"generation_batch_size": None, "use_liger_kernel": False}
    return None if options.get("is_evaluation") else {"loss_type": options["loss"], **sizes, **more}


def prepare() -> None:
    """Import the trainer among stand-ins: none of them computes anything of the loss."""
    for package in _AROUND:
        for name in [it for it in sys.modules if it.partition(".")[0] == package]:
            del sys.modules[name]
        sys.meta_path.insert(0, Around(package, _TRAINERS, any_module))
    importlib.import_module("transformers").__version__ = "5.0.0"  # type: ignore[attr-defined]
    importlib.import_module("trl.extras.profiling").profiling_decorator = lambda it: it  # type: ignore[attr-defined]
    importlib.import_module("trl.trainer.grpo_trainer")


def on_rank(case: Case, rank: int) -> list[Any]:
    """Return a rank's gradient of each optimizer step; of each micro-batch in an evaluation."""
    import torch

    trainer, given = _trainer(case), case.options
    names = {*type(trainer)._compute_loss.__code__.co_consts}
    parts = {*inspect.signature(type(trainer)._get_per_token_logps_and_entropies).parameters}
    theta, steps = torch.zeros(3, requires_grad=True), []
    for first, count in _windows(case):
        trainer.current_gradient_accumulation_steps = given["window"] if given.get("is_evaluation") else count
        for number in range(first, first + count):
            values, mask, advantages = _batch(case, number, rank)
            logps, ones = values @ theta, torch.ones_like(mask)
            scores = (logps, values.sum(2) * theta.sum(), None)[: 3 if "compute_aux_loss" in parts else 2]
            trainer._get_per_token_logps_and_entropies = lambda *_, scores=scores, **__: scores
            inputs = {"prompt_ids": ones, "prompt_mask": ones, "completion_ids": ones, "completion_mask": mask}
            if given.get("has_tools") and "tool_mask" in names:
                inputs.update(completion_mask=ones, tool_mask=mask)
            tokens = torch.tensor(_TOKENS * (1 if given.get("is_evaluation") else given["generation"]))
            inputs.update(advantages=advantages, num_items_in_batch=tokens, sampling_per_token_logps=logps.detach())
            trainer._compute_loss(None, inputs).backward()
        steps.append(theta.grad)
        theta.grad = None
    return steps


def wrong(case: Case, ranks: Sequence[list[Any]]) -> str:
    """Return what is wrong with a gradient; empty where nothing is."""
    steps = [sum(of) / len(ranks) for of in zip(*ranks)]
    far = [bool((one - due).norm() > 1e-4 * due.norm()) for one, due in zip(steps, _due(case))]
    return right(case, ranks) if any(far) or len(steps) != len(_windows(case)) else ""


def right(case: Case, ranks: Sequence[list[Any]]) -> str:
    """Return what was seen, beside what is due."""
    got, due = sum(of[0] for of in ranks) / len(ranks), _due(case)[0]
    return f"the gradient of the first step has norm {got.norm():.4f}, due {due.norm():.4f}"


def _trainer(case: Case) -> Any:
    module = importlib.import_module(case.options.get("module", [*_TRAINERS][0]))
    import torch

    trainer = object.__new__(getattr(module, _TRAINERS[module.__name__]))
    alike = dict.fromkeys(("gather", "gather_for_metrics", "reduce"), lambda it, **_: it)
    generation = case.options["generation"]
    vars(trainer).update(
        accelerator=SimpleNamespace(num_processes=case.topology.world, sync_gradients=True, **alike),
        model=SimpleNamespace(training=not case.options.get("is_evaluation")),
        args=SimpleNamespace(steps_per_generation=generation, delta=None),
        _metrics=defaultdict(lambda: defaultdict(list)), loss_type=case.options["loss"], beta=0.0, epsilon_low=0.2,
        epsilon_high=2.0, importance_sampling_level="token", top_entropy_quantile=1.0, use_vllm=False,
        off_policy_mask_threshold=None, aux_loss_enabled=False, use_adaptive_entropy=False,
        _entropy_bonus_enabled=case.options.get("has_bonus", False), entropy_coef=_COEFFICIENT,
        divergence_type="", clip_ratio_c=2.0, _compute_divergence_mask=lambda logps, *_, **__: torch.ones_like(logps),
    )  # fmt: skip
    return trainer


def _windows(case: Case) -> list[tuple[int, int]]:
    """Return the first micro-batch of each optimizer step, and how many it has."""
    generation, window = case.options["generation"], case.options["window"]
    if case.options.get("is_evaluation"):
        return [(0, 1), (1, 1)]
    micro_batches = math.lcm(generation, window) + case.options.get("rest", 0)
    return [(first, min(window, micro_batches - first)) for first in range(0, micro_batches, window)]


def _batch(case: Case, number: int, rank: int) -> tuple[Any, Any, Any]:
    """Return the slopes of a rank's log probabilities, which of them count, and the advantages."""
    import torch

    lengths = torch.tensor(_LENGTHS[case.topology.world][number % 3])
    drawn = torch.Generator().manual_seed(number)
    values, advantages = torch.randn(len(lengths), _MOST, 3, generator=drawn), torch.randn(len(lengths), generator=drawn)
    mask = (torch.arange(_MOST) < lengths[:, None]).float()
    mine = slice(2 * rank, 2 * rank + 2)
    return values[mine], mask[mine], advantages[mine]


def _due(case: Case) -> list[Any]:
    """Return the gradient of each optimizer step: the mean over all tokens of its window, or over its answers."""
    ranks, due = range(case.topology.world), []
    has_bonus = "_entropy_bonus_enabled" in type(_trainer(case))._compute_loss.__code__.co_names
    for first, count in _windows(case):
        total: Any = 0.0
        for number, rank in itertools.product(range(first, first + count), ranks):
            values, mask, advantages = _batch(case, number, rank)
            terms = -advantages[:, None, None] * values * mask[:, :, None]
            if case.options.get("has_bonus") and has_bonus:
                terms = terms - _COEFFICIENT * (values.sum(2) * mask)[:, :, None]
            if case.options["loss"] == "grpo" and _TRAINERS.get(case.options.get("module", "")) != "DPPOTrainer":
                terms = terms * _TOKENS / mask.sum(1)[:, None, None] / (2 * len(ranks))
            total = total + terms.sum((0, 1)) / (_TOKENS * count)
        due.append(total)
    return due
