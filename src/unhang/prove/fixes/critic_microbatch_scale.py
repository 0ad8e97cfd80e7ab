"""verl: the loss of its real critic over the micro-batches of each rank, beside one pass over all rows in one process.

Ranks, rows, the loss and what is logged of it are real; the model is one linear layer. The engine's part is done here
as the engines do it: it counts the tokens of all ranks, adds up the micro-batches, and averages the gradients. What
the modules import of verl besides are stand-ins.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import itertools
import math
import sys
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..cases import DIFFERS, PASSED, Case, Topology
from ..ranks.around import Around, Filled

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WARM = ("torch", "tensordict", "transformers")
_WHERE = "the gradient of the critic is"
_ONE, _TWO, _SHARED = Topology(), Topology(dp=2), Topology(cp=2)
"""With Ulysses or Megatron's CP, TP and PP, the rows of two ranks may be the same."""
_SUM, _NORM, _MEAN = "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean"


def _cut(sizes: Sequence[int], mode: str = "token-mean", **options: Any) -> dict[str, Any]:
    """Return the options of a job that cuts the rows of each rank so."""
    return {"sizes": tuple(sizes), "mode": mode, **options}


CASES = (
    Case("token-mean", _TWO, DIFFERS, _WHERE, _cut([2] * 4), core=True),
    Case("token-mean-2", _TWO, DIFFERS, _WHERE, _cut([4] * 2)),
    Case("token-mean-8", _TWO, DIFFERS, _WHERE, _cut([1] * 8)),
    Case("token-mean-ranks-apart", _TWO, DIFFERS, _WHERE, _cut([8]), core=True),
    Case("one-rank", _ONE, DIFFERS, _WHERE, _cut([2] * 4), core=True),
    Case("dynamic", _TWO, DIFFERS, _WHERE, _cut([1, 2, 5]), core=True),
    Case("seq-sum", _TWO, DIFFERS, _WHERE, _cut([2] * 4, _SUM), core=True),
    Case("seq-mean", _TWO, DIFFERS, _WHERE, _cut([2] * 4, _MEAN), core=True),
    Case("seq-norm", _TWO, DIFFERS, _WHERE, _cut([2] * 4, _NORM), core=True),
    Case("seq-norm-constant", _TWO, DIFFERS, _WHERE, _cut([2] * 4, _NORM, scale=32), core=True),
    Case("row-without-token", _TWO, DIFFERS, _WHERE, _cut([1] * 8, _SUM, masked=True), core=True),
    Case("no-number-of-rows", _TWO, DIFFERS, _WHERE, _cut([2] * 4, has_size=False), core=True),
    Case("whole", _ONE, PASSED, options=_cut([8]), core=True),
    Case("whole-seq", _TWO, PASSED, options=_cut([8], _MEAN), core=True),
    Case("whole-no-number-of-rows", _TWO, PASSED, options=_cut([8], _SUM, has_size=False), core=True),
    Case("rejected-tokens", _ONE, PASSED, options=_cut([8], rejected=True), core=True, patched=DIFFERS),
)
_LOSS, _BY_ITSELF = "value_loss", "compute_value_loss"
_CUTS = ((8,), (5, 3), (1, 5, 2), (1,) * 8)
"""A row may be empty that comes first of its micro-batch, or last."""


def _settings() -> Iterator[Case]:
    """Yield the settings. Upstream's own fix takes no data without the number of rows, and always logs sums."""
    modes, empty = ("token-mean", _SUM, _NORM, _MEAN), _CUTS[-1]
    for mode, ranks, sizes, masked in itertools.product(modes, (_ONE, _TWO), _CUTS, (False, True)):
        job = _cut(sizes, mode, masked=masked, holes=True)
        is_right = len(sizes) == 1 and (ranks == _ONE if mode == "token-mean" else not masked)
        as_it_was = mode != "token-mean" and not (masked and sizes == empty)  # there, the loss was NaN
        kinds: dict[str, tuple[dict[str, Any], bool]] = {
            "": ({}, is_right),
            "without sums": ({"sums": False, "beyond": True}, is_right),
            "without rows": ({"has_size": False, "beyond": True}, as_it_was or is_right),
        }
        if mode == _NORM:
            kinds["no constant"] = {"scale": None}, is_right
            kinds["narrow"] = {"narrow": True}, is_right
            kinds["a constant"] = {"scale": 32}, False
            kinds["a constant, narrow"] = {"scale": 32, "narrow": True}, False
        for kind, (more, is_control) in kinds.items():
            name = f"{mode}, {ranks.world} ranks, {sizes}, {'masked, ' * masked}{kind}"
            ends = PASSED if is_control else DIFFERS
            yield Case(name, ranks, ends, options={**job, **more, "of": [_LOSS]})
    for mode in modes:  # autocast leaves the critic's values in bfloat16
        job = _cut(_CUTS[1], mode, dtype="bfloat16", of=[_LOSS])
        yield Case(f"{mode}, ranks that share rows, bfloat16", _SHARED, DIFFERS, options=job)
    for mode, sizes in itertools.product(("token-mean", _SUM, _MEAN), _CUTS):
        ends = PASSED if len(sizes) == 1 else DIFFERS
        yield Case(f"by itself, {mode}, {sizes}", _ONE, ends, options=_cut(sizes, mode, of=[_BY_ITSELF]))


GRID = [*_settings()]
HELD = {r"(num_tokens|batch_size|scale_factor) is not None": "an engine counts the tokens of each mini-batch"}
YOURS = Case("yours", Topology(), DIFFERS, _WHERE, _cut([2] * 4))
_ROWS, _PROMPT, _RESPONSE, _WIDTH, _CLIP = 8, 3, 16, 128, 0.5
_LOSSES, _ALGORITHMS = "verl.workers.utils.losses", "verl.trainer.ppo.core_algos"
_LOGGED, _CLIPPED, _PREDICTED = "critic/vf_loss", "critic/vf_clipfrac", "critic/vpred_mean"
_UTILS = ("metric", "metric.utils", "tensordict_utils", "torch_functional")
_REAL = (_LOSSES, "verl.workers.utils.padding", _ALGORITHMS, *(f"verl.utils.{name}" for name in _UTILS))


def caveat(case: Case) -> str:
    """Return what the case leaves open."""
    return "a job with a critic on the engine workers, and with four micro-batches, which may not be yours"


def settings(case: Case) -> dict[str, Any] | None:
    """Return what the user of such a job sets; None for data that no trainer of verl hands the function."""
    options = case.options
    if "of" in options and (options["of"] != [_LOSS] or "scale" in options or "has_size" in options):
        return None
    return {
        **{"version verl": "0.8.0", "critic.enable": None, "adv_estimator": "gae", "use_legacy_worker_impl": None},
        **{"ranks": case.topology.world, "critic.loss_agg_mode": options["mode"]},
        **{"rollout_rs": "token_k1" if options.get("rejected") else None, "program": "verl.trainer.main_ppo_sync"},
        "several micro-batches": len(options["sizes"]) > 1,
        "a row has no token that counts": options.get("masked", False),
    }


def prepare() -> None:
    """Import the real modules among stand-ins."""
    sys.meta_path.insert(0, Around("verl", _REAL, Filled))
    for name in (_LOSSES, "verl.utils.metric"):
        if importlib.util.find_spec(name):  # older releases have no such losses
            importlib.import_module(name)


def _module(name: str) -> Any:
    return importlib.import_module(name)


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
    logged: dict[str, Any]
    """What is logged, by name; of a rank, how that of its micro-batches is put together, and of each the number."""


def wrong(case: Case, ranks: Sequence[Result | None]) -> str:
    """Return how far gradient and logged loss are from the right ones; empty where nothing is wrong."""
    found = _put_together(ranks)
    if found is None:
        return ""
    due = _due(case)
    if case.options.get("of") == [_BY_ITSELF]:  # it logs nothing
        due = due._replace(logged={**found.logged, _CLIPPED: due.logged[_CLIPPED]})
    far = 1e-2 if "dtype" in case.options else 1e-5  # gradients of bfloat16 are rounded; losses are not
    is_close = bool((found.gradient - due.gradient).norm() <= far * due.gradient.norm())
    if not is_close or not math.isclose(found.logged[_LOGGED], due.logged[_LOGGED], abs_tol=1e-5):
        return right(case, ranks)
    same = found.logged.keys() == due.logged.keys()
    same = same and all(math.isclose(it, due.logged[name], abs_tol=far) for name, it in found.logged.items())
    return "" if same else f"what is logged is {found.logged}, not {due.logged}"


def right(case: Case, ranks: Sequence[Result | None]) -> str:
    """Return what was seen, beside the right answer."""
    import torch

    found, due = _put_together(ranks), _due(case)
    if found is None:
        return "this function does not know the mode"
    times = float(found.gradient.norm() / due.gradient.norm())
    cosine = float(torch.nn.functional.cosine_similarity(found.gradient, due.gradient, dim=0))
    text = (
        f"{_WHERE} {times:.3f} times the right one, cosine {cosine:.3f}; logged loss {found.logged[_LOGGED]:.4f}, right"
    )
    return f"{text} {due.logged[_LOGGED]:.4f}"


def _put_together(ranks: Sequence[Result | None]) -> Result | None:
    """Return the gradient, which the ranks have averaged, and what verl logs of all ranks."""
    (first, *_) = ranks
    if first is None:
        return None
    logged = {}
    for name, (how, _) in first.logged.items():
        each = [rank.logged[name][1] for rank in ranks if rank]
        sums = [math.fsum(values) for values in zip(*each)]
        total = math.fsum(sums) / len(each)
        logged[name] = {"sum": total, "mean": total / len(sums)}.get(how, math.nan)
    return Result(first.gradient, logged)


def on_rank(case: Case, rank: int) -> Result | None:
    """Run the micro-batches of a rank as an engine does. Return what they give; None if the mode is unknown."""
    import torch
    import torch.distributed as dist

    options, topology = case.options, case.topology
    rows = _rows(case, rank % topology.dp)
    by_itself = options.get("of") == [_BY_ITSELF]
    known = inspect.signature(_module(_ALGORITHMS).compute_value_loss).parameters
    if by_itself and options["mode"] != "token-mean" and "loss_agg_mode" not in known:
        return None
    weights = _weights()
    tokens = (rows.answers if options.get("rejected") else rows.mask).sum()
    dist.all_reduce(tokens)
    numbers = {"dp_size": topology.dp, "batch_num_tokens": tokens.item() * topology.dp // topology.world}
    if options.get("has_size", True):
        numbers["global_batch_size"] = _ROWS * topology.dp
    config = SimpleNamespace(cliprange_value=_CLIP, loss_agg_mode=options["mode"])
    if "scale" in options or "loss_scale_factor" in known:
        config.loss_scale_factor = options.get("scale")
    logged: dict[str, Any] = {}
    for part in torch.arange(_ROWS).split(list(options["sizes"])):
        micro = _part(case, rows, part)
        if by_itself:
            mode = [options["mode"]] * ("loss_agg_mode" in known)
            loss, metrics = _by_itself(micro, weights, mode)
        else:
            with _sums(options.get("sums", True)):
                given = config, {"values": _rounded(case, _predicted(weights, micro))}, _data(micro, numbers)
                loss, metrics = _module(_LOSSES).value_loss(*given)
        loss.backward()
        for name, value in metrics.items():
            how = getattr(value, "aggregation", None)
            logged.setdefault(name, (how.value if how else "mean", []))[1].extend(getattr(value, "values", [value]))
    dist.all_reduce(weights.grad)
    return Result(weights.grad / topology.world, logged)


def _by_itself(rows: Rows, weights: Any, mode: Sequence[str]) -> tuple[Any, dict[str, Any]]:
    """Return the loss of some rows, without what engines do; half of that where a release does not halve it."""
    import torch

    compute = _module(_ALGORITHMS).compute_value_loss
    loss, clipped = compute(rows.features @ weights, rows.returns, rows.values, rows.mask.bool(), _CLIP, *mode)
    one = torch.ones(1, 1)
    of_one, _ = compute(one, 0 * one, one, one.bool(), _CLIP)
    return loss / (2 * of_one), {_LOGGED: loss.item(), _CLIPPED: clipped.item()}


@contextmanager
def _sums(has: bool) -> Iterator[None]:
    """Let verl log sums over micro-batches, or, as 0.7.0, not."""
    module = _module("verl.utils.metric")
    kind = getattr(module, "Metric", None)
    if has or not kind:
        yield
        return
    del module.Metric
    try:
        yield
    finally:
        module.Metric = kind


def _part(case: Case, rows: Rows, part: Any) -> Rows:
    """Return some rows; as wide as the longest of them, or as those of all."""
    micro = Rows(*(each[part] for each in rows))
    width = int(micro.answers.sum(1).max()) if case.options.get("narrow") else _RESPONSE
    return Rows(*(each[:, :width] for each in micro))


def _predicted(weights: Any, rows: Rows) -> Any:
    """Return what the model predicts for all tokens of some rows, one after the other, as an engine has it."""
    import torch

    parts = []
    for features, tokens in zip(rows.features, rows.answers):
        answer = features[: int(tokens.sum())] @ weights
        parts += [torch.zeros(_PROMPT - 1), answer, torch.zeros(1)]  # a value belongs to the token after it
    return torch.cat(parts)


def _rounded(case: Case, predicted: Any) -> Any:
    """Return predictions as the critic's own type has them."""
    return predicted.to(getattr(_module("torch"), case.options.get("dtype", "float32")))


def _data(rows: Rows, numbers: dict[str, int]) -> Any:
    """Return a micro-batch with the numbers of its mini-batch."""
    import torch
    from tensordict import TensorDict

    tensordict_utils = _module("verl.utils.tensordict_utils")
    size, width = rows.mask.shape
    prompts = torch.ones(size, _PROMPT, dtype=torch.long)
    tensors = {
        "prompts": prompts,
        "responses": torch.ones(size, width, dtype=torch.long),
        "attention_mask": torch.cat([prompts, rows.answers], 1),
        "response_mask": rows.mask,
        "values": rows.values,
        "returns": rows.returns,
    }
    data = TensorDict(tensors, batch_size=[size])
    tensordict_utils.assign_non_tensor(data, **numbers)
    return data


def _due(case: Case) -> Result:
    """Return what the rows of all ranks give, in plain torch: as one pass over the mini-batch does.

    Without the number of its rows, that of each micro-batch is by itself; and so is what is logged, without sums.
    """
    import torch

    options, weights, world = case.options, _weights(), case.topology.dp
    every = [_rows(case, rank) for rank in range(world)]
    tokens, is_token = sum(rows.mask.sum() for rows in every), options["mode"] == "token-mean"
    has_sums = options.get("sums", True) and hasattr(_module("verl.utils.metric"), "Metric")
    is_known = is_token or options.get("has_size", True)
    wholes, means, clips, predictions = [], [], [], []
    for rows in every:
        for part in torch.arange(_ROWS).split(list(options["sizes"])):
            micro = _part(case, rows, part)
            predicted, mask = _rounded(case, micro.features @ weights), micro.mask
            near = torch.max(torch.min(predicted, micro.values + _CLIP), micro.values - _CLIP)
            far, cut = (predicted - micro.returns) ** 2, (near - micro.returns) ** 2
            losses, width = torch.max(far, cut) * mask / 2, mask.shape[1]
            count, filled = mask.sum().clamp(min=1), (mask.sum(1) > 0).sum().clamp(min=1)
            if is_token:
                wholes.append(losses.sum() / tokens)
                means.append(losses.sum() / count)
            else:
                by, alone = {_SUM: (1, 1), _NORM: (options.get("scale") or width, width)}.get(
                    options["mode"], [mask.sum(1).clamp(min=1)] * 2
                )
                wholes.append((losses.sum(1) / by).sum() / (_ROWS * world))
                means.append((losses.sum(1) / alone).sum() / filled)
            clips.append(float(((cut > far) * mask).sum() / count))
            predictions.append(float((predicted * mask).sum() / count))
    loss = sum(wholes) if is_known else sum(means) / world
    loss.backward()
    mean = {
        name: sum(map(float, each)) / len(each)
        for name, each in ((_LOGGED, means), (_CLIPPED, clips), (_PREDICTED, predictions))
    }
    if is_known and has_sums:
        mean[_LOGGED] = float(sum(wholes))
    return Result(weights.grad, mean)


def _weights() -> Any:
    import torch

    torch.manual_seed(0)
    return (torch.randn(_WIDTH) / _WIDTH**0.5).requires_grad_()


def _rows(case: Case, rank: int) -> Rows:
    """Return the rows of a rank; a row may have an answer of which no token counts, or one."""
    import torch

    torch.manual_seed(1 + rank)
    lengths = torch.randint(2, _RESPONSE + 1, (_ROWS, 1))
    answers = (torch.arange(_RESPONSE) < lengths).long()
    if case.options.get("holes"):
        answers[2, 2:] = 0
    mask = answers.clone()
    if case.options.get("holes"):  # tokens of tools, or rejected ones that the trainer does not count
        mask[:, ::3] = 0
    if case.options.get("masked"):
        mask[5] = 0
    if case.options.get("rejected"):  # by a trainer that then counts the tokens of whole answers
        mask[:, ::2] = 0
    features = torch.randn(_ROWS, _RESPONSE, _WIDTH)
    return Rows(features, torch.randn(_ROWS, _RESPONSE), torch.randn(_ROWS, _RESPONSE), answers, mask)
