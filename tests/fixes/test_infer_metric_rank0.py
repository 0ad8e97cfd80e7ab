"""infer-metric-rank0: its rewrites and anchors, and what the sessions need of it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from fuzz.subject import Fuzz
from mutants.by_hand import Mutants, Sub
from proofs.others import Other, Proofs, Release, in_file, untouched
from support import cli, hung_jobs, sources
from support.hung_jobs import WORLD, HungJob, issued, job, rank
from unhang.codemods.base import AnchorError
from unhang.judge.decide import codemod
from unhang.shapes import catalog

FIX = "infer-metric-rank0"
CALC, ROUGE = "SwiftInfer._calc_metric", "compute_rouge_bleu"
CALC_CASES = sources.cases(FIX, {"ms-swift": ["3.12.6"]}, function=CALC)
ROUGE_CASES = sources.cases(FIX, {"ms-swift": ["3.12.6"]}, function=ROUGE)
CASES = CALC_CASES + ROUGE_CASES


def test_compute_itself_is_left_alone() -> None:
    """Training needs its all-reduce."""
    assert {target.function for target in catalog.fix(FIX).targets} == {CALC, ROUGE}
    for version in "3.12.6", "4.6.0":
        source = sources.wheel(FIX, version, function=ROUGE)
        assert source.data.count(b"all_reduce") == source.rewritten.data.count(b"all_reduce")


INFER_3, INFER_4 = "swift/llm/infer/infer.py", "swift/pipelines/infer/infer.py"
METRIC_3, METRIC_4 = "swift/plugin/metric.py", "swift/metrics/nlg.py"


@pytest.mark.parametrize(
    ("version", "needed"),
    [("3.0.0", set()), ("3.7.3", set()), ("3.8.0", {INFER_3, METRIC_3}), ("4.6.0", {INFER_4, METRIC_4})],
)
def test_the_same_functions_need_it_only_beside_a_compute_that_reduces(
    tmp_path: Path, version: str, needed: set[str]
) -> None:
    where = cli.unpack_targets(tmp_path, ("ms-swift", version))
    found = cli.verdicts(
        cli.python("-m", "unhang", "check", "--target", where, "--fix", FIX, "--output-format", "json")
    )
    assert {file for (_, _, file), verdict in found.items() if verdict == "needed"} == needed
    assert {verdict for (_, _, file), verdict in found.items() if file not in needed} == {"not-affected"}


def test_both_functions_are_rewritten_or_neither(tmp_path: Path) -> None:
    where = cli.unpack_targets(tmp_path, ("ms-swift", "3.12.6"))
    before = cli.tree(where)
    metric = where / METRIC_3
    text = metric.read_text()
    metric.write_text(text.replace("* 100, 6)", "* 100, 7)"))
    edited = cli.tree(where)
    assert edited != before
    ran = cli.python("-m", "unhang", "apply", "--target", where, "--fix", FIX)
    assert ran.code == 1
    assert "nothing was changed\n6 other fixes are needed here; --fix left them out\n" in ran.err
    assert f"\nblocked: {FIX} " in ran.err
    assert cli.tree(where) == edited
    metric.write_text(text)
    assert cli.python("-m", "unhang", "apply", "--target", where, "--fix", FIX).code == 0
    changed = {path for path, entry in cli.tree(where).items() if before.get(path, entry) != entry}
    assert {INFER_3, METRIC_3} <= changed
    assert cli.python("-m", "unhang", "revert", "--target", where).code == 0
    assert cli.tree(where) == before


_ONE = "mean_metric.state / mean_metric.count if mean_metric.count else mean_metric.nan_value"
_EACH = "v.state / v.count if v.count else v.nan_value"


@pytest.mark.parametrize("name", [CALC, ROUGE])
def test_another_statement_or_a_second_one_is_no_anchor(name: str) -> None:
    source = sources.wheel(FIX, "4.6.0", function=name)
    change, call = codemod(source.target), ".compute()['value']"
    with pytest.raises(AnchorError, match="not found"):
        change.plan(sources.mutated(source.function, call, ".compute(True)['value']"))
    twice = sources.bare(source.function)
    (anchor,) = (line for line in sources.unparsed(source.function).splitlines() if call in line)
    twice = sources.mutated(twice, anchor, f"{anchor}\n{anchor}")
    with pytest.raises(AnchorError, match="found 2 times"):
        change.plan(twice)


_mean, _mean_of_each = partial(Sub, _ONE), partial(Sub, _EACH)
_CALC_BY_HAND = {
    "reduced where there is a row": _mean("mean_metric.compute()['value'] if preds else mean_metric.nan_value"),
    "reduced for nothing": _mean(f"(mean_metric.compute(), {_ONE})[1]"),
    "fails without a row": _mean("mean_metric.state / mean_metric.count"),
    "zero without a row": _mean("mean_metric.state / max(mean_metric.count, 1)"),
    "None without a row": _mean("mean_metric.state / mean_metric.count if mean_metric.count else None"),
    "nothing right is no row": _mean(_ONE.replace("if mean_metric.count", "if mean_metric.state")),
    "rows that count for nothing": _mean(_ONE.replace("if mean_metric.count", "if preds")),
    "a file with rows that count for nothing": _mean(_ONE.replace("if mean_metric.count", "if data_list")),
    "always without a row": _mean("mean_metric.nan_value"),
    "upside down": _mean("mean_metric.count / mean_metric.state if mean_metric.state else mean_metric.nan_value"),
    "the sum": _mean("mean_metric.state"),
    "the count": _mean("mean_metric.count"),
    "whole numbers": _mean(_ONE.replace(" / ", " // ")),
    "percent": _mean(f"100 * ({_ONE})"),
    "rounded": _mean(f"round({_ONE}, 1)"),
    "one row more": _mean(_ONE.replace("mean_metric.count if", "(mean_metric.count + 1) if")),
    "of a new metric": _mean(_ONE.replace("mean_metric", "MeanMetric()")),
    "one more update": _mean(f"(mean_metric.update(0), {_ONE})[1]"),
    "as a dictionary": _mean(f"{{'value': {_ONE}}}"),
    "as text": _mean(f"str({_ONE})"),
    "another name": Sub("'acc'", "'mean'"),
}
_ROUGE_BY_HAND = {
    "reduced where there is a row": _mean_of_each("v.compute()['value'] if v.count else v.nan_value"),
    "the last score reduced": _mean_of_each(f"v.compute()['value'] if k == 'bleu-4' else ({_EACH})"),
    "fails without a row": _mean_of_each("v.state / v.count"),
    "zero without a row": _mean_of_each("v.state / max(v.count, 1)"),
    "nothing right is no row": _mean_of_each(_EACH.replace("if v.count", "if v.state")),
    "rows that count for nothing": _mean_of_each(_EACH.replace("if v.count", "if preds")),
    "labels that count for nothing": _mean_of_each(_EACH.replace("if v.count", "if labels")),
    "upside down": _mean_of_each("v.count / v.state if v.state else v.nan_value"),
    "the sum": _mean_of_each("v.state"),
    "of all rows": _mean_of_each("v.state / len(preds) if preds else v.nan_value"),
    "of the first score": _mean_of_each(_EACH.replace("v.", "score_dict['rouge-1'].")),
    "without a row not in percent": Sub(f"({_EACH}) * 100", "v.state / v.count * 100 if v.count else v.nan_value"),
    "scores without a row left out": Sub("score_dict.items()}", "score_dict.items() if v.count}"),
    "one score less": Sub("score_dict.items()}", "score_dict.items() if k != 'rouge-l'}"),
    "not in percent": Sub(" * 100", ""),
    "rounded first": Sub(" * 100, 6)", ", 6) * 100"),
    "fewer digits": Sub("100, 6)", "100, 4)"),
    "all digits": Sub(f"round(({_EACH}) * 100, 6)", f"({_EACH}) * 100"),
    "whole numbers": Sub("100, 6)", "100)"),
    "as a list": Sub(f"round(({_EACH}) * 100, 6)", f"[round(({_EACH}) * 100, 6)]"),
}
MUTANTS = [
    Mutants("ms-swift", ("3.12.6", "4.6.0"), _CALC_BY_HAND, function=CALC),
    Mutants("ms-swift", ("3.12.6", "4.6.0"), _ROUGE_BY_HAND, function=ROUGE),
]
_HANGS = r"hung: rank 0 waits in all_reduce at swift/[\w/]+\.py:\d+ in compute; rank 1 done"
PROOFS = [
    Proofs(
        "ms-swift",
        [Release("4.6.0", core=True), Release("4.0.0"), Release("3.12.6"), Release("3.8.0")],
        {
            "half: _calc_metric alone": Other(
                lambda path, before, after: after if path.endswith("/infer.py") else before, ("rouge-2",), _HANGS
            ),
            "half: compute_rouge_bleu alone": Other(in_file("infer.py", untouched), ("acc-2",), _HANGS),
            "every rank computes the metric": Other(
                lambda path, before, after: before.replace(b"if not is_master():", b"if False:"),
                ("acc-2", "rouge-2"),
                "crashed: rank 1 raised FileNotFoundError",
            ),
        },
    )
]
FUZZ = Fuzz(CASES, 3, r"compute\(\)|\.state|\.count|nan_value|mean", examples=80)

_AT = (
    hung_jobs.C10D,
    "swift/metrics/utils.py::MeanMetric.compute",
    "swift/pipelines/infer/infer.py::SwiftInfer._calc_metric",
)
_ALONE, _STACK = rank(issued(WORLD, 5, "all_reduce", 2, at=_AT)), rank(at=_AT, recorded=False)
_DONE = rank(at=("unhang/prove/ranks/gloo.py::_rank",), recorded=False)
_SHUTS_DOWN = rank(at=("threading.py::_shutdown",), recorded=False)
_ENDS = (hung_jobs.C10D.replace("all_reduce", "destroy_process_group"),)
_ENDS_GROUPS = rank(issued(WORLD, 4, "all_reduce", 2, at=("swift/a.py::b",), done=True), at=_ENDS)
_SAYS_SO = rank(recorded=False)._replace(ended=True)
_FAILED = _SHUTS_DOWN._replace(messages=tuple(hung_jobs.failing("OSError: [Errno 28] No space left on device")))
_LATE = rank(at=("swift/infer_engine/transformers_engine.py::infer", "swift/pipelines/infer/infer.py::SwiftInfer.run"))
HANGS = [
    HungJob("dumps: the others have ended, were killed or are late", job([_ALONE, rank(), None, rank()])),
    HungJob("the others have ended", job([_ALONE, _DONE, _DONE, _DONE])),
    HungJob("the others shut down", job([_ALONE, *[_SHUTS_DOWN] * 3])),
    HungJob("the others end their groups", job([_ALONE, *[_ENDS_GROUPS] * 3])),
    HungJob("the others say that they have done all", job([_ALONE, *[_SAYS_SO] * 3])),
    HungJob("one of them has failed", job([_ALONE, *[_SHUTS_DOWN] * 2, _FAILED]), "also"),
    HungJob("stacks", job([_STACK, _DONE, _DONE, _DONE])),
    HungJob("one generates yet", job([_ALONE, _LATE, _DONE, _DONE]), "also"),
]
