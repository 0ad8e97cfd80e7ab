"""critic-microbatch-scale: its anchors, and what the sessions need of it."""

from __future__ import annotations

from functools import partial

from fuzz.subject import Fuzz
from mutants.by_hand import ByHand, Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources

FIX = "critic-microbatch-scale"
OLDEST, OLD, NEW = "0.7.0", "0.7.1", "0.8.0"
CASES = sources.cases(FIX, {"verl": [OLDEST, OLD, NEW]})
UNLIKE_UPSTREAM = sources.edits(
    sources.case(FIX, "0.9.0"), [("dp_size=dp_size", "dp=dp_size"), ("AggregationType", "Kind", "", 2)]
)
REFUSED = sources.edits(
    CASES[0],
    [
        ("= compute_value_loss(", "= other_value_loss(", "not found: ..., ... = compute_value_loss"),
        ("vf_loss.detach().item()", "float(vf_loss)", "not found: vf_loss.detach"),
        ("response_mask=response_mask", "response_mask=~response_mask", "not found: response_mask=..."),
        ("metrics = {}", "whole = {}", "not found: value_loss without whole"),
    ],
)

# -- for the sessions -------------------------------------------------------------------------------------------------

_PART = "(agg_loss(*given, **whole) / agg_loss(*given))"
_part, _key, _zero = partial(Sub, _PART), partial(Sub, "key: data[key]"), partial(Sub, ".masked_fill(nothing, 0.0)")
BY_HAND: ByHand = {
    "the tokens alone": _part("(response_mask.sum() / whole['batch_num_tokens'] * whole['dp_size'])"),
    "without the ranks": _part("(agg_loss(*given, **whole) / agg_loss(*given) / whole['dp_size'])"),
    "token-mean for all": Sub("response_mask, config.loss_agg_mode", "response_mask, 'token-mean'"),
    "the number of ranks": _key('key: torch.distributed.get_world_size() if key == "dp_size" else data[key]'),
    "the micro-batch's own tokens": _key('key: None if key == "batch_num_tokens" else data[key]'),
    "rows for tokens": _key('key: data["global_batch_size" if key == "batch_num_tokens" else key]'),
    "no number of rows": Sub('"batch_num_tokens", "global_batch_size")', '"batch_num_tokens")'),
    "a number of rows that must be there": Sub(" if key in data.keys()", ""),
    "tokens in all modes": Sub('if config.loss_agg_mode == "token-mean" else "global_batch_size"', 'if True else ""'),
    "a constant that must be there": Sub('getattr(config, "loss_scale_factor", None)', "config.loss_scale_factor"),
    "logged as a mean": Sub("metric.AggregationType.SUM)", "metric.AggregationType.MEAN)"),
    "logged as a number": Sub("if logged is None else logged", ""),
    "the part logged as a number": Sub("mean.item()", "vf_loss.item()"),
    "a class of metrics that must be there": Sub('if hasattr(metric, "Metric")', "if True"),
    "the fraction that is clipped, as a sum too": Sub(
        "vf_clipfrac.detach().item()",
        "metric.Metric(value=vf_clipfrac.detach().item(), aggregation=metric.AggregationType.SUM)",
    ),
    "NaN where no token is": _zero("", 1),
    "a mean of NaN where no token is": _zero(""),
    "the host waits for the device": Sub("~response_mask.any()", "not response_mask.any()"),
    "nothing where one token is": Sub("~response_mask.any()", "response_mask.sum() < 2"),
    "nothing where the last row has no token": Sub("~response_mask.any()", "~response_mask[-1].any()"),
    "nothing where no first token counts": Sub("~response_mask.any()", "~response_mask[:, 0].any()"),
    "holes filled": Sub(
        "response_mask, config.", "response_mask.flip(-1).long().cummax(-1)[0].flip(-1).bool(), config."
    ),
    "as narrow as the predictions": Sub("response_mask.float()", "torch.ones_like(vpreds)"),
    "without a gradient": Sub("vf_loss = (mean *", "vf_loss = (mean.item() *"),
    "the numbers given to the function that takes none": Sub(
        "loss_agg_mode=config.loss_agg_mode,\n", "loss_agg_mode=config.loss_agg_mode, **whole,\n"
    ),
    "read from what is selected": (
        _key('key: data.select("response_mask")[key]'),
        Sub("in data.keys()", 'in data.select("response_mask").keys()'),
    ),
}
MUTANTS = [Mutants("verl", (OLD, NEW), BY_HAND)]
_RATIO = r"\(agg_loss\(\*given, \*\*whole\) / agg_loss\(\*given\)\)"
_NO_MEAN = "the third mode of 0.7.0 is no mean over rows, but a sum"
_HALVES = {
    "half: the gradient alone": Other(without(r"if hasattr\(metric, .Metric.\)", "if False"), ("token-mean",)),
    "half: the log alone": Other(without(_RATIO, "1"), ("token-mean", "seq-mean")),
    "without the ranks": Other(without(r"if key in", 'if key != "dp_size" and key in'), ("token-mean", "seq-mean")),
    "tokens alone": Other(without(r'"batch_num_tokens", "global_batch_size"\)', '"batch_num_tokens")'), ("seq-sum",)),
    "without the constant": Other(without(r"getattr\(config.*\)", "None"), ("seq-norm-constant",)),
    "NaN stays": Other(without(r"\.masked_fill\(nothing, 0\.0\)", "", 2), ("row-without-token",)),
}
_LACKING = {
    **dict.fromkeys(("seq-norm", "seq-norm-constant", "without the constant"), _NO_MEAN),
    "half: the gradient alone": "it logs a mean all the same",
}
PROOFS = [Proofs("verl", [Release(NEW, core=True), Release(OLD), Release(OLDEST, lacking=_LACKING)], _HALVES)]
FUZZ = Fuzz(CASES, 2, "compute_value_loss|agg_loss|dp_size|whole|Metric", examples=40)
