"""megatron-core: the real function that scales a loss, on context-parallel ranks, beside the sequence in one piece.

A rank has the two chunks of each sequence that context parallelism gives it. The loss of a token is its number times a
weight, so the gradient of a masked mean is the mean of the numbers that count. What the data-parallel wrapper does at
the end, a mean over all ranks that share a weight, is done by hand; with per-token loss a sum by all tokens. The loss
function is that of ``pretrain_gpt``: a sum, a count, and a report.
"""

from __future__ import annotations

import importlib
import inspect
from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..cases import DIFFERS, PASSED, Case, Topology
from ..ranks import megatron, shims

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_LENGTH, _WRONG = 16, "the gradient"
_MASKS: dict[str, Sequence[Sequence[float]]] = {
    "answer": ([0] * 14 + [1] * 2, [0] * 8 + [1] * 8),
    "one": ([0] * 15 + [1],),
    "weights": ([0.0] * 13 + [300.25] * 3, [0.0] * 15 + [0.5]),
    "long": ([0] * 14 + [65536] * 2, [0] * 8 + [16384] * 8),
    "even": ([0, 1] * 8, [1, 0] * 8),
    "all": ([1] * 16, [1] * 16),
    "heavy": ([5000] * 16, [5000] * 16),  # two ranks count 40000 each, and float16 ends at 65504
}
_release: dict[str, int] = {}
_TWO, _FOUR, _FIVE, _BOTH = Topology(cp=2), Topology(cp=4), Topology(cp=5), Topology(cp=2, dp=2)
_ANSWER = {"mask": "answer", "batches": 1}
CASES = (
    Case("cp2", _TWO, DIFFERS, _WRONG, _ANSWER, core=True),
    Case("cp4", _FOUR, DIFFERS, _WRONG, _ANSWER, core=True),
    Case("cp2-one-token", _TWO, DIFFERS, _WRONG, {"mask": "one", "batches": 1}),
    Case("cp2-dp2", _BOTH, DIFFERS, _WRONG, {"mask": "answer"}),
    Case("cp2-pp2", Topology(cp=2, pp=2), DIFFERS, _WRONG, {"mask": "answer"}),
    Case("cp1", Topology(), PASSED, options=_ANSWER, core=True),
    Case("cp2-per-token", _TWO, PASSED, options={**_ANSWER, "per_token": True}, core=True),
    Case("cp2-no-mask", _TWO, PASSED, options={"mask": "all"}, core=True),
    Case("cp2-evaluation", _TWO, PASSED, options={**_ANSWER, "evaluation": True}),
    Case("cp2-own-scale", _TWO, PASSED, options={**_ANSWER, "loss": "scaled"}, patched=DIFFERS),
)
_MORE = {"moe": True, "mtp": True, "variant": True, "timers": True}
GRID = [
    *(case for case in CASES if case.patched == PASSED),
    *(
        Case(name, topology, untouched, options={"mask": mask, **options})
        for name, topology, untouched, mask, options in (
            ("a group of the model's", _BOTH, DIFFERS, "answer", {"group": "model"}),
            ("a group of a wrapped model's", _BOTH, DIFFERS, "answer", {"group": "model", "wrapped": True}),
            ("a wrapped model without a group", _TWO, DIFFERS, "answer", {"wrapped": True}),
            ("a model whose group is None", _TWO, DIFFERS, "answer", {"group": "None", "wrapped": True}),
            ("no group anywhere", _TWO, PASSED, "all", {"group": "none"}),
            ("as many as a sample asks for", _FOUR, PASSED, "all", {"dynamic": 2}),
            ("sizes from parallel_state", _TWO, DIFFERS, "answer", {"given": False}),
            ("one rank, from parallel_state", Topology(dp=2), PASSED, "answer", {"given": False}),
            ("a count in floats", _TWO, DIFFERS, "weights", {"count": "float32"}),
            ("a count in halves", _TWO, PASSED, "heavy", {"count": "float16"}),
            ("a constant where no token counts", _FIVE, DIFFERS, "answer", {"constant": True}),
            ("a report in the memory of the loss", _TWO, DIFFERS, "answer", {"shared": True, "beyond": True}),
            ("even", _FOUR, PASSED, "even", {}),
            ("two values", _TWO, PASSED, "answer", {"loss": "two"}),
            ("a count of one", _TWO, PASSED, "answer", {"loss": "one"}),
            ("data that is no loss", _TWO, PASSED, "all", {"loss": "data"}),
            ("other losses", _TWO, DIFFERS, "answer", {**_MORE, "vp_stage": 0}),
            ("other losses, in halves", _TWO, DIFFERS, "long", {**_MORE, "scale": True, "type": "float16"}),
            ("other losses, per token", _TWO, PASSED, "answer", {**_MORE, "per_token": True}),
        )
    ),
]
HELD = {
    "cp_group_size is not None|is_last_stage is None": "callers give both, or neither",
    "loss_func is None": "is a call without a loss",
    "except RuntimeError": "is all that get_attr_wrapped_model raises",
    "model_vp_stage": "is about the pipeline",
    "hasattr|numel|moe_grad_scale_func|mtp_grad_scale_func|dsa|_attention_variant": "is about other losses",
}
YOURS = Case("yours", _TWO, DIFFERS, _WRONG, _ANSWER)
RULED_OUT = ("cp", "with CP 1 a rank has the whole sequence")


def settings(case: Case) -> dict[str, Any] | None:
    """Return what the user of a case's job sets; None for calls without a loss, and with dynamic groups."""
    loss = case.options.get("loss", "three")
    if loss == "data" or "dynamic" in case.options:
        return None
    return {
        "context_parallel_size": case.topology.cp,
        "calculate_per_token_loss": case.options.get("per_token", False),
        "a loss function that returns the sum and the count of its rank's tokens": loss == "three",
        "a loss mask that leaves CP ranks unequal counts": case.options["mask"] not in ("even", "all", "heavy"),
        "a step of training": not case.options.get("evaluation"),
        "a loss function that multiplies its sum by the CP size itself, as train_rl.py up to 0.19": loss == "scaled",
    }


def caveat(case: Case) -> str:
    """Return what the case supposes of the user's job."""
    return "" if case.is_control else "supposes a masked prompt, and per-token loss off"


class Step(NamedTuple):
    """What a rank of the last stage has of one step."""

    replica: int
    gradient: float
    counts: list[float]
    """The function's second value for each micro-batch."""
    reports: list[list[float]]
    own: list[list[float]]
    """What the loss function reported: sum and count."""
    reduced: int
    """How many all-reduces the function issued."""


def prepare() -> None:
    """Import megatron-core for a CPU, and note whether its own function divides by one at least, as from 0.15 on."""
    shims.cuda_on_cpu()
    _release["least"] = "clamp" in _schedules().forward_step_calc_loss.__code__.co_names


def on_rank(case: Case, rank: int) -> Step | None:
    """Scale the losses of a step's micro-batches, and go back through them. None before the last stage."""
    import torch
    import torch.distributed as dist
    from megatron.core import parallel_state

    options, reduce, reduced = case.options, dist.all_reduce, []
    shims.gloo_as_nccl()
    megatron.initialize(case.topology)
    group, other = parallel_state.get_context_parallel_group(), parallel_state.get_data_parallel_group()
    if options.get("group") == "model":
        group, other = other, group
    size = options.get("dynamic", group.size())
    own, replica = group.rank() % size, other.rank() + group.rank() // size
    is_last = parallel_state.is_pipeline_last_stage(ignore_virtual=True)
    of_model: dict[str, Any] = {"model": {"cp_group": group}, "None": {"cp_group": None}}
    training = not options.get("evaluation")
    model = SimpleNamespace(vp_stage=0, training=training, **of_model.get(options.get("group", ""), {}))
    if options.get("wrapped"):
        model = SimpleNamespace(module=model, training=training)
    config = _config(case)  # one for all micro-batches, as in a job
    weight = torch.tensor(2.0**-12, requires_grad=True)  # no sum of losses overflows float16
    counts: list[float] = []
    stored: list[Any] = []
    reports: list[list[float]] = []
    function, batches = _schedules().forward_step_calc_loss, options.get("batches", 2)
    before = "cp_group_size" not in inspect.signature(function).parameters  # a release candidate of 0.14

    def counted(*given: Any, **others: Any) -> Any:
        reduced.append(given)
        return reduce(*given, **others)

    for number in range(batches):
        parts = torch.arange(_LENGTH).tensor_split(2 * size)
        chunks = torch.cat([parts[own], parts[2 * size - 1 - own]])
        mask = torch.tensor(_MASKS[options["mask"]][number])[chunks]
        losses = weight * (chunks + _first(replica, number))
        loss = _loss_function(options, group, size, mask, reports) if is_last else None
        given = {"cp_group_size": size, "is_last_stage": is_last} if options.get("given", True) and not before else {}
        dist.all_reduce, known = counted, parallel_state._CONTEXT_PARALLEL_GROUP
        if options.get("group") == "none":
            parallel_state._CONTEXT_PARALLEL_GROUP = None
        try:
            with nullcontext() if training else torch.no_grad():
                output, count = function(
                    *(model, losses, loss, config, options.get("vp_stage")),
                    *(options.get("loss") == "data", batches, stored),
                    **given,
                )
        finally:
            dist.all_reduce, parallel_state._CONTEXT_PARALLEL_GROUP = reduce, known
        counts.append(float(count))
        if options.get("shared"):
            reports[-1][0] = output.item()  # the loss is divided in place
        if is_last and output.requires_grad:  # as the schedules ask
            output.sum().backward()
    if not is_last:
        return None
    gradient = 0.0 if weight.grad is None else weight.grad.item()
    return Step(replica, gradient, counts, [[*map(float, it)] for it in stored], reports, len(reduced))


def wrong(case: Case, ranks: Sequence[Step | None]) -> str:
    """Return what is wrong with the step, beside the sequences in one piece."""
    steps, options = [it for it in ranks if it is not None], case.options
    if options.get("loss") == "data":
        return "" if all(len(it.reports) == 2 and not it.reduced for it in steps) else f"{steps} is no such data"
    if any(it.reports != it.own for it in steps):
        return f"the reports are {[it.reports for it in steps]}, due {[it.own for it in steps]}"
    if options.get("loss", "three") == "three" and any(it.counts != [own[1] for own in it.own] for it in steps):
        return f"the counts are {[it.counts for it in steps]}"
    is_split = case.topology.cp > 1 and options.get("loss") != "two" and options.get("group") != "none"
    is_averaged = is_split and not any(it in options for it in ("per_token", "evaluation", "dynamic"))
    if any(it.reduced > is_averaged * options.get("batches", 2) for it in steps):
        return f"the all-reduces are {[it.reduced for it in steps]}"
    if options.get("evaluation"):
        return ""
    found, due = _gradient(case, steps)
    return "" if abs(found - due) < 1e-5 else f"{_WRONG} is {found:.4f}, due {due:.4f}"


def right(case: Case, ranks: Sequence[Step | None]) -> str:
    """Return what was seen."""
    if case.options.get("evaluation"):
        return "no collective is added"
    return f"{_WRONG} is {_gradient(case, [it for it in ranks if it is not None])[0]:.4f}, as of whole sequences"


def _gradient(case: Case, steps: Sequence[Step]) -> tuple[float, float]:
    """Return the gradient after the mean over ranks, or the division by all tokens; and that of whole sequences."""
    sums, sizes = [], []
    for replica in {it.replica for it in steps}:
        for number in range(case.options.get("batches", 2)):
            mask = _MASKS[case.options["mask"]][number]
            sums.append(sum(counts * (at + _first(replica, number)) for at, counts in enumerate(mask)))
            sizes.append(max(sum(mask), _release["least"]))
    found = sum(it.gradient for it in steps)
    if case.options.get("per_token"):
        return found / sum(sum(it.counts) for it in steps), sum(sums) / sum(sizes)
    return found / len(steps), sum(one / size for one, size in zip(sums, sizes)) / len(sums)


def _first(replica: int, number: int) -> int:
    """Return the loss of the first token of a sequence, so that no two sequences are alike."""
    return 1 + _LENGTH * (number + 2 * replica)


def _loss_function(options: Any, group: Any, size: int, mask: Any, reports: list[list[float]]) -> Callable[..., Any]:
    """Return the loss function: one of three values, or one that has its own way with the ranks of the group."""
    import torch
    import torch.distributed as dist

    kind, reduce = options.get("loss", "three"), dist.all_reduce

    def loss(output: Any, non_loss_data: bool = False) -> Any:
        if non_loss_data:
            return output.detach()
        total, count = (output * mask).sum(), mask.sum().to(getattr(torch, options.get("count", "int32")))
        total = total.to(getattr(torch, options.get("type", "float32")))
        if options.get("constant") and not count:
            total = total.detach()
        shared = [total.detach(), count]
        report = shared if options.get("shared") else torch.stack([it.float() for it in shared])
        reports.append([*map(float, shared)])
        if kind == "three":
            return total, count, report
        if kind == "scaled":
            return total * size, count.clamp(min=1), report
        whole = count.clone()
        reduce(whole, group=group)
        if kind == "two":
            return total / whole, report
        return total * size / whole, torch.ones_like(count), report

    return loss


def _config(case: Case) -> SimpleNamespace:
    """Return what the function asks of the model's configuration."""
    has, scaled = case.options.get, (lambda loss: loss * 2) if case.options.get("scale") else None
    timers = (lambda *_, **__: SimpleNamespace(start=list, stop=list)) if has("timers") else None
    return SimpleNamespace(
        context_parallel_size=case.topology.cp,
        calculate_per_token_loss=has("per_token", False),
        timers=timers,
        num_moe_experts=4 if has("moe") else None,
        mtp_num_layers=1 if has("mtp") else None,
        grad_scale_func=scaled,
        experimental_attention_variant="dsa" if has("variant") else None,
        dsa_indexer_loss_coeff=1.0 if has("variant") else None,
    )


def _schedules() -> Any:
    return importlib.import_module("megatron.core.pipeline_parallel.schedules")
