"""verl: the loss of its real critic over the micro-batches of each rank, beside one pass over all rows in one process.

Ranks, rows, the loss and what is logged of it are real; the model is one linear layer. The engine's part is done here
as the engines do it: it counts the tokens of all ranks, adds up the micro-batches, and averages the gradients. What
the modules import of verl besides are stand-ins.
"""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..cases import DIFFERS, PASSED, Case, Outcome, Topology
from ..ranks import gloo
from ..ranks.around import Around, Filled

if TYPE_CHECKING:
    from collections.abc import Sequence

WARM = ("torch", "tensordict", "transformers")
_WHERE = "the gradient of the critic is"
_ONE, _TWO = Topology(), Topology(dp=2)
_SUM, _NORM, _MEAN = "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean"


def _cut(sizes: Sequence[int], mode: str = "token-mean", **options: Any) -> dict[str, Any]:
    """Return the options of a job that cuts the rows of each rank so."""
    return {"sizes": tuple(sizes), "mode": mode, **options}


CASES = (
    Case("token-mean", _TWO, "ranks", DIFFERS, _WHERE, _cut([2] * 4), core=True),
    Case("token-mean-2", _TWO, "ranks", DIFFERS, _WHERE, _cut([4] * 2)),
    Case("token-mean-8", _TWO, "ranks", DIFFERS, _WHERE, _cut([1] * 8)),
    Case("token-mean-ranks-apart", _TWO, "ranks", DIFFERS, _WHERE, _cut([8]), core=True),
    Case("one-rank", _ONE, "ranks", DIFFERS, _WHERE, _cut([2] * 4), core=True),
    Case("dynamic", _TWO, "ranks", DIFFERS, _WHERE, _cut([1, 2, 5]), core=True),
    Case("seq-sum", _TWO, "ranks", DIFFERS, _WHERE, _cut([2] * 4, _SUM), core=True),
    Case("seq-mean", _TWO, "ranks", DIFFERS, _WHERE, _cut([2] * 4, _MEAN), core=True),
    Case("seq-norm", _TWO, "ranks", DIFFERS, _WHERE, _cut([2] * 4, _NORM), core=True),
    Case("seq-norm-constant", _TWO, "ranks", DIFFERS, _WHERE, _cut([2] * 4, _NORM, scale=32), core=True),
    Case("row-without-token", _TWO, "ranks", DIFFERS, _WHERE, _cut([1] * 8, _SUM, masked=True), core=True),
    Case("no-number-of-rows", _TWO, "ranks", DIFFERS, _WHERE, _cut([2] * 4, has_size=False), core=True),
    Case("whole", _ONE, "ranks", PASSED, options=_cut([8]), core=True),
    Case("whole-seq", _TWO, "ranks", PASSED, options=_cut([8], _MEAN), core=True),
    Case("whole-no-number-of-rows", _TWO, "ranks", PASSED, options=_cut([8], _SUM, has_size=False), core=True),
)
YOURS = Case("yours", Topology(), "ranks", DIFFERS, _WHERE, _cut([2] * 4))
_ROWS, _PROMPT, _RESPONSE, _WIDTH, _CLIP = 8, 3, 16, 128, 0.5
_LOSSES = "verl.workers.utils.losses"
_REAL = (
    _LOSSES,
    "verl.workers.utils.padding",
    "verl.trainer.ppo.core_algos",
    "verl.utils.metric",
    "verl.utils.metric.utils",
    "verl.utils.tensordict_utils",
    "verl.utils.torch_functional",
)


def caveat(case: Case) -> str:
    """Return what the case leaves open."""
    return "a job with a critic on the engine workers, and with four micro-batches, which may not be yours"


def prepare() -> None:
    """Import the real modules among stand-ins."""
    sys.meta_path.insert(0, Around("verl", _REAL, Filled))
    for name in (_LOSSES, "verl.utils.metric"):
        importlib.import_module(name)


class Rows(NamedTuple):
    """What a rank has of a mini-batch."""

    features: Any
    values: Any
    returns: Any
    answers: Any
    """Which tokens are of an answer."""
    mask: Any
    """Which of these count."""


class Result(NamedTuple):
    """What a mini-batch gives."""

    gradient: Any
    logged: Any
    """The loss; of a rank, what it logs of its micro-batches."""


def run(case: Case, deadline_s: float) -> Outcome:
    """Run one mini-batch on all ranks, and compare it with one pass over all rows."""
    world = gloo.run(case.topology.world, lambda rank: _on_rank(case, rank), deadline_s=deadline_s)
    return world.outcome(lambda ranks: _told(case, ranks, is_right=False), lambda ranks: _told(case, ranks))


def _told(case: Case, ranks: Sequence[Result], is_right: bool = True) -> str:
    """Return how far gradient and logged loss are from the right ones; if that is not wanted and they are right, "".

    verl 0.7.0 logs the mean of the micro-batches, whatever they weigh: nothing is asked of that but to be a number.
    """
    import torch

    due, (gradient, logged) = _whole(case), _put_together(ranks)
    times = float(gradient.norm() / due.gradient.norm())
    cosine = float(torch.nn.functional.cosine_similarity(gradient, due.gradient, dim=0))
    near = 1e-5 if _kind() else float("inf")
    close = (gradient - due.gradient).norm() <= 1e-5 * due.gradient.norm() and abs(logged - due.logged) < near
    text = f"{_WHERE} {times:.3f} times the right one, cosine {cosine:.3f}; logged loss {logged:.4f}, right"
    return f"{text} {due.logged:.4f}" if is_right or not close else ""


def _kind() -> Any:
    """Return verl's class of metrics that know how they are put together; None in a release without it."""
    return getattr(importlib.import_module("verl.utils.metric"), "Metric", None)


def _put_together(ranks: Sequence[Result]) -> Result:
    """Return the gradient, which the ranks have averaged, and the loss that verl logs of all ranks."""
    logged, kind = [rank.logged for rank in ranks], _kind()
    if kind and isinstance(logged[0], kind):
        whole = kind.aggregate_dp(logged)
    else:
        whole = importlib.import_module("verl.utils.metric").reduce_metrics(
            {"loss": [number for rank in logged for number in rank]}
        )["loss"]
    return Result(ranks[0].gradient, float(whole))


def _on_rank(case: Case, rank: int) -> Result:
    """Run the micro-batches of a rank as an engine does. Return what they give."""
    import torch
    import torch.distributed as dist

    losses = importlib.import_module(_LOSSES)
    options, rows = case.options, _rows(case, rank)
    weights = _weights()
    tokens = rows.mask.sum()
    dist.all_reduce(tokens)
    numbers = {"dp_size": case.topology.world, "batch_num_tokens": tokens.item()}
    if options.get("has_size", True):
        numbers["global_batch_size"] = _ROWS * case.topology.world
    config = SimpleNamespace(cliprange_value=_CLIP, loss_agg_mode=options["mode"])
    if "scale" in options:
        config.loss_scale_factor = options["scale"]
    logged = []
    for part in torch.arange(_ROWS).split(list(options["sizes"])):
        micro = Rows(*(each[part] for each in rows))
        loss, metrics = losses.value_loss(config, {"values": _predicted(weights, micro)}, _data(micro, numbers))
        loss.backward()
        logged.append(metrics["critic/vf_loss"])
    dist.all_reduce(weights.grad)
    if (kind := _kind()) and isinstance(logged[0], kind):
        together = logged[0].init_list()
        together.extend([number for one in logged for number in one.values])
        return Result(weights.grad / case.topology.world, together)
    return Result(weights.grad / case.topology.world, logged)


def _predicted(weights: Any, rows: Rows) -> Any:
    """Return what the model predicts for all tokens of some rows, one after the other, as an engine has it."""
    import torch

    parts = []
    for features, tokens in zip(rows.features, rows.answers):
        answer = features[: int(tokens.sum())] @ weights
        parts += [torch.zeros(_PROMPT - 1), answer, torch.zeros(1)]  # a value belongs to the token after it
    return torch.cat(parts)


def _data(rows: Rows, numbers: dict[str, int]) -> Any:
    """Return a micro-batch with the numbers of its mini-batch."""
    import torch
    from tensordict import TensorDict

    tensordict_utils = importlib.import_module("verl.utils.tensordict_utils")
    size = len(rows.mask)
    prompts = torch.ones(size, _PROMPT, dtype=torch.long)
    tensors = {
        "prompts": prompts,
        "responses": torch.ones(size, _RESPONSE, dtype=torch.long),
        "attention_mask": torch.cat([prompts, rows.answers], 1),
        "response_mask": rows.mask,
        "values": rows.values,
        "returns": rows.returns,
    }
    data = TensorDict(tensors, batch_size=[size])
    tensordict_utils.assign_non_tensor(data, **numbers)
    return data


def _whole(case: Case) -> Result:
    """Return what one pass over the rows of all ranks gives, in plain torch."""
    import torch

    every = [_rows(case, rank) for rank in range(case.topology.world)]
    rows = Rows(*(torch.cat(parts) for parts in zip(*every)))
    weights = _weights()
    predicted = rows.features @ weights
    near = torch.max(torch.min(predicted, rows.values + _CLIP), rows.values - _CLIP)
    losses = torch.max((predicted - rows.returns) ** 2, (near - rows.returns) ** 2) * rows.mask / 2
    mode = case.options["mode"]
    if mode == "token-mean":
        loss = losses.sum() / rows.mask.sum()
    else:
        by = {_SUM: 1, _NORM: case.options.get("scale", _RESPONSE), _MEAN: rows.mask.sum(1)}[mode]
        loss = (losses.sum(1) / by).mean()
    loss.backward()
    return Result(weights.grad, float(loss))


def _weights() -> Any:
    import torch

    torch.manual_seed(0)
    return (torch.randn(_WIDTH) / _WIDTH**0.5).requires_grad_()


def _rows(case: Case, rank: int) -> Rows:
    """Return the rows of a rank; a row may have an answer of which no token counts."""
    import torch

    torch.manual_seed(1 + rank)
    lengths = torch.randint(2, _RESPONSE + 1, (_ROWS, 1))
    answers = (torch.arange(_RESPONSE) < lengths).long()
    mask = answers.clone()
    if case.options.get("masked"):
        mask[5] = 0
    features = torch.randn(_ROWS, _RESPONSE, _WIDTH)
    return Rows(features, torch.randn(_ROWS, _RESPONSE), torch.randn(_ROWS, _RESPONSE), answers, mask)
