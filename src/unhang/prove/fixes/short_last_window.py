"""ms-swift: the gradient of each step of an epoch, beside the mean of those of its micro-batches in closed form.

Real are ``compute_loss`` of ms-swift's trainers and the loop of transformers' ``Trainer``, which accumulates. The model
is linear. What the trainers import besides is a stand-in, and so is trl's loss.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ..cases import DIFFERS, PASSED, Case, Topology
from ..ranks.around import Around, any_module

if TYPE_CHECKING:
    from collections.abc import Sequence

WARM = ("torch", "accelerate", "peft", "transformers.trainer", "transformers.trainer_seq2seq")
_WHERE, _ROWS = "the last step has", 2
_PLACES = {
    "Trainer": ("swift.trainers.trainer", "swift.trainers.trainers"),
    "RerankerTrainer": ("swift.trainers.reranker_trainer", "swift.trainers.trainers"),
    "RLHFTrainerMixin": ("swift.rlhf_trainers.rlhf_mixin", "swift.trainers.rlhf_trainer.rlhf_mixin"),
    "DPOTrainer": ("swift.rlhf_trainers.dpo_trainer", "swift.trainers.rlhf_trainer.dpo_trainer"),
}
_FUNCTION, _GENERATIVE = "RerankerTrainer", "generative_reranker"
_PAIRS = _MIXIN, _DPO = "RLHFTrainerMixin", "DPOTrainer"


def _case(job: str, name: str, core: bool = False, **options: Any) -> Case:
    """Return a case: unless told, 6 micro-batches, 4 a step."""
    options = {"job": job, "of": [f"{job}.compute_loss"], "batches": 6, "steps": 4, "accepts": True, **options}
    options["may_pass"] = job in ("Trainer", _FUNCTION)  # in 4.6.0
    is_hit = options["batches"] % options["steps"] and options["accepts"] and options.get("labels", True)
    ends = (DIFFERS, _WHERE) if is_hit else (PASSED, "")
    topology = Topology(dp=options.get("ranks", 1))
    return Case(f"{name}-{job}", topology, *ends, options, core, DIFFERS if "stream" in options else PASSED)


CASES = (
    *(_case(job, "half", core=True) for job in _PLACES),
    *(_case(job, "one", batches=5) for job in _PLACES),
    *(_case(job, "whole", batches=8, core=True) for job in _PLACES),
    _case(_DPO, "streaming", stream=True, beyond=True),
)
_LABELLED = [job for job in _PLACES if job != _FUNCTION]
GRID = [
    *CASES[:-1],
    *(_case(job, "never whole, 2 epochs", batches=3, epochs=2, ranks=2) for job in _PLACES),
    *(_case(job, "no count", batches=8, uncounted=True) for job in _PLACES),
    *(_case(job, "counted all the same", accepts=False, steps=1, counted=True) for job in _PLACES),
    *(_case(job, "evaluation", evaluated=True, beyond=True) for job in _PLACES),
    *(_case(job, "no labels", labels=False) for job in _LABELLED),
    *(_case(job, "transformers divides", accepts=False) for job in _LABELLED),
    *(_case(job, "autocast", cast=True) for job in _PAIRS),
    _case(_FUNCTION, "no labels, one each", steps=1, labels=False),
    _case(_FUNCTION, "transformers' loss", batches=8, given=False),
    _case(_FUNCTION, "generative", task=_GENERATIVE),
    _case(_FUNCTION, "generative, without a mask", task=_GENERATIVE, mask=False),
    _case(_DPO, "packing, no count", batches=8, packing=True, uncounted=True),
    *(_case(_DPO, f"packing, {it}", packing=True, accepts=it, evaluated=True, ranks=2) for it in (True, False)),
]
HELD = {"padding_side": "without it, this raises"}
YOURS = _case(_DPO, "yours")


def settings(case: Case) -> dict[str, Any] | None:
    """Return what the user of such a job sets."""
    options = case.options
    kinds = {"Trainer": "seq_cls", _FUNCTION: options.get("task", "reranker")}
    return {
        **{"task_type": kinds.get(options["job"]), "gradient_accumulation_steps": options["steps"]},
        **{"rlhf_type": {_MIXIN: "cpo", _DPO: "dpo"}.get(options["job"]), "version ms-swift": "4.5.3"},
        **{"streaming": "stream" in options, "deepspeed": None, "version accelerate": "1.15"},
        "a step is cut short": options["batches"] % options["steps"] > 0,
        "ms-swift divides the loss": options["accepts"] and options.get("labels", True),
    }


def prepare() -> None:
    """Import the trainers among stand-ins: their mixins and trl take no part. Nothing goes from trl's class."""
    real = {name for names in _PLACES.values() for name in names}
    sys.meta_path[:0] = [Around(name, real, any_module) for name in ("swift", "modelscope", "trl")]
    trl: Any = importlib.import_module("trl")
    trl.DPOTrainer = type("Whole", (type(trl.DPOTrainer),), {"__delattr__": lambda *_: None})("DPOTrainer", (), {})
    importlib.import_module("swift.plugin.loss").get_loss_func = lambda _: _squares  # type: ignore[attr-defined]
    own = {"get_generative_reranker_logits": lambda _, logits, **__: logits[:, -1]}
    for job in _PLACES:
        vars(importlib.import_module(_place(job))).update(own, get_last_valid_indices=lambda mask: mask.sum(1) - 1)


def _squares(outputs: Any, labels: Any, **_: Any) -> Any:
    return (outputs.logits**2).mean()


def _place(job: str) -> str:
    """Return the module that has a trainer."""
    return next(it for it in _PLACES[job] if importlib.util.find_spec(it))


def on_rank(case: Case, rank: int) -> tuple[list[list[float]], float | None]:
    """Train, and evaluate. Return the gradient of each step, and the loss of the evaluation."""
    import torch
    from torch.utils.data import IterableDataset, SequentialSampler
    from transformers import Trainer, TrainerCallback, TrainingArguments, default_data_collator
    from transformers.modeling_outputs import SequenceClassifierOutput

    options = {"labels": True, "mask": True, "given": True, "task": "reranker", "cast": False, **case.options}
    name, steps = options["job"], []
    if case.topology.world > 1:  # several ranks train on the same rows, each by itself
        os.environ.update(LOCAL_RANK="-1", WORLD_SIZE="1")
    rows = [{"values": row, "position_ids": torch.zeros(2)} for row in _values(options["batches"])]
    has_one = name == _FUNCTION or "packing" in options
    for row in rows:
        row.update({"labels": 0 if has_one else [0, 0]} if options["labels"] else {})
        row.update({"attention_mask": torch.ones(1, dtype=torch.int64)} if options["mask"] else {})

    class Linear(torch.nn.Module):  # type: ignore[misc]
        def forward(self, values: Any, labels: Any = None, **_: Any) -> Any:
            logits = (values * self.weight).sum(1)
            rows = logits[:, None] if options["task"] == _GENERATIVE else logits
            return SequenceClassifierOutput(loss=(logits**2).mean(), logits=rows)

    def of_pairs(self: Any, model: Any, batch: Any, pair_loss_scale: Any = None, **_: Any) -> tuple[Any, Any]:
        return model(**batch).loss * _ROWS * (pair_loss_scale or 1 / _ROWS), {}

    def of_trl(self: Any, model: Any, batch: Any, return_outputs: bool = False) -> Any:
        return of_pairs(self, model, batch) if return_outputs else of_pairs(self, model, batch)[0]

    def seen(*_: Any, model: Any, **__: Any) -> None:
        steps.append(model.weight.grad.tolist())

    members = {it: getattr(Trainer, it) for it in ("training_step", "prediction_step", "log", "_prepare_inputs")}
    members.update(dict.fromkeys(("store_metrics", "_compute_acc"), lambda *_, **__: None))
    members.update(get_batch_loss_metrics=of_pairs, _get_train_sampler=lambda *_: SequentialSampler(rows))
    if "uncounted" in options:  # as in transformers before 4.49, which keeps no count
        members["current_gradient_accumulation_steps"] = property(lambda self: self.uncounted, lambda *_: None)
    if "counted" in options:  # as in transformers 4.46 to 4.48, whatever the model takes
        members["get_batch_samples"] = lambda self, *given: (Trainer.get_batch_samples(self, *given)[0], _ROWS)
    kind = getattr(importlib.import_module(options.get("module") or _place(name)), name)
    bases = (kind, type("Trl", (), {"compute_loss": of_trl}), Trainer) if name in _PAIRS else (kind, Trainer)
    job: Any = object.__new__(type("Job", bases, members))
    job.template = SimpleNamespace(packing="packing" in options, padding_side="left")
    job.task_type, job._peft_has_been_casted_to_bf16 = options["task"], options["cast"]
    none = {"save_strategy": "no", "logging_strategy": "no", "report_to": [], "disable_tqdm": True, "use_cpu": True}
    sizes: dict[str, Any] = {f"per_device_{it}_batch_size": _ROWS for it in ("train", "eval")}
    sizes |= {"gradient_accumulation_steps": options["steps"], "max_steps": 2 if "stream" in options else -1}
    more = {"remove_unused_columns": False, "prediction_loss_only": True, "max_grad_norm": 0.0, "learning_rate": 0.0}
    arguments = type("Arguments", (TrainingArguments,), {"process_index": rank})
    args = arguments(tempfile.gettempdir(), **none, **sizes, **more, num_train_epochs=options.get("epochs", 1))
    args.task_type = options["task"]
    func = _squares if options["task"] == _GENERATIVE else lambda *given, **_: _squares(*given)
    given: dict[str, Any] = {"compute_loss_func": func} if name == _FUNCTION and options["given"] else {}
    stream = type("Stream", (IterableDataset,), {"__iter__": lambda _: iter(rows)})()
    given |= {"train_dataset": stream if "stream" in options else rows, "eval_dataset": rows[:_ROWS]}
    given["callbacks"] = [type("Seen", (TrainerCallback,), {"on_pre_optimizer_step": seen})()]
    model = Linear()
    model.weight = torch.nn.Parameter(torch.ones(3))
    Trainer.__init__(job, model, args, lambda of: {"attention_mask": None, **default_data_collator(of)}, **given)
    job.model_accepts_loss_kwargs = options["accepts"]
    Trainer.train(job)
    return steps, job.evaluate().get("eval_loss")


def _values(batches: int) -> Any:
    """Return the rows of so many micro-batches."""
    import torch

    return torch.linspace(-2, 3, batches * _ROWS * 3).view(-1, 3)


def wrong(case: Case, ranks: Sequence[tuple[list[list[float]], float | None]]) -> str:
    """Return what is wrong with the gradients, or with the loss of the evaluation; that may be divided as ever."""
    import torch

    loss, due = ranks[0][1], _due(case)
    for number, (found, _) in enumerate(ranks):
        if len(found) != len(due) or not torch.allclose(torch.tensor(found), torch.tensor(due), atol=1e-5):
            return right(case, ranks[number:])
    mean = float(_values(case.options["batches"])[:_ROWS].sum(1).square().mean())
    is_due = loss is None or any(abs(loss - mean / by) < 1e-4 for by in (1, case.options["steps"]))
    return "" if is_due or "evaluated" not in case.options else f"an evaluation has the loss {loss}, due {mean}"


def right(case: Case, ranks: Sequence[tuple[list[list[float]], float | None]]) -> str:
    """Return what was seen."""
    seen, due = (sum(it**2 for it in steps[-1]) ** 0.5 for steps in (ranks[0][0], _due(case)))
    return f"{_WHERE} a gradient of {seen:.2f}, due {due:.2f}"


def _due(case: Case) -> list[list[float]]:
    """Return the gradient of each step: of the mean of its rows' squared sums, the mean of 2 times sum times row."""
    rows = _values(case.options["batches"])
    each = 2 * rows.sum(1, keepdim=True) * rows
    whole, *rest = each.split(case.options["steps"] * _ROWS)
    rest = [each] if "stream" in case.options else rest  # no step ends with the epoch
    epochs: int = case.options.get("epochs", 1)
    return [it.mean(0).tolist() for it in (whole, *rest)] * epochs
