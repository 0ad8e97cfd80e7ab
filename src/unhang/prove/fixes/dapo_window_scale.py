"""ms-swift: the gradient of each optimizer step of GRPO, beside that of one batch of all its answers.

Real are ``_compute_loss`` of ms-swift's trainer and what it calls, and ``training_step`` of transformers' ``Trainer``,
which takes the mean over a step's micro-batches. The model gives log probabilities. Ranks are averaged, as DDP does.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import itertools
import math
import sys
from contextlib import nullcontext
from typing import Any

from ..cases import DIFFERS, PASSED, Case, Topology
from ..ranks.around import Around, any_module

WARM = ("torch", "accelerate", "transformers.trainer")
_PLACES = ("swift.rlhf_trainers.grpo_trainer", "swift.trainers.rlhf_trainer.grpo_trainer")
_LENGTHS = ((3, 5, 2), (6, 1, 3), (4, 4, 2))  # of the answers of a micro-batch; as many in all, so shares are exact
_ROWS, _MOST, _AROUND = 3, 8, ("swift", "trl", "vllm", "wandb", "swanlab", "dacite")


def _case(name: str, generation: int, window: int, core: bool = False, ranks: int = 1, **more: Any) -> Case:
    """Return a case of so many micro-batches in a generation, and in a step: for each of ``parts`` that share them."""
    more = {"set": generation, "rows": _ROWS, "parts": 1, "loss": "dapo", "train": True, "adds": False, **more}
    is_cut = more["rows"] < _ROWS
    more |= {"generation": generation, "window": window, "may_pass": True}  # in 4.6.0, or before
    more["of"] = [f"GRPOTrainer._compute_loss_{'chunked' if is_cut else 'and_metrics'}"]
    is_hit = more["loss"] != "grpo" and (is_cut or generation * more["parts"] > 1)
    return Case(name, Topology(dp=ranks), *((DIFFERS, "norm") if is_hit else (PASSED, "")), more, core)


CASES = (
    _case("accumulates", 4, 4, True),
    _case("two steps a generation", 4, 2, True),
    _case("two generations a step", 2, 4, True),
    _case("two ranks", 2, 4, ranks=2),
    _case("chunks", 1, 1, True, rows=2),
    *(_case("one of each", 1, 1, True), _case("another loss", 4, 4, True, loss="grpo")),
    _case("adds up", 4, 4, adds=True)._replace(untouched=PASSED, patched=DIFFERS),
    _case("chunks, accumulates", 4, 4, rows=2),
)
GRID = [
    *CASES[:-2],  # in a grid, the other function is as it was
    *(_case(f"steps of four, of {size}, on {ranks}", size, 4, ranks=ranks) for size in (1, 6) for ranks in (1, 2)),
    *(_case(f"sequence parallel, steps of {it}", 2, it, ranks=2, parts=2, own={"num_iterations": 2}) for it in (1, 2)),
    *(_case(f"an evaluation, {it} at once", 1, 1, train=False, set=4, rows=it, ranks=2, in_all=4) for it in (1, 3)),
    _case("cispo, a short last step", 4, 4, rest=2, loss="cispo", own={"beta": 0.04, "dynamic_num_samples": True}),
    _case("beside supervised data", 4, 2, more=True),
    _case("chunks of another loss", 1, 1, rows=2, loss="grpo"),
]
HELD = {r"^(?!.*model\.training).*": "of each token's loss, of what is logged, or of what has another divisor"}
YOURS = CASES[0]._replace(name="yours", core=False)


def settings(case: Case) -> dict[str, Any] | None:
    """Return what the user of such a job sets; no job only evaluates."""
    given, is_old = case.options, case.options["adds"]
    sizes = {"steps_per_generation": given["generation"], "gradient_accumulation_steps": given["window"]}
    more = {"loss_type": given["loss"], "sequence_parallel_size": given["parts"], "version ms-swift": "4.5.3"}
    none = dict.fromkeys(("use_liger_kernel", "generation_batch_size", "tensor_model_parallel_size"))
    known = {"version transformers": "4.47" if is_old else "4.48", "transformers from 4.48 on": not is_old}
    turns = {"multi_turn_scheduler": "of mine", "chunks": given["rows"] < _ROWS}
    return {**sizes, **more, **none, **known, **turns} if given["train"] else None


def has_feature(function: ast.AST) -> bool:
    """Return whether a function divides by the tokens of a generation, or calls one that does."""
    return "num_items_in_batch" in ast.dump(function) or "get_chunked_inputs" in ast.dump(function)


def prepare() -> None:
    """Import the trainer among stand-ins: none of them computes anything of the loss. Nothing goes from trl's class."""
    sys.meta_path[:0] = [Around(name, _PLACES, any_module) for name in _AROUND]
    dist: Any = importlib.import_module("torch.distributed")
    trl: Any = importlib.import_module("trl")
    trl.GRPOTrainer = type("Whole", (type(trl.GRPOTrainer),), {"__delattr__": lambda *_: None})("GRPOTrainer", (), {})
    alike = dict.fromkeys(("gather", "nanmin", "nanmax"), lambda it: it)
    alike["gather_object"] = lambda it: dist.all_gather_object(of := [None] * dist.get_world_size(), it[0]) or of
    module = importlib.import_module(next(it for it in _PLACES if importlib.util.find_spec(it)))
    vars(module).update(alike, compute_chord_loss=lambda job, grpo_loss: grpo_loss + job.model.weight.sum())


class _Any(dict):  # type: ignore[type-arg]
    """A micro-batch in the forms of all releases, or settings. What it lacks is None."""

    __getattr__, __setattr__ = dict.get, dict.__setitem__

    def __missing__(self, _: str) -> None: ...

    def part(self, first: int, end: int) -> Any:
        return _Any({name: it[first:end] if it.dim() else it for name, it in self.items()})


def on_rank(case: Case, rank: int) -> Any:
    """Return a rank's gradient of each optimizer step, or of an evaluation's loss; and of each the one that is due."""
    import torch

    given = {"rest": 0, "more": False, "in_all": None, "own": {}, **case.options, "world": case.topology.world}
    given |= {} if given.get("feature", True) else {"loss": "grpo", "more": False, "in_all": None}
    job, steps = _job(given), []
    size, window = (given[it] * given["parts"] for it in ("generation", "window"))
    end, mine, batches = math.lcm(size, window) + given["rest"], rank // given["parts"] * _ROWS, []
    for number in range(end):
        generation = range(number - number % size, number - number % size + size)
        batches.append(batch := _batch(given, [number]).part(mine, mine + _ROWS))
        batch.num_items_in_batch = _batch(given, generation).completion_mask.sum() * given["parts"]
        if "advantages.unsqueeze" not in inspect.getsource(job._compute_loss_and_metrics):
            batch.advantages = batch.advantages[:, None] + 0 * batch.completion_mask
    for first in [*range(0, end, window)] * job.num_iterations:
        numbers = range(first, min(first + window, end))
        job.current_gradient_accumulation_steps = len(numbers)
        for batch in batches[first : first + window]:
            if given["adds"] or not given["train"]:  # transformers before 4.48 takes no mean
                job.compute_loss(job.model.train(given["train"]), batch).backward()
            else:
                job.training_step(job.model, batch)
        steps.append(torch.stack([job.model.weight.grad[0], _due(given, _batch(given, numbers))]))
        job.model.zero_grad()
    return torch.stack(steps, 1)


def _batch(given: dict[str, Any], numbers: Any) -> Any:
    """Return micro-batches of all ranks as one. In a step that is a whole generation, some have more tokens."""
    import torch

    tables, drawn, is_whole = [], [], given["generation"] == given["window"] and not given["rest"]
    for number, rank in itertools.product(numbers, range(given["world"] // given["parts"])):
        tables.append(torch.tensor(_LENGTHS[(number + rank) % 3]) + number % 3 * is_whole)
        drawn.append(torch.randn(_ROWS, _MOST + 1, 3, generator=torch.Generator().manual_seed(2 * number + rank)))
    mask, values = torch.arange(_MOST) < torch.cat(tables)[:, None], torch.cat(drawn)
    more = {"values": values[:, 1:], "advantages": values[:, 0, 0], "truncated_mask": ~mask[:, 0]}
    return _Any(more, input_ids=mask, completion_mask=mask, ref_per_token_logps=0 * mask).part(0, given["in_all"])


def _due(given: dict[str, Any], batch: Any) -> Any:
    """Return the gradient of a step: the mean over all its tokens; for grpo, over its answers."""
    mask = batch.completion_mask
    counts = mask.sum(1, keepdim=True) * len(mask) if given["loss"] == "grpo" else mask.sum()
    terms = -batch.advantages[:, None, None] * batch["values"] * (mask / counts)[:, :, None]
    return terms.sum((0, 1)) + given["more"]


def wrong(case: Case, ranks: Any) -> str:
    """Return what is wrong with the gradients; empty where nothing is."""
    got, due = sum(got for got, _ in ranks) / len(ranks), ranks[0][1]
    return "" if (got - due).norm() <= 1e-4 * due.norm() else right(case, ranks)  # NaN is not


def right(case: Case, ranks: Any) -> str:
    """Return what was seen in the last step, beside what is due."""
    got, due = (sum(of[kind][-1] for of in ranks).norm() / len(ranks) for kind in (0, 1))
    return f"the gradient of the last step has norm {got:.4f}, due {due:.4f}"


def _job(given: dict[str, Any]) -> Any:
    """Return a trainer with what a user sets; all else that it is asked for is None."""
    import torch
    from transformers import Trainer

    kind = next(sys.modules[it].GRPOTrainer for it in _PLACES if it in sys.modules)
    members = dict(
        dict.fromkeys(("_update_metrics", "_aggregate_and_update_metrics"), lambda *_: None),
        training_step=Trainer.training_step, compute_loss_context_manager=lambda _: nullcontext(),
        compute_loss=lambda job, model, batch, **_: job._compute_loss(model, *[batch] * (1 + job.is_split)),
        _get_per_token_logps_and_entropies=lambda _, model, of, *__, **___: (model(of["values"]).squeeze(2), None),
        get_chunked_inputs=lambda job, of, *at: (of.part(*at[1:3]),) * 2 if job.is_split else of.part(*at),
        _prepare_inputs=lambda _, batch: batch, __getattr__=lambda *_: None,
    )  # fmt: skip
    job: Any = object.__new__(type("Job", (kind, Trainer), members))
    rows = dict.fromkeys(("per_device_train_batch_size", "per_device_eval_batch_size"), given["rows"])
    alike = {"gather_for_metrics": lambda it: it, "backward": lambda loss, **_: loss.backward()}
    vars(job).update(_Any(
        args=_Any(rows, steps_per_generation=given["set"], gradient_accumulation_steps=given["window"], n_gpu=1),
        dynamic_num_samples=given["rows"] < _ROWS and _PLACES[0] in sys.modules,  # of 3.x, chunks are left as they are
        accelerator=_Any(alike, num_processes=given["world"]), model=torch.nn.Linear(3, 1, bias=False), beta=0.0,
        template=_Any(sequence_parallel_size=given["parts"]), loss_type=given["loss"], model_accepts_loss_kwargs=False,
        importance_sampling_level="token", epsilon_low=0.2, epsilon_high=2.0, sdar_loss_coef=0.0, num_iterations=1,
        chord_sft_iterator=given["more"] or None, is_split="grpo_batch" in job._compute_loss.__code__.co_varnames,
    ), **given["own"])  # fmt: skip
    torch.nn.init.zeros_(job.model.weight)
    return job
