"""trl: the gradient of each optimizer step by the real ``_compute_loss``, beside that of the window's own tokens.

Each rank has its part of a generation, cut into micro-batches; gradient accumulation adds up those of a window. Models,
which give the log probabilities, and what the modules import are stand-ins. Ranks are averaged, as DDP does.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import math
import re
import sys
from collections import defaultdict
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from ..cases import DIFFERS, PASSED, Case, Topology
from ..ranks.around import Around, any_module

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAIN, _DPPO = "trl.trainer.grpo_trainer", "trl.experimental.dppo.dppo_trainer"
_TRAINERS = {_MAIN: "GRPOTrainer", "trl.experimental.gspo_token.grpo_trainer": "GRPOTrainer", _DPPO: "DPPOTrainer"}
_AROUND = ("trl", "transformers", "accelerate", "datasets", "huggingface_hub", "pandas", "jinja2", "requests")
_ABSENT = ("bitsandbytes", "jmespath", "liger_kernel", "peft", "rich", "trackio", "vllm", "wandb")
_LENGTHS = {1: ((3, 7), (6, 4), (8, 2)), 2: ((1, 2, 4, 3), (3, 1, 1, 5), (6, 1, 2, 1))}
"""The tokens of each answer of a micro-batch, of all ranks; as many in each, so that a window's share is exact."""
_MOST, _BONUS = 8, 0.5


def _case(name: str, generation: int, window: int, *, core: bool = False, ranks: int = 1, **more: Any) -> Case:
    more = {"generation": generation, "window": window, "loss": "dapo", **more}
    is_wrong = generation != window and more["loss"] != "grpo" and not more.get("is_evaluation")
    return Case(name, Topology(dp=ranks), *((DIFFERS, "norm") if is_wrong else (PASSED, "")), more, core)


CASES = (
    _case("half", 4, 2, core=True),
    _case("twice", 2, 4, core=True),
    _case("four-times", 2, 8),
    _case("two-ranks", 2, 4, ranks=2),
    _case("equal", 3, 3, core=True),
    _case("another-loss", 4, 2, core=True, loss="grpo"),
)
GRID = [
    *CASES,
    *(_case(f"six, in steps of four, on {ranks}", 6, 4, ranks=ranks) for ranks in (1, 2)),
    *(_case(f"one, in steps of one, on {ranks}", 1, 1, ranks=ranks) for ranks in (1, 2)),
    _case("an evaluation", 4, 2, is_evaluation=True),
    _case("the last step of an epoch is shorter", 2, 4, rest=2),
    _case("a tool's tokens", 4, 2, has_tools=True),
    _case("a reference model", 4, 2, beta=0.04),
    _case("vllm", 4, 2, use_vllm=True),
    *(_case(loss, 4, 2, loss=loss) for loss in ("cispo", "vespo")),
    _case("more tokens than half a float holds", 4, 2, lengths=(65_601, 6)),
    _case("a lone token on two", 1, 1, ranks=2, lengths=(1, 0, 0, 0)),
    _case("all answers are cut off", 1, 1, lengths=(0, 0)),
    *(_case(f"a bonus for entropy, in steps of {window}", 3, window, has_bonus=True) for window in (1, 3)),
]
HELD = {r"^(?!.*model\.training).*": "of each token's loss, of what is logged, or of what has another divisor"}
YOURS = CASES[0]._replace(name="yours", core=False)


def settings(case: Case) -> dict[str, Any] | None:
    """Return what the user of such a job sets; no job only evaluates."""
    given = case.options
    sizes = {"steps_per_generation": given["generation"], "gradient_accumulation_steps": given["window"]}
    more = {"loss_type": given["loss"], "use_liger_kernel": False, "generation_batch_size": None}
    return None if given.get("is_evaluation") else {**sizes, **more}


def prepare() -> None:
    """Import the trainer among stand-ins: none of them computes anything of the loss."""
    for package in _AROUND:
        for name in [it for it in sys.modules if it.partition(".")[0] == package]:
            del sys.modules[name]
        sys.meta_path.insert(0, Around(package, _TRAINERS, _stand_in))
    importlib.import_module("transformers").__version__ = "5.0.0"  # type: ignore[attr-defined]
    importlib.import_module(_MAIN)


def _stand_in(name: str) -> ModuleType:
    made = any_module(name)
    vars(made).update({f"is_{each}_available": lambda *_, **__: False for each in _ABSENT})
    return made


def on_rank(case: Case, rank: int) -> list[Any]:
    """Return a rank's gradient of each optimizer step; of each micro-batch in an evaluation."""
    import torch

    trainer, (kind, source), given = _trainer(case, rank), _kind(case), case.options
    tokens = sum(_lengths(case, 0)) * (1 if given.get("is_evaluation") else given["generation"])
    if "loss_mask.sum()" not in inspect.getsource(sys.modules[kind.__module__]):
        tokens = max(1, tokens)  # before 1.9.0, those of an answer that was cut off counted, too
    (scored,) = re.findall(r"^ *(.+) = self._get_per_token_logps_and_entropies", source, re.MULTILINE)
    theta, steps = torch.zeros(3, requires_grad=True), []
    for step, (first, count) in enumerate(_windows(case)):
        trainer.state = SimpleNamespace(global_step=step, epoch=float(step))
        trainer.current_gradient_accumulation_steps = given["window"] if given.get("is_evaluation") else count
        for number in range(first, first + count):
            trainer.accelerator.sync_gradients = number == first + count - 1
            values, mask, advantages = _batch(case, number, rank)
            logps, ones = values @ theta, torch.ones_like(mask)
            scores = (logps, values.sum(2) * theta.sum(), None)[: 1 + scored.count(",")]
            trainer._get_per_token_logps_and_entropies = lambda *_, scores=scores, **__: scores
            inputs = {"prompt_ids": ones, "prompt_mask": ones, "completion_ids": ones, "completion_mask": mask}
            if given.get("has_tools") and "tool_mask" in source:
                inputs.update(completion_mask=ones, tool_mask=mask)
            if "advantages.unsqueeze" not in source:
                advantages = advantages[:, None]
            before = dict.fromkeys(("sampling_per_token_logps", "ref_per_token_logps"), logps.detach())
            inputs.update(before, advantages=advantages, num_items_in_batch=torch.tensor(tokens))
            inputs.update(importance_sampling_ratio=torch.ones_like(logps) if given.get("use_vllm") else None)
            trainer._buffered_inputs = [inputs] * given["generation"]
            trainer._compute_loss(trainer.model, inputs).backward()
        steps.append(theta.grad)
        theta.grad = None
    return steps


def wrong(case: Case, ranks: Sequence[list[Any]]) -> str:
    """Return what is wrong with a gradient; empty where nothing is."""
    steps = [sum(of) / len(ranks) for of in zip(*ranks)]
    near = [bool((one - due).norm() <= 1e-4 * due.norm()) for one, due in zip(steps, _due(case))]  # NaN is not
    return "" if all(near) and len(steps) == len(_windows(case)) else right(case, ranks)


def right(case: Case, ranks: Sequence[list[Any]]) -> str:
    """Return what was seen, beside what is due."""
    got, due = sum(of[0] for of in ranks) / len(ranks), _due(case)[0]
    return f"the gradient of the first step has norm {got.norm():.4f}, due {due.norm():.4f}"


def _kind(case: Case) -> tuple[Any, str]:
    """Return the trainer's class, and the function's text, which tells what one of its time takes and knows."""
    name = case.options.get("module", _MAIN)
    kind = getattr(importlib.import_module(name), _TRAINERS[name])
    return kind, inspect.getsource(kind._compute_loss)


def _trainer(case: Case, rank: int) -> Any:
    import torch

    kind, _ = _kind(case)
    trainer, given = object.__new__(kind), case.options
    alike = dict.fromkeys(("gather", "gather_for_metrics", "reduce"), lambda it, **_: it)
    window, ranks = {"gradient_accumulation_steps": given["window"]}, case.topology.world
    vespo = {f"vespo_{name}": 2.0 for name in ("k_pos", "k_neg", "lambda_pos", "lambda_neg")}
    rows = {"per_device_train_batch_size": 2, "generation_batch_size": 2 * ranks * given["generation"]}
    sizes = {"steps_per_generation": given["generation"], "num_iterations": ranks, **window, **rows}
    vars(trainer).update(
        accelerator=SimpleNamespace(num_processes=ranks, is_main_process=rank == 0, **window, **alike),
        args=SimpleNamespace(**sizes, **vespo, delta=None, use_bias_correction_kl=False), num_iterations=ranks,
        model=SimpleNamespace(training=not given.get("is_evaluation")), tools=given.get("has_tools"),
        use_vllm=given.get("use_vllm", False), vllm_importance_sampling_correction=True, beta=given.get("beta", 0.0),
        loss_type=_loss(case), aux_loss_enabled=False, top_entropy_quantile=1.0,
        _metrics=defaultdict(lambda: defaultdict(list)), importance_sampling_level="token", epsilon_low=0.2,
        epsilon_high=2.0, off_policy_mask_threshold=None, use_adaptive_entropy=False, entropy_coef=_BONUS,
        _entropy_bonus_enabled=given.get("has_bonus"), divergence_type="", clip_ratio_c=2.0,
        _compute_divergence_mask=lambda logps, *_, **__: torch.ones_like(logps),
    )  # fmt: skip
    return trainer


def _loss(case: Case) -> str:
    """Return the loss of a setting; of a function that has one loss alone, that."""
    loss: str = case.options["loss"]
    return loss if repr(loss) in _kind(case)[1].replace('"', "'") else "dapo"


def _windows(case: Case) -> list[tuple[int, int]]:
    """Return the first micro-batch of each optimizer step, and how many it has."""
    generation, window = case.options["generation"], case.options["window"]
    if case.options.get("is_evaluation"):
        return [(0, 1), (1, 1)]
    end = math.lcm(generation, window) + case.options.get("rest", 0)
    return [(first, min(window, end - first)) for first in range(0, end, window)]


def _lengths(case: Case, number: int) -> Sequence[int]:
    """Return the tokens of each answer of a micro-batch."""
    lengths: Sequence[int] = case.options.get("lengths", _LENGTHS[case.topology.world][number % 3])
    return lengths


def _batch(case: Case, number: int, rank: int) -> tuple[Any, Any, Any]:
    """Return the slopes of a rank's log probabilities, which of them count, and the advantages."""
    import torch

    lengths, drawn = _lengths(case, number), torch.Generator().manual_seed(number)
    most = max(_MOST, *lengths)
    values, advantages = (torch.randn(len(lengths), *more, generator=drawn) for more in ((most, 3), ()))
    mask = (torch.arange(most) < torch.tensor(lengths)[:, None]).float()
    return tuple(it[2 * rank : 2 * rank + 2] for it in (values, mask, advantages))


def _due(case: Case) -> list[Any]:
    """Return the gradient of each optimizer step: the mean over all tokens of its window; for grpo, over answers."""
    due, ranks, (_, source) = [], range(case.topology.world), _kind(case)
    bonus = _BONUS * (case.options.get("has_bonus", False) and "_entropy_bonus_enabled" in source)
    for first, count in _windows(case):
        total: Any = 0.0
        for number, rank in itertools.product(range(first, first + count), ranks):
            values, mask, advantages = _batch(case, number, rank)
            terms = -advantages[:, None, None] * values - bonus * values.sum(2)[:, :, None]
            share = mask / max(1, sum(_lengths(case, number)) * count)
            if _loss(case) == "grpo":
                share = mask / mask.sum(1)[:, None] / (2 * len(ranks) * count)
            total = total + (terms * share[:, :, None]).sum((0, 1))
        due.append(total)
    return due
