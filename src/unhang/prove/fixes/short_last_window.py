"""ms-swift: the gradient of each step of an epoch, beside the mean of those of its micro-batches in closed form.

Real are ``compute_loss`` of ms-swift's trainers and the loop of transformers' ``Trainer``, which accumulates. The model
is linear. What the trainers import besides is a stand-in, and so is trl's loss.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import tempfile
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ..cases import DIFFERS, PASSED, Case, Topology
from ..ranks.around import Around, any_module

if TYPE_CHECKING:
    import ast
    from collections.abc import Sequence

WARM = ("torch", "accelerate", "peft", "transformers.trainer", "transformers.trainer_seq2seq")
_WHERE, _ROWS = "the last step has", 2
_PLACES = {
    "Trainer": ("swift.trainers.trainer", "swift.trainers.trainers"),
    "RerankerTrainer": ("swift.trainers.reranker_trainer", "swift.trainers.trainers"),
    "RLHFTrainerMixin": ("swift.rlhf_trainers.rlhf_mixin", "swift.trainers.rlhf_trainer.rlhf_mixin"),
    "DPOTrainer": ("swift.rlhf_trainers.dpo_trainer", "swift.trainers.rlhf_trainer.dpo_trainer"),
}
_FUNCTION, _DPO, _GENERATIVE = "RerankerTrainer", "DPOTrainer", "generative_reranker"


def _case(job: str, name: str, core: bool = False, **options: Any) -> Case:
    """Return a case: unless told, 6 micro-batches, 4 a step."""
    options = {"job": job, "of": [f"{job}.compute_loss"], "batches": 6, "steps": 4, "accepts": True, **options}
    options["may_pass"] = job in ("Trainer", _FUNCTION)  # in 4.6.0
    is_hit = options["batches"] % options["steps"] and options["accepts"] and options.get("labels", True)
    ends = (DIFFERS, _WHERE) if is_hit else (PASSED, "")
    return Case(f"{name}-{job}", Topology(), *ends, options, core)


CASES = tuple(
    case
    for job in _PLACES
    for case in (_case(job, "half", core=True), _case(job, "whole", core=True, batches=8), _case(job, "one", batches=5))
)
GRID = [
    *CASES,
    *(_case(job, "three of four", batches=7) for job in _PLACES),
    *(_case(job, "never whole", batches=3) for job in _PLACES),
    *(_case(job, "no count", batches=8, count=False) for job in _PLACES),
    *(_case(job, "each alone", batches=3, steps=1) for job in _PLACES),
    *(_case(job, "no labels", labels=False) for job in _PLACES if job != _FUNCTION),
    *(_case(job, "transformers divides", accepts=False) for job in _PLACES if job != _FUNCTION),
    *(_case(job, "counted all the same", accepts=False, steps=1, counted=True) for job in _PLACES),
    *(_case(job, "evaluation", evaluated=True, beyond=True) for job in _PLACES),
    *(_case(job, "evaluation, whole", evaluated=True, batches=8) for job in _PLACES),
    _case(_FUNCTION, "transformers' loss", batches=8, given=False),
    _case(_FUNCTION, "generative", task=_GENERATIVE),
    _case(_FUNCTION, "generative, without a mask", task=_GENERATIVE, mask=False),
    _case(_FUNCTION, "no labels, one each", steps=1, labels=False),
    _case(_DPO, "packing", packing=True),
    _case(_DPO, "packing, transformers divides", packing=True, accepts=False),
    *(_case(job, "autocast", cast=True) for job in ("RLHFTrainerMixin", _DPO)),
]
HELD = {"padding_side": "without it, this raises"}
YOURS = _case(_DPO, "yours")


def caveat(case: Case) -> str:
    """Return what the case leaves open."""
    return "an epoch whose last step has 2 of 4 micro-batches, which yours may not have"


def settings(case: Case) -> dict[str, Any] | None:
    """Return what the user of such a job sets."""
    options = case.options
    kinds = {"Trainer": "seq_cls", _FUNCTION: options.get("task", "reranker")}
    return {
        **{"task_type": kinds.get(options["job"]), "gradient_accumulation_steps": options["steps"]},
        **{"rlhf_type": {"RLHFTrainerMixin": "kto", _DPO: "dpo"}.get(options["job"]), "version ms-swift": "4.5.3"},
        "the last step of an epoch has fewer micro-batches": options["batches"] % options["steps"] > 0,
        "ms-swift divides the loss": options["accepts"] and options.get("labels", True),
    }


def has_feature(function: ast.FunctionDef) -> bool:
    """Return whether the function divides."""
    import ast

    return "accumulation_steps" in ast.unparse(function)


def prepare() -> None:
    """Import the trainers among stand-ins: their mixins and trl take no part, and nothing can be deleted from trl's class."""
    real = {name for names in _PLACES.values() for name in names}
    sys.meta_path[:0] = [Around(name, real, any_module) for name in ("swift", "modelscope", "trl")]
    trl: Any = importlib.import_module("trl")
    trl.DPOTrainer = type("Whole", (type,), {"__delattr__": lambda *_: None})("DPOTrainer", (), {})
    for job in _PLACES:
        module = importlib.import_module(_place(job))
        vars(module).update(get_last_valid_indices=lambda mask: mask.sum(1) - 1)
        vars(module).update(get_generative_reranker_logits=lambda _, logits, **__: logits[:, -1])


def _place(job: str) -> str:
    """Return the module that has a trainer."""
    return next(it for it in _PLACES[job] if importlib.util.find_spec(it))


def on_rank(case: Case, rank: int) -> tuple[list[list[float]], float | None]:
    """Train for an epoch, and evaluate. Return the gradient of each step, and the loss of the evaluation."""
    import torch
    from torch.utils.data import SequentialSampler
    from transformers import Trainer, TrainerCallback, TrainingArguments
    from transformers.modeling_outputs import SequenceClassifierOutput

    options, steps = case.options, []

    class Linear(torch.nn.Module):
        accepts_loss_kwargs = options["accepts"]

        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3))

        def forward(self, values: Any = None, labels: Any = None, attention_mask: Any = None, **_: Any) -> Any:
            logits = (values * self.weight).sum(1)
            loss = (logits**2).mean()
            return SequenceClassifierOutput(loss=loss, logits=logits[:, None] if "task" in options else logits)

    class Seen(TrainerCallback):  # type: ignore[misc]
        def on_pre_optimizer_step(self, *_: Any, model: Any = None, **__: Any) -> None:
            steps.append(model.weight.grad.tolist())

    def of_pairs(self: Any, model: Any, batch: Any, pair_loss_scale: Any = None, **_: Any) -> tuple[Any, Any]:
        loss = model(**batch).loss
        return loss if pair_loss_scale is None else loss * _ROWS * pair_loss_scale, {}

    def of_trl(self: Any, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
        loss, outputs = of_pairs(self, model, inputs)
        return (loss, outputs) if return_outputs else loss

    def given(outputs: Any, labels: Any, **_: Any) -> Any:
        return (outputs.logits**2).mean()

    kind = getattr(importlib.import_module(options.get("module") or _place(options["job"])), options["job"])
    is_loss = case.options["job"] in ("RLHFTrainerMixin", _DPO)
    loss_of = (type("Trl", (), {"compute_loss": of_trl}),) if is_loss else ()
    members = {"get_batch_loss_metrics": of_pairs, "_compute_acc": lambda *_: None}
    members |= {"store_metrics": lambda *_, **__: None, "_get_train_sampler": lambda self, *_: SequentialSampler(rows)}
    for name in ("training_step", "prediction_step", "log", "_prepare_inputs"):
        members[name] = getattr(Trainer, name)
    if not options.get("count", True):  # as transformers before 4.49, which keeps none
        members["current_gradient_accumulation_steps"] = property(_raise, lambda *_: None)
    if options.get("counted"):  # as transformers 4.46 to 4.48 do
        members["get_batch_samples"] = lambda self, *given: (Trainer.get_batch_samples(self, *given)[0], _ROWS)
    rows = [{"values": row, "position_ids": torch.zeros(2)} for row in _values(options["batches"])]
    for row in rows:
        row.update({"labels": 0} if options.get("labels", True) else {})
        row.update({"attention_mask": torch.ones(1, dtype=torch.int64)} if options.get("mask", True) else {})
    job: Any = object.__new__(type("Job", (kind, *loss_of, Trainer), members))
    job.template = SimpleNamespace(packing=options.get("packing", False), padding_side="left")
    job.task_type, job._peft_has_been_casted_to_bf16 = options.get("task", "reranker"), options.get("cast", False)
    args = TrainingArguments(
        tempfile.gettempdir(), per_device_train_batch_size=_ROWS, per_device_eval_batch_size=_ROWS, num_train_epochs=1,
        gradient_accumulation_steps=options["steps"], learning_rate=0.0, max_grad_norm=0.0, report_to=[], use_cpu=True,
        save_strategy="no", logging_strategy="no", disable_tqdm=True, remove_unused_columns=False,
        prediction_loss_only=True,
    )  # fmt: skip
    args.task_type = job.task_type
    more = {"compute_loss_func": given} if options["job"] == _FUNCTION and options.get("given", True) else {}
    Trainer.__init__(job, Linear(), args, train_dataset=rows, eval_dataset=rows[:_ROWS], callbacks=[Seen()], **more)
    job.model_accepts_loss_kwargs = options["accepts"]
    Trainer.train(job)
    return steps, job.evaluate().get("eval_loss")


def _raise(_: Any) -> None:
    raise AttributeError


def _values(batches: int) -> Any:
    """Return the rows of so many micro-batches."""
    import torch

    return torch.linspace(-2, 3, batches * _ROWS * 3).view(-1, 3)


def wrong(case: Case, ranks: Sequence[tuple[list[list[float]], float | None]]) -> str:
    """Return what is wrong with the gradients, or with the loss of the evaluation."""
    import torch

    (found, loss), due, options = ranks[0], _due(case), case.options
    same = len(found) == len(due) and torch.allclose(torch.tensor(found), torch.tensor(due), atol=1e-5)
    if not same:
        return right(case, ranks)
    mean = float(_values(options["batches"])[:_ROWS].sum(1).square().mean())
    if options.get("evaluated") and loss is not None and min(abs(loss - mean / by) for by in (1, options["steps"])) > 1e-4:
        return f"an evaluation after it has the loss {loss:.3f}, due {mean:.3f}"
    return ""


def right(case: Case, ranks: Sequence[tuple[list[list[float]], float | None]]) -> str:
    """Return what was seen."""
    last, due = ranks[0][0][-1], _due(case)[-1]
    return f"{_WHERE} a gradient of {_norm(last):.2f}, due {_norm(due):.2f}"


def _norm(values: Sequence[float]) -> float:
    return float(sum(value**2 for value in values) ** 0.5)


def _due(case: Case) -> list[list[float]]:
    """Return the gradient of each step: of the mean of its rows' squared sums, the mean of 2 times sum times row."""
    rows = _values(case.options["batches"])
    each = 2 * rows.sum(1, keepdim=True) * rows
    return [it.mean(0).tolist() for it in each.split(case.options["steps"] * _ROWS)]
