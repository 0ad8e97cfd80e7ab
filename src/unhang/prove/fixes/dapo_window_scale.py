"""ms-swift: the gradient of each optimizer step of GRPO, beside that of one batch of all its answers.

Real are ``_compute_loss`` of ms-swift's trainer and what it calls, and ``training_step`` of transformers' ``Trainer``,
which takes the mean over a step's micro-batches. The model is linear, and gives the log probabilities itself. What the
trainer imports besides is a stand-in. Ranks are averaged, as DDP does.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ..cases import DIFFERS, PASSED, Case, Topology
from ..ranks.around import Around, any_module

if TYPE_CHECKING:
    from collections.abc import Sequence

WARM = ("torch", "accelerate", "transformers.trainer")
_PLACES = ("swift.rlhf_trainers.grpo_trainer", "swift.trainers.rlhf_trainer.grpo_trainer")
_WHOLE, _CHUNKED = "GRPOTrainer._compute_loss_and_metrics", "GRPOTrainer._compute_loss_chunked"
_LENGTHS = {1: ((3, 5, 2), (6, 1, 3), (4, 4, 2)), 2: ((1, 2, 1, 3, 2, 1), (3, 1, 1, 2, 1, 2), (1, 1, 4, 1, 2, 1))}
"""The tokens of each answer of a micro-batch, of all ranks; as many in each, so that a step's share is exact."""
_ROWS, _MOST = 3, 8


def _case(name: str, generation: int, window: int, core: bool = False, ranks: int = 1, **more: Any) -> Case:
    """Return a case of so many micro-batches in a generation, and in a step.

    ``size`` is that of a chunk; ``parts`` are ranks that share sequences, and take the micro-batches of all of them.
    """
    more = {"generation": generation, "window": window, "loss": "dapo", "size": _ROWS, "parts": 1, **more}
    is_cut, is_evaluation = more["size"] < _ROWS, more.setdefault("is_evaluation", False)
    more |= {"of": [_CHUNKED if is_cut else _WHOLE], "may_pass": not is_cut}  # in 4.6.0, or before
    is_hit = is_cut or (generation * more["parts"] > 1 and not is_evaluation)
    is_hit = is_hit and more["loss"] in ("dapo", "cispo", "fipo")
    return Case(name, Topology(dp=ranks), *((DIFFERS, "norm") if is_hit else (PASSED, "")), more, core)


CASES = (
    _case("accumulates", 4, 4, True),
    _case("two steps a generation", 4, 2, True),
    _case("two generations a step", 2, 4, True),
    _case("two ranks", 2, 4, ranks=2),
    _case("chunks", 1, 1, True, size=2),
    _case("chunks, accumulates", 4, 4, size=2),
    _case("one of each", 1, 1, True),
    _case("another loss", 4, 4, True, loss="grpo"),
)
GRID = [
    *(case for case in CASES if case.name != "chunks, accumulates"),  # the other function is as it was, too
    *(_case(f"six, in steps of four, on {ranks}", 6, 4, ranks=ranks) for ranks in (1, 2)),
    *(_case(f"one, in steps of four, on {ranks}", 1, 4, ranks=ranks) for ranks in (1, 2)),
    *(_case(f"sequence parallel, in steps of {window}", 2, window, ranks=2, parts=2) for window in (1, 2)),
    *(_case(f"an evaluation, chunks of {size}", 4, 2, is_evaluation=True, size=size) for size in (2, 3)),
    _case("the last step of an epoch is shorter", 4, 4, rest=2),
    *(_case(loss, 4, 4, loss=loss) for loss in ("cispo", "fipo")),
    _case("beside supervised data", 4, 2, has_more=True),
    _case("another rank has more chunks", 1, 1, size=1, others=[4]),
    _case("chunks of another loss", 1, 1, size=2, loss="dr_grpo"),
]
HELD = {r"^(?!.*model\.training).*": "of each token's loss, of what is logged, or of what has another divisor"}
YOURS = CASES[0]._replace(name="yours", core=False)


def settings(case: Case) -> dict[str, Any] | None:
    """Return what the user of such a job sets; no job only evaluates."""
    given = case.options
    sizes = {"steps_per_generation": given["generation"], "gradient_accumulation_steps": given["window"]}
    more = {"rlhf_type": "grpo", "loss_type": given["loss"], "use_liger_kernel": False, "generation_batch_size": None}
    more |= {"sequence_parallel_size": given["parts"], "version ms-swift": "4.5.3"}
    return None if given["is_evaluation"] else {**sizes, **more, "a turn is a sample": given["size"] < _ROWS}


def prepare() -> None:
    """Import the trainer among stand-ins: none of them computes anything of the loss. Nothing goes from trl's class."""
    for name in ("swift", "trl", "vllm", "wandb", "swanlab"):
        sys.meta_path.insert(0, Around(name, _PLACES, any_module))
    trl: Any = importlib.import_module("trl")
    trl.GRPOTrainer = type("Whole", (type(trl.GRPOTrainer),), {"__delattr__": lambda *_: None})("GRPOTrainer", (), {})
    alike = dict.fromkeys(("gather", "nanmin", "nanmax"), lambda it: it)
    vars(_module()).update(alike, compute_chord_loss=lambda job, grpo_loss: grpo_loss + job.model[0].weight.sum())


def _module() -> Any:
    return importlib.import_module(next(it for it in _PLACES if importlib.util.find_spec(it)))


def on_rank(case: Case, rank: int) -> list[Any]:
    """Return a rank's gradient of each optimizer step; of each micro-batch in an evaluation."""
    given, steps = case.options, []
    job, of_generation = _job(case), given["generation"] * given["parts"]
    for first, count in _windows(case):
        job.current_gradient_accumulation_steps = count
        for number in range(first, first + count):
            start = number - number % of_generation
            all_of = [number] if given["is_evaluation"] else range(start, start + of_generation)
            tokens = sum(_batch(case, each)[1].sum() for each in all_of) * given["parts"]
            values, mask, advantages = (of[rank // given["parts"] * _ROWS :][:_ROWS] for of in _batch(case, number))
            batch = {"completion_mask": mask, "truncated_mask": mask[:, 0] < 0, "num_items_in_batch": tokens}
            batch |= {"old_per_token_logps": None, "rollout_per_token_logps": None, "teacher_per_token_logps": None}
            batch |= {"advantages": advantages[:, None].expand(mask.shape) if job.is_split else advantages}
            inputs = {"input_ids": mask, "values": values}
            inputs = (inputs, SimpleNamespace(**batch)) if job.is_split else ({**inputs, **batch},)
            if given["is_evaluation"]:
                job.model.eval()
                job.compute_loss(job.model, inputs).backward()
            else:
                job.training_step(job.model, inputs)
        steps.append(job.model[0].weight.grad[0].clone())
        job.model.zero_grad()
    return steps


def wrong(case: Case, ranks: Sequence[list[Any]]) -> str:
    """Return what is wrong with a gradient; empty where nothing is."""
    steps = [sum(of) / len(ranks) for of in zip(*ranks)]
    near = [bool((one - due).norm() <= 1e-4 * due.norm()) for one, due in zip(steps, _due(case))]  # NaN is not
    return "" if all(near) and len(steps) == len(_windows(case)) else right(case, ranks)


def right(case: Case, ranks: Sequence[list[Any]]) -> str:
    """Return what was seen, beside what is due."""
    got, due = sum(of[-1] for of in ranks) / len(ranks), _due(case)[-1]
    return f"the gradient of the last step has norm {got.norm():.4f}, due {due.norm():.4f}"


def _job(case: Case) -> Any:
    """Return a trainer with what a user sets; all else that it is asked for is None."""
    import torch
    from transformers import Trainer

    module, given = _module(), case.options
    kind = module.GRPOTrainer
    module.gather_object = lambda own: own if isinstance(own[0], bool) else [*own, *given.get("others", ())]
    members: dict[str, Any] = dict.fromkeys(("_update_metrics", "_aggregate_and_update_metrics"), lambda *_: None)
    members |= {"training_step": Trainer.training_step, "_prepare_inputs": lambda _, inputs: inputs}
    members |= {"compute_loss_context_manager": lambda _: nullcontext(), "get_chunked_inputs": _chunk}
    members["compute_loss"] = lambda job, model, inputs, **_: job._compute_loss(model, *inputs)
    members["_get_per_token_logps_and_entropies"] = lambda _, model, inputs, *__, **___: (model(inputs["values"]), None)
    job: Any = object.__new__(type("Job", (kind, Trainer), {**members, "__getattr__": lambda *_: None}))
    sizes = dict.fromkeys(("per_device_train_batch_size", "per_device_eval_batch_size"), given["size"])
    sizes |= {"steps_per_generation": given["generation"], "gradient_accumulation_steps": given["window"]}
    alike = SimpleNamespace(num_processes=case.topology.world, distributed_type=None, gather_for_metrics=lambda it: it)
    alike.backward = lambda loss, **_: loss.backward()
    has_loss = given["loss"] != "fipo" or "_compute_fipo_influence" in vars(kind)
    vars(job).update(
        args=SimpleNamespace(**sizes, n_gpu=1, optim="adamw_torch", torch_empty_cache_steps=None, delta=None),
        template=SimpleNamespace(sequence_parallel_size=given["parts"], padding_free=False), accelerator=alike,
        model=torch.nn.Sequential(torch.nn.Linear(3, 1, bias=False), torch.nn.Flatten(1)), beta=0.0,
        loss_type=given["loss"] if has_loss else "dapo", dynamic_num_samples=given["size"] < _ROWS,
        importance_sampling_level="token", epsilon_low=0.2, epsilon_high=2.0, fipo_gamma=0.9, sdar_loss_coef=0.0,
        max_completion_length=_MOST, model_accepts_loss_kwargs=False, chord_sft_iterator=given.get("has_more"),
        is_split="grpo_batch" in kind._compute_loss_and_metrics.__code__.co_varnames,
    )  # fmt: skip
    torch.nn.init.zeros_(job.model[0].weight)
    return job


def _chunk(job: Any, *given: Any) -> Any:
    """Return some rows of a batch, which newer releases have in two parts."""
    import torch

    rows = slice(*(it for it in given if isinstance(it, int)))
    parts = [{**vars(it)} if isinstance(it, SimpleNamespace) else it for it in given[: 1 + job.is_split]]
    cut = [{name: it[rows] if torch.is_tensor(it) and it.dim() else it for name, it in of.items()} for of in parts]
    return (cut[0], SimpleNamespace(**cut[1])) if job.is_split else cut[0]


def _windows(case: Case) -> list[tuple[int, int]]:
    """Return the first micro-batch of each optimizer step, and how many it has."""
    given = case.options
    if given["is_evaluation"]:
        return [(0, 1), (1, 1)]
    generation, window = (given[it] * given["parts"] for it in ("generation", "window"))
    end = math.lcm(generation, window) + given.get("rest", 0)
    return [(first, min(window, end - first)) for first in range(0, end, window)]


def _batch(case: Case, number: int) -> tuple[Any, Any, Any]:
    """Return the slopes of all ranks' log probabilities, which of them count, and the advantages.

    A step that is a whole generation has micro-batches with more tokens than others.
    """
    import torch

    given, drawn = case.options, torch.Generator().manual_seed(number)
    is_whole = given["generation"] == given["window"] and "rest" not in given
    lengths = torch.tensor(_LENGTHS[case.topology.world // given["parts"]][number % 3]) + number % 3 * is_whole
    values, advantages = (torch.randn(len(lengths), *more, generator=drawn) for more in ((_MOST, 3), ()))
    return values, torch.arange(_MOST) < lengths[:, None], advantages


def _due(case: Case) -> list[Any]:
    """Return the gradient of each optimizer step: the mean over all its tokens; for other losses, over its answers."""
    import torch

    due = []
    for first, count in _windows(case):
        batches = [_batch(case, number) for number in range(first, first + count)]
        values, mask, advantages = (torch.cat(of) for of in zip(*batches))
        counts = {"grpo": mask.sum(1, keepdim=True) * len(mask), "dr_grpo": _MOST * len(mask)}
        share = mask / counts.get(case.options["loss"], mask.sum())
        total = (-advantages[:, None, None] * values * share[:, :, None]).sum((0, 1))
        due.append(total + bool(case.options.get("has_more")))
    return due
