"""critic-microbatch-scale: its rewrite and anchors, what its verdict rests on, and what the sessions need of it."""

from __future__ import annotations

from functools import partial

from fuzz.subject import Fuzz
from mutants.by_hand import ByHand, Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources
from unhang.judge import matrix
from unhang.shapes import catalog

FIX = "critic-microbatch-scale"
(TARGET,) = catalog.fix(FIX).targets
OLDEST, OLD, NEW = "0.7.0", "0.7.1", "0.8.0"
CASES = sources.cases(FIX, {"verl": [OLDEST, OLD, NEW]})
FIXED = sources.cases(FIX, {"verl": ["0.9.0"]}, state="fixed")


def test_each_release_has_its_verdict() -> None:
    releases = catalog.releases()["verl"]
    rows = matrix.rows([catalog.fix(FIX)], {"verl": releases}, catalog.shape_table())
    now = {row.version: row.verdict for row in rows}
    needed = {"0.6.1", OLDEST, OLD, "0.8.0.dev0", NEW}  # no rewrite is for the copy of 0.6.1, in another file
    assert {version for version, verdict in now.items() if verdict == "needed"} == needed
    assert {version for version, verdict in now.items() if verdict == "fixed-upstream"} == {"0.9.0", "0.9.1"}


def test_the_function_that_the_older_critics_call_stays_as_it_is() -> None:
    other = TARGET.depends_on
    assert other is not None
    assert (TARGET.function, other.function) == ("value_loss", "compute_value_loss")
    states = {state.state for key, state in catalog.shape_table().shapes.items() if key[:2] == (FIX, other.function)}
    assert states == {"wrong"}


UNLIKE_UPSTREAM = sources.edits(
    FIXED[0], [("dp_size=dp_size", "dp=dp_size"), ("global_batch_size=g", "size=g"), ("AggregationType", "Kind", "", 2)]
)
REFUSED = sources.edits(
    CASES[0],
    [
        ("= compute_value_loss(", "= other_value_loss(", "not found: ..., ... = compute_value_loss"),
        ("vf_loss.detach().item()", "float(vf_loss)", "not found: vf_loss.detach"),
        ("response_mask=response_mask", "response_mask=~response_mask", "not found: response_mask=..."),
        ("loss_agg_mode=config.loss_agg_mode", "loss_agg_mode='token-mean'", "not found: loss_agg_mode=..."),
        ("metrics = {}", "whole = {}", "not found: value_loss without whole"),
    ],
)

# -- for the sessions -------------------------------------------------------------------------------------------------

_PART = "(agg_loss(*given, **whole) / agg_loss(*given))"
_part, _key, _zero = partial(Sub, _PART), partial(Sub, "key: data[key]"), partial(Sub, ".masked_fill(nothing, 0.0)")
_logged, _known = partial(Sub, "metric.AggregationType.SUM)"), partial(Sub, '{"dp_size", divisor} <= whole.keys()')
BY_HAND: ByHand = {
    "as it was": _part("1"),
    "turned around": _part("(agg_loss(*given) / agg_loss(*given, **whole))"),
    "the whole alone": _part("agg_loss(*given, **whole)"),
    "the share alone": _part("(1 / agg_loss(*given))"),
    "the tokens alone": _part("(response_mask.sum() / whole['batch_num_tokens'] * whole['dp_size'])"),
    "without the ranks": _part("(agg_loss(*given, **whole) / agg_loss(*given) / whole['dp_size'])"),
    "a plain average of two": _part("0.5"),
    "token-mean for all": Sub("response_mask, config.loss_agg_mode", "response_mask, 'token-mean'"),
    "another mode": Sub("response_mask, config.loss_agg_mode", "response_mask, 'seq-mean-token-sum'"),
    "the number of ranks": _key('key: torch.distributed.get_world_size() if key == "dp_size" else data[key]'),
    "one rank": _key('key: 1 if key == "dp_size" else data[key]'),
    "two ranks": _key('key: 2 if key == "dp_size" else data[key]'),
    "the micro-batch's own tokens": _key('key: None if key == "batch_num_tokens" else data[key]'),
    "rows for tokens": _key('key: data["global_batch_size" if key == "batch_num_tokens" else key]'),
    "tokens for rows": _key('key: data["batch_num_tokens" if key == "global_batch_size" else key]'),
    "no number of rows": Sub('"batch_num_tokens", "global_batch_size")', '"batch_num_tokens")'),
    "a number of rows that must be there": Sub(" if key in data.keys()", ""),
    "tokens in all modes": Sub('if config.loss_agg_mode == "token-mean" else "global_batch_size"', 'if True else ""'),
    "rows in all modes": Sub('"batch_num_tokens" if config.loss_agg_mode == "token-mean" else', ""),
    "no constant": Sub('getattr(config, "loss_scale_factor", None)', "None"),
    "a constant that must be there": Sub('getattr(config, "loss_scale_factor", None)', "config.loss_scale_factor"),
    "another constant": Sub('getattr(config, "loss_scale_factor", None)', "8"),
    "logged as a mean": _logged("metric.AggregationType.MEAN)"),
    "logged as the largest": _logged("metric.AggregationType.MAX)"),
    "logged as a number": Sub("if logged is None else logged", ""),
    "the part logged as a number": Sub("mean.item()", "vf_loss.item()"),
    "a class of metrics that must be there": Sub('if hasattr(metric, "Metric")', "if True"),
    "logged as it was": Sub('if hasattr(metric, "Metric")', "if False"),
    "the fraction that is clipped, as a sum too": Sub(
        "vf_clipfrac.detach().item()",
        "metric.Metric(value=vf_clipfrac.detach().item(), aggregation=metric.AggregationType.SUM)",
    ),
    "NaN where no token is": _zero("", 1),
    "a mean of NaN where no token is": _zero(""),
    "a number where no token is": Sub("nothing, 0.0)", "nothing, 1.0)", 1),
    "the host waits for the device": Sub("~response_mask.any()", "not response_mask.any()"),
    "nothing where one token is": Sub("~response_mask.any()", "response_mask.sum() < 2"),
    "nothing where the first row has no token": Sub("~response_mask.any()", "~response_mask[0].any()"),
    "nothing where the last row has no token": Sub("~response_mask.any()", "~response_mask[-1].any()"),
    "nothing where no first token counts": Sub("~response_mask.any()", "~response_mask[:, 0].any()"),
    "holes filled": Sub(
        "response_mask, config.", "response_mask.flip(-1).long().cummax(-1)[0].flip(-1).bool(), config."
    ),
    "as narrow as the predictions": Sub("response_mask.float()", "torch.ones_like(vpreds)"),
    "nothing everywhere": Sub("~response_mask.any()", "response_mask.any()"),
    "never": _known("False"),
    "always": _known("True"),
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
PROOFS = [
    Proofs(
        "verl",
        [
            Release(NEW, core=True),
            Release(OLD),
            Release(
                OLDEST,
                lacking={
                    "seq-norm": _NO_MEAN,
                    "seq-norm-constant": _NO_MEAN,
                    "half: the gradient alone": "it logs a mean all the same",
                    "without the constant": _NO_MEAN,
                },
            ),
        ],
        {
            "half: the gradient alone": Other(without(r"if hasattr\(metric, .Metric.\)", "if False"), ("token-mean",)),
            "half: the log alone": Other(without(_RATIO, "1"), ("token-mean", "seq-mean")),
            "without the ranks": Other(
                without(r"if key in", 'if key != "dp_size" and key in'), ("token-mean", "seq-mean")
            ),
            "tokens alone": Other(
                without(r'"batch_num_tokens", "global_batch_size"\)', '"batch_num_tokens")'), ("seq-sum",)
            ),
            "without the constant": Other(without(r"getattr\(config.*\)", "None"), ("seq-norm-constant",)),
            "NaN stays": Other(without(r"\.masked_fill\(nothing, 0\.0\)", "", 2), ("row-without-token",)),
        },
    )
]
FUZZ = Fuzz(CASES, 2, "compute_value_loss|agg_loss|dp_size|whole|Metric", examples=40)
