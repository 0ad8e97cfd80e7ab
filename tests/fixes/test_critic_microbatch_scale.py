"""critic-microbatch-scale: its rewrite and anchors, what its verdict rests on, and what the sessions need of it."""

from __future__ import annotations

from functools import partial

import pytest

from fuzz.subject import Fuzz
from mutants.by_hand import ByHand, Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources
from support.rewrites import EveryRewrite
from unhang.codemods.base import AnchorError
from unhang.compat.endstates.critic_microbatch_scale import END_STATES, MODES, Setting
from unhang.compat.endstates.endstate import Outcome
from unhang.compat.endstates.endstate import Source as Whole
from unhang.judge import matrix
from unhang.judge.decide import codemod
from unhang.shapes import catalog

FIX = "critic-microbatch-scale"
(TARGET,) = catalog.fix(FIX).targets
OLD, NEW = "0.7.1", "0.8.0"
CASES = sources.cases(FIX, {"verl": [OLD, NEW]})
FIXED = sources.cases(FIX, {"verl": ["0.9.0"]}, state="fixed")
TOKEN, SUM, NORM, MEAN = MODES


def test_each_release_has_its_verdict_and_0_7_0_is_left_alone() -> None:
    releases = catalog.releases()["verl"]
    rows = matrix.rows([catalog.fix(FIX)], {"verl": releases}, catalog.shape_table())
    now = {row.version: row.verdict for row in rows}
    assert {version for version, verdict in now.items() if verdict == "needed"} == {OLD, "0.8.0.dev0", NEW}
    assert {version for version, verdict in now.items() if verdict == "fixed-upstream"} == {"0.9.0", "0.9.1"}
    place, metric = (f"{one.file}::{one.function}" for one in (TARGET, *TARGET.only_with))
    assert releases["0.7.0"].shapes[place] == releases[OLD].shapes[place]
    assert releases["0.7.0"].shapes[metric] is None, "it cannot log a sum"


def test_the_function_that_the_older_critics_call_stays_as_it_is() -> None:
    other = TARGET.depends_on
    assert other is not None
    assert (TARGET.function, other.function) == ("value_loss", "compute_value_loss")
    states = {state.state for key, state in catalog.shape_table().shapes.items() if key[:2] == (FIX, other.function)}
    assert states == {"wrong"}


@pytest.mark.parametrize("case", CASES)
class TestRewrite(EveryRewrite):
    """What the function does is the end state's to show."""


def observed(setting: Setting, rewritten: bool = True) -> Outcome:
    source = sources.wheel(FIX, NEW)
    text = (source.rewritten if rewritten else source).data.decode()
    return END_STATES[TARGET.function].observe(Whole(text, TARGET.function), setting)


def test_without_the_number_of_rows_the_modes_that_need_it_raise_over_several_ranks() -> None:
    lacking = Setting(TOKEN, dp=2, micro=4, lengths="uneven", has_size=False)
    assert observed(lacking) == observed(lacking._replace(has_size=True))
    assert not observed(lacking).faults
    for mode in (SUM, NORM, MEAN):
        assert observed(lacking._replace(mode=mode)).seen == "it says that the number of rows is required"
        alone = lacking._replace(mode=mode, dp=1)
        for outcome in (observed(alone, rewritten=False), observed(alone)):
            assert "the micro-batches add up to another gradient" in outcome.faults, "not cured"
        assert not observed(alone._replace(micro=1)).faults


def test_without_a_constant_each_micro_batch_is_divided_by_its_own_width() -> None:
    narrow = Setting(NORM, dp=2, micro=4, lengths="uneven", narrow=True)
    assert not observed(narrow).faults, "as upstream's own fix does"
    assert observed(narrow).seen != observed(narrow._replace(narrow=False)).seen
    constant = narrow._replace(scale=8)
    assert observed(constant).seen == observed(constant._replace(narrow=False)).seen


def test_the_logged_loss_is_that_of_the_mini_batch() -> None:
    whole, cut = (Setting(SUM, dp=2, micro=micro) for micro in (1, 4))
    assert observed(whole) == observed(whole, rewritten=False)
    assert observed(cut).seen.partition(",")[0] == observed(whole).seen.partition(",")[0]


@pytest.mark.parametrize("case", FIXED)
def test_upstreams_own_fix_is_no_anchor(case: sources.Case) -> None:
    source = case.load()
    change = codemod(TARGET)
    assert change.fixed_upstream(source.function)
    assert not change.fixed_upstream(sources.first(CASES).function)
    with pytest.raises(AnchorError, match="which is ours"):
        change.plan(source.function)


@pytest.mark.parametrize(
    ("old", "new", "count"),
    [
        ("dp_size=dp_size", "dp=dp_size", 1),
        ("global_batch_size=global", "size=global", 1),
        ("AggregationType", "Kind", 2),
    ],
)
def test_half_of_upstreams_own_fix_is_not_taken_for_it(old: str, new: str, count: int) -> None:
    half = sources.mutated(sources.first(FIXED).function, old, new, count)
    assert not codemod(TARGET).fixed_upstream(half)


@pytest.mark.parametrize(
    ("old", "new", "anchor"),
    [
        ("= compute_value_loss(", "= other_value_loss(", "not found: ..., ... = compute_value_loss"),
        ("vf_loss.detach().item()", "float(vf_loss)", "not found: vf_loss.detach"),
        ("vpreds=vpreds", "other=vpreds", "not found: vpreds=..."),
        ("response_mask=response_mask", "response_mask=~response_mask", "not found: response_mask=..."),
        ("loss_agg_mode=config.loss_agg_mode", "loss_agg_mode='token-mean'", "not found: loss_agg_mode=..."),
        ("metrics = {}", "whole = {}", "not found: value_loss without whole"),
    ],
)
def test_a_loss_that_is_computed_otherwise_is_no_anchor(old: str, new: str, anchor: str) -> None:
    sources.assert_no_anchor(sources.first(CASES), old, new, anchor)


# -- for the sessions -------------------------------------------------------------------------------------------------

_PART = "(agg_loss(*given, **whole) / agg_loss(*given))"
_part, _size = partial(Sub, _PART), partial(Sub, 'data["global_batch_size"] if "global_batch_size" in data.keys()')
_logged, _any = partial(Sub, "metric.AggregationType.SUM)"), partial(Sub, "if response_mask.any()")
BY_HAND: ByHand = {
    "as it was": _part("1"),
    "turned around": _part("(agg_loss(*given) / agg_loss(*given, **whole))"),
    "the whole alone": _part("agg_loss(*given, **whole)"),
    "the share alone": _part("(1 / agg_loss(*given))"),
    "the tokens alone": _part("(response_mask.sum() / whole['batch_num_tokens'] * whole['dp_size'])"),
    "without the ranks": _part("(agg_loss(*given, **whole) / agg_loss(*given) / whole['dp_size'])"),
    "a plain average of two": _part("0.5"),
    "token-mean for all": Sub(
        "given = response_mask.float(), response_mask, config.loss_agg_mode",
        "given = response_mask.float(), response_mask, 'token-mean'",
    ),
    "another mode": Sub("response_mask, config.loss_agg_mode", "response_mask, 'seq-mean-token-sum'"),
    "one rank": Sub('"dp_size": data["dp_size"]', '"dp_size": 1'),
    "two ranks": Sub('"dp_size": data["dp_size"]', '"dp_size": 2'),
    "the micro-batch's own tokens": Sub('data["batch_num_tokens"]', "None"),
    "rows for tokens": Sub('data["batch_num_tokens"]', 'data["global_batch_size"]'),
    "tokens for rows": _size('data["batch_num_tokens"] if True'),
    "no number of rows": _size("None if True"),
    "a number of rows that must be there": _size('data["global_batch_size"] if True'),
    "no constant": Sub('getattr(config, "loss_scale_factor", None)', "None"),
    "a constant that must be there": Sub('getattr(config, "loss_scale_factor", None)', "config.loss_scale_factor"),
    "another constant": Sub('getattr(config, "loss_scale_factor", None)', "8"),
    "logged as a mean": _logged("metric.AggregationType.MEAN)"),
    "logged as the largest": _logged("metric.AggregationType.MAX)"),
    "logged as a number": Sub(
        "metric.Metric(value=vf_loss, aggregation=metric.AggregationType.SUM)", "vf_loss.detach().item()"
    ),
    "the fraction that is clipped, as a sum too": Sub(
        "vf_clipfrac.detach().item()",
        "metric.Metric(value=vf_clipfrac.detach().item(), aggregation=metric.AggregationType.SUM)",
    ),
    "NaN where no token is": Sub("vf_loss = 0.0 * vpreds.sum()", "pass"),
    "a number where no token is": Sub("0.0 * vpreds.sum()", "0.0"),
    "what is predicted where no token is": Sub("0.0 * vpreds.sum()", "vpreds.sum()"),
    "never": _any("if False"),
    "always": _any("if True"),
    "without a gradient": _part(f"{_PART}\n        vf_loss = vf_loss.item()"),
    "the numbers given to the function that takes none": Sub(
        "loss_agg_mode=config.loss_agg_mode,\n", "loss_agg_mode=config.loss_agg_mode, **whole,\n"
    ),
    "read from what is selected": (
        Sub(
            'whole["loss_scale_factor"]',
            'data = data.select("values", "returns", "response_mask")\n    whole["loss_scale_factor"]',
        ),
        Sub('data["global_batch_size"] if', 'data.select("response_mask")["global_batch_size"] if', 0),
    ),
}
EQUIVALENT = {
    r"late: (from verl\.utils|whole\[|if response_mask).* <-> (whole|vpreds|metrics).*": (
        "neither statement uses what the other binds"
    ),
}
MUTANTS = [Mutants("verl", (OLD, NEW), BY_HAND, EQUIVALENT)]
_RATIO = r"\(agg_loss\(\*given, \*\*whole\) / agg_loss\(\*given\)\)"
PROOFS = [
    Proofs(
        "verl",
        [Release(NEW, core=True), Release(OLD)],
        {
            "half: the gradient alone": Other(
                without(
                    r"metric\.Metric\(value=vf_loss, aggregation=metric\.AggregationType\.SUM\)",
                    "vf_loss.detach().item()",
                ),
                ("token-mean", "seq-sum"),
            ),
            "half: the log alone": Other(without(_RATIO, "1"), ("token-mean", "seq-mean")),
            "without the ranks": Other(without(r'data\["dp_size"\]', "1"), ("token-mean", "seq-norm")),
            "tokens alone": Other(without(r'data\["global_batch_size"\] if', "None if"), ("seq-sum",), "crashed: "),
            "without the constant": Other(without(r"getattr\(config.*\)", "None"), ("seq-norm-constant",)),
            "NaN stays": Other(without(r"vf_loss = 0\.0 .*", "pass"), ("row-without-token",)),
        },
    )
]
FUZZ = Fuzz(CASES, 2, "compute_value_loss|agg_loss|dp_size|whole|Metric", examples=40)
