"""infer-metric-rank0: run the real functions as the master and as other ranks, and record who all-reduces what."""

from __future__ import annotations

import builtins
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from fuzz.subject import Fuzz
from mutants.by_hand import Mutants, Sub
from proofs.others import Other, Proofs, Release, in_file, untouched
from support import cli, sources
from support.rewrites import EveryRewrite, is_no_rewrite
from unhang.codemods.base import AnchorError
from unhang.judge.decide import codemod
from unhang.shapes import catalog

FIX = "infer-metric-rank0"
CALC, ROUGE = "SwiftInfer._calc_metric", "compute_rouge_bleu"
CALC_CASES = sources.cases(FIX, {"ms-swift": ["3.12.6"]}, function=CALC)
ROUGE_CASES = sources.cases(FIX, {"ms-swift": ["3.12.6"]}, function=ROUGE)
CASES = CALC_CASES + ROUGE_CASES
EMPTY = -1.0
"""What a metric without a value is. Upstream's default, 0, is also what a metric of wrong answers is."""


class Told(NamedTuple):
    """What one rank did."""

    reductions: int
    told: list[Any]
    """What it logs or returns."""


def metrics(reductions: list[None]) -> type:
    """Return a class of metrics that all-reduce in ``compute``, as upstream's do since 3.8.0."""

    class MeanMetric:
        def __init__(self) -> None:
            self.values: list[float] = []
            self.nan_value = EMPTY

        @property
        def state(self) -> float:
            return sum(self.values)

        @property
        def count(self) -> int:
            return len(self.values)

        def update(self, value: float) -> None:
            self.values.append(value)

        def compute(self) -> dict[str, float]:
            reductions.append(None)
            return {"value": self.state / self.count if self.values else self.nan_value}

    return MeanMetric


def calc(function: Any, rows: list[dict[str, Any]], rank: int = 0, metric: str = "acc", task: str = "") -> Told:
    """Run ``_calc_metric`` as one rank. Only the master can read the rows."""
    reductions: list[None] = []
    told: list[Any] = []
    namespace = {
        "is_master": lambda: rank == 0,
        "read_from_jsonl": {"rows of rank 0": rows}.__getitem__,
        "MeanMetric": metrics(reductions),
        "compute_rouge_bleu": lambda preds, labels: {"of": list(zip(preds, labels))},
        "logger": SimpleNamespace(info=told.append),
    }
    args = SimpleNamespace(metric=metric, task_type=task, rank=rank)
    writer = SimpleNamespace(fpath=f"rows of rank {rank}")
    sources.callable_of(function, namespace)(SimpleNamespace(args=args, jsonl_writer=writer))
    return Told(len(reductions), told)


class Rouge:
    """Scores a row by the words that are in place."""

    metrics = ("rouge-1", "rouge-2", "rouge-l")

    def get_scores(self, hypothesis: str, reference: str) -> list[dict[str, dict[str, float]]]:
        words = reference.split()
        score = sum(map(str.__eq__, hypothesis.split(), words)) / len(words)
        return [{name: {"f": score / number} for number, name in enumerate(self.metrics, 1)}]


MODULES = {
    "jieba": SimpleNamespace(cut=iter),
    "nltk.translate.bleu_score": SimpleNamespace(
        SmoothingFunction=lambda: SimpleNamespace(method3=None), sentence_bleu=lambda *_, **__: 1 / 7
    ),
    "rouge.rouge": SimpleNamespace(Rouge=Rouge),
}


def rouge(function: Any, *pairs: tuple[str, str]) -> Told:
    """Run ``compute_rouge_bleu`` on predictions and labels."""
    reductions: list[None] = []
    imports = {**vars(builtins), "__import__": lambda name, *_: MODULES[name]}
    namespace = {"MeanMetric": metrics(reductions), "__builtins__": imports}
    preds, labels = [pred for pred, _ in pairs], [label for _, label in pairs]
    return Told(0, [sources.callable_of(function, namespace)(preds, labels)])._replace(reductions=len(reductions))


def rows(*pairs: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"response": response, "labels": label} for response, label in pairs]


# -- no-op cases ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CALC_CASES)
def test_other_ranks_and_the_other_metric_are_left_alone(case: sources.Case) -> None:
    source = case.load()
    for function in source.function, source.rewritten.function:
        assert calc(function, rows(("a", "a")), rank=1) == Told(0, [])
        assert calc(function, rows(("a", "b")), metric="rouge") == Told(0, [{"of": [("a", "b")]}])


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
    assert f"nothing was changed\nblocked: {FIX} " in ran.err
    assert cli.tree(where) == edited
    metric.write_text(text)
    assert cli.python("-m", "unhang", "apply", "--target", where, "--fix", FIX).code == 0
    changed = {path for path, entry in cli.tree(where).items() if before.get(path, entry) != entry}
    assert {INFER_3, METRIC_3} <= changed
    assert cli.python("-m", "unhang", "revert", "--target", where).code == 0
    assert cli.tree(where) == before


# -- the rewrite ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
class TestRewrite(EveryRewrite):
    pass


@pytest.mark.parametrize("case", CALC_CASES)
@pytest.mark.parametrize(
    ("given", "acc"),
    [
        ((), EMPTY),
        ((("a", "b"),), 0.0),
        ((("a", "a"), ("b", "a"), ("c", "c")), 2 / 3),
    ],
)
def test_the_master_tells_the_same_accuracy_without_an_all_reduce(
    case: sources.Case, given: tuple[tuple[str, str], ...], acc: float
) -> None:
    source = case.load()
    assert calc(source.function, rows(*given)) == Told(1, [{"acc": acc}])
    assert calc(source.rewritten.function, rows(*given)) == Told(0, [{"acc": acc}])


def test_decisions_are_counted_as_before() -> None:
    """Since 4.6.0 a row may have several decisions, or none."""
    source = sources.wheel(FIX, "4.6.0", function=CALC)
    given: list[dict[str, Any]] = [
        {"response": [{"index": 0}, {"index": 0}, {"index": 0}], "labels": "", "target_probs": [[1], [0, 1], [0]]},
        {"response": None, "labels": "", "target_probs": None},
    ]
    assert calc(source.function, given, task="decision") == Told(1, [{"acc": 0.5}])
    assert calc(source.rewritten.function, given, task="decision") == Told(0, [{"acc": 0.5}])


NO_ROW = dict.fromkeys(("rouge-1", "rouge-2", "rouge-l", "bleu-4"), 100 * EMPTY)
THIRDS = {"rouge-1": 66.666667, "rouge-2": 33.333333, "rouge-l": 22.222222, "bleu-4": 14.285714}


@pytest.mark.parametrize("case", ROUGE_CASES)
def test_scores_are_the_same_without_an_all_reduce(case: sources.Case) -> None:
    source = case.load()
    for given, scores in ((), NO_ROW), ([("abc", "abd")], THIRDS), ([("abc", "abd"), ("xyz", "")], THIRDS):
        assert rouge(source.function, *given) == Told(4, [scores])
        assert rouge(source.rewritten.function, *given) == Told(0, [scores])


_ONE = "mean_metric.state / mean_metric.count if mean_metric.count else mean_metric.nan_value"
_EACH = "v.state / v.count if v.count else v.nan_value"


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        (CALC, _ONE, "mean_metric.compute()['value'] if preds else mean_metric.nan_value"),
        (CALC, "if mean_metric.count else", "if mean_metric.state else"),
        (CALC, "mean_metric.nan_value", "0.0"),
        (CALC, "if not is_master():", "if False:"),
        (ROUGE, _EACH, "v.compute()['value'] if v.count else v.nan_value"),
        (ROUGE, _EACH, "v.compute()['value'] if k == 'bleu-4' else v.state / v.count if v.count else v.nan_value"),
        (ROUGE, "if v.count else", "if v.state else"),
        (ROUGE, "* 100, 6", "* 100, 5"),
    ],
)
def test_a_rewrite_that_differs_is_wrong_and_not_taken_for_ours(name: str, old: str, new: str) -> None:
    source = sources.wheel(FIX, "3.12.6", function=name)
    right, wrong = source.rewritten.function, sources.mutated(source.rewritten.function, old, new)

    def done(function: Any) -> list[Any]:
        if name == ROUGE:
            return [rouge(function, *pairs) for pairs in ([], [("xyz", "abd")], [("abc", "abd")])]
        try:
            return [calc(function, rows(*pairs), rank) for pairs in ([], [("a", "b")]) for rank in (0, 1)]
        except KeyError as error:
            return [error]

    assert done(wrong) != done(right)
    assert is_no_rewrite(source, wrong)


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


def _calc_by_hand() -> dict[str, tuple[Sub, ...]]:
    def mean(new: str) -> tuple[Sub, ...]:
        return (Sub(_ONE, new),)

    return {
        "reduced where there is a row": mean("mean_metric.compute()['value'] if preds else mean_metric.nan_value"),
        "reduced for nothing": mean(f"(mean_metric.compute(), {_ONE})[1]"),
        "fails without a row": mean("mean_metric.state / mean_metric.count"),
        "zero without a row": mean("mean_metric.state / max(mean_metric.count, 1)"),
        "None without a row": mean("mean_metric.state / mean_metric.count if mean_metric.count else None"),
        "nothing right is no row": mean(_ONE.replace("if mean_metric.count", "if mean_metric.state")),
        "always without a row": mean("mean_metric.nan_value"),
        "upside down": mean("mean_metric.count / mean_metric.state if mean_metric.state else mean_metric.nan_value"),
        "the sum": mean("mean_metric.state"),
        "the count": mean("mean_metric.count"),
        "whole numbers": mean(_ONE.replace(" / ", " // ")),
        "percent": mean(f"100 * ({_ONE})"),
        "rounded": mean(f"round({_ONE}, 1)"),
        "one row more": mean(_ONE.replace("mean_metric.count if", "(mean_metric.count + 1) if")),
        "of a new metric": mean(_ONE.replace("mean_metric", "MeanMetric()")),
        "one more update": mean(f"(mean_metric.update(0), {_ONE})[1]"),
        "as a dictionary": mean(f"{{'value': {_ONE}}}"),
        "as text": mean(f"str({_ONE})"),
        "another name": (Sub("'acc'", "'mean'"),),
    }


def _rouge_by_hand() -> dict[str, tuple[Sub, ...]]:
    def mean(new: str) -> tuple[Sub, ...]:
        return (Sub(_EACH, new),)

    return {
        "reduced where there is a row": mean("v.compute()['value'] if v.count else v.nan_value"),
        "the last score reduced": mean(f"v.compute()['value'] if k == 'bleu-4' else ({_EACH})"),
        "fails without a row": mean("v.state / v.count"),
        "zero without a row": mean("v.state / max(v.count, 1)"),
        "nothing right is no row": mean(_EACH.replace("if v.count", "if v.state")),
        "upside down": mean("v.count / v.state if v.state else v.nan_value"),
        "the sum": mean("v.state"),
        "of all rows": mean("v.state / len(preds) if preds else v.nan_value"),
        "of the first score": mean(_EACH.replace("v.", "score_dict['rouge-1'].")),
        "without a row not in percent": (
            Sub(f"({_EACH}) * 100", "v.state / v.count * 100 if v.count else v.nan_value"),
        ),
        "scores without a row left out": (Sub("score_dict.items()}", "score_dict.items() if v.count}"),),
        "one score less": (Sub("score_dict.items()}", "score_dict.items() if k != 'rouge-l'}"),),
        "not in percent": (Sub(" * 100", ""),),
        "rounded first": (Sub(" * 100, 6)", ", 6) * 100"),),
        "fewer digits": (Sub("100, 6)", "100, 4)"),),
        "all digits": (Sub(f"round(({_EACH}) * 100, 6)", f"({_EACH}) * 100"),),
        "whole numbers": (Sub("100, 6)", "100)"),),
        "as a list": (Sub(f"round(({_EACH}) * 100, 6)", f"[round(({_EACH}) * 100, 6)]"),),
    }


EQUIVALENT: dict[str, str] = {}
MUTANTS = [
    Mutants("ms-swift", ("3.12.6", "4.6.0"), _calc_by_hand(), EQUIVALENT, function=CALC),
    Mutants("ms-swift", ("3.12.6", "4.6.0"), _rouge_by_hand(), EQUIVALENT, function=ROUGE),
]
_HANGS = r"hung: rank 0 waits in all_reduce at swift/[\w/]+\.py:\d+ in compute; rank 1 done"


def _without_the_test(path: str, before: bytes, after: bytes) -> bytes:
    return before.replace(b"if not is_master():", b"if False:")


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
                _without_the_test, ("acc-2", "rouge-2"), "crashed: rank 1 raised FileNotFoundError"
            ),
        },
    )
]
FUZZ = Fuzz(CASES, 3, r"compute\(\)|\.state|\.count|nan_value|mean", examples=80)
