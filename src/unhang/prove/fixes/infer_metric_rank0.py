"""ms-swift: the real ``_calc_metric``, ``compute_rouge_bleu`` and ``MeanMetric``, after an inference on several ranks.

What they import besides, such as models and data sets, are stand-ins, and so are jieba, rouge and nltk, which only
score a row. Only the master has the file with the rows, as in a job of several nodes.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import logging
import math
import re
import sys
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from ..cases import HUNG, PASSED, Case, Topology
from ..ranks import shims
from ..ranks.around import Around, Filled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

WARM = ("torch", "numpy", "datasets", "tqdm", "transformers.trainer_utils", "transformers.integrations")
_COMPUTE = "in compute"
_TWO = Topology(dp=2)
_ACC, _ROUGE = {"metric": "acc"}, {"metric": "rouge"}
CASES = (
    Case("acc-2", _TWO, HUNG, _COMPUTE, _ACC, core=True),
    Case("acc-4", Topology(dp=4), HUNG, _COMPUTE, _ACC),
    Case("acc-2-no-rows", _TWO, HUNG, _COMPUTE, {**_ACC, "rows": 0}),
    Case("rouge-2", _TWO, HUNG, _COMPUTE, _ROUGE, core=True),
    Case("rouge-4", Topology(dp=4), HUNG, _COMPUTE, _ROUGE),
    Case("acc-1", Topology(), PASSED, options=_ACC, core=True),
    Case("rouge-1", Topology(), PASSED, options=_ROUGE),
    Case("trainer-2", _TWO, PASSED, options={"metric": "rouge of a trainer"}, core=True),
    Case("training-2", _TWO, PASSED, options={"metric": "mean of all ranks"}, core=True),
)
_ROWS = (("a b c", "a b c"), ("a b d", "a x y"), ("a b d", "a b d"))
_SPECIAL = (("", "ab"), ("ab", ""), (".", "ab"), ("ab", "."), (" ", "a b"))
_WRONG = (("a", "b"), ("b", "c"))
_UNSCORED = (("ab", ""), ("b", " "))
"""Without a reference, a row has no score."""
_DECISIONS: tuple[dict[str, Any], ...] = (
    {"response": [{"index": 1}, {"index": 0}, {"index": 0}], "target_probs": [[0.2, 0.8], [0.1, 0.9], [0, 0]]},
    {"response": ["no index", {"other": 1}, {"index": 2}], "target_probs": [[1, 0], [1, 0], [0, 0.4, 0.6]]},
    {"response": None, "target_probs": None},
)
_DECIDED: tuple[list[bool], ...] = ([True, False], [True], [])
"""Which of these are right; some decide nothing."""
HELD = {r"args\.metric == .rouge": "with any other name, nothing is measured, and what is logged is not bound"}
_EVERYWHERE = ("rouge of a trainer", "mean of all ranks")
_CALC, _SCORE, _REDUCE = "SwiftInfer._calc_metric", "compute_rouge_bleu", "MeanMetric.compute"


def _settings(up: bool) -> Iterator[tuple[str, tuple[str, ...], dict[str, Any]]]:
    """Yield names of settings, the functions that each is of, and its options."""
    for at, rows in enumerate((_ROWS[:1], (), _ROWS, _UNSCORED, _SPECIAL, _WRONG)):
        own: dict[str, Any] = {"own rows": rows, "nan": -1 if at % 2 else 0}
        yield f"acc {at}", (_CALC, _REDUCE), {**_ACC, **own}
        yield f"rouge {at}", (_SCORE, _REDUCE), {**_ROUGE, **own}
        if rows:
            yield f"trainer {at}", (_SCORE, _REDUCE), {"metric": "rouge of a trainer", **own}
    for first in range(4):
        yield f"decisions {first}", (_CALC,), {**_ACC, "own rows": _ROWS[:first], "task": "decision"}
    yield "no decision", (_CALC,), {**_ACC, "own rows": _ROWS[:1], "task": "decision", "nan": -1, "decisions": 2}
    yield "rouge of another", (_CALC,), {**_ROUGE, "scorer": _scorer}
    if up:
        yield "training", (_REDUCE,), {"metric": "mean of all ranks"}


_INFER = ("swift.pipelines.infer.infer", "swift.llm.infer.infer")
_METRIC = ("swift.metrics.nlg", "swift.plugin.metric")
_MEAN = ("swift.metrics.utils", "swift.plugin.metric")
_MASTER = "swift.utils.env"
_REAL = {*_INFER, *_METRIC, *_MEAN, _MASTER}
YOURS = Case("yours", Topology(), HUNG, _COMPUTE, _ACC)
RULED_OUT = ("world", "one process has no other to wait for")


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of such a job sets; without a process group, each rank is a job by itself."""
    metric = case.options["metric"]
    return {
        "metric": {"rouge of a trainer": "nlg", "mean of all ranks": None}.get(metric, metric),
        "ranks": case.topology.world if case.options.get("up", True) else 1,
        "it is `swift infer` that has the metric": metric not in _EVERYWHERE,
        "a metric of ms-swift's own": "scorer" not in case.options,
    }


def prepare() -> None:
    """Import the real modules among stand-ins."""
    sys.meta_path.insert(0, Around("swift", _REAL, partial(Filled, make=_named)))
    scorers: dict[str, dict[str, Any]] = {
        "jieba": {"cut": lambda text: filter(None, re.split("( )", text))},
        "rouge": {},
        "rouge.rouge": {"Rouge": _Rouge},
        "nltk": {},
        "nltk.translate": {},
        "nltk.translate.bleu_score": {"SmoothingFunction": _Smoothing, "sentence_bleu": lambda *_, **__: 0.25},
    }
    for name, members in scorers.items():
        sys.modules[name] = module = ModuleType(name)
        module.__path__ = []
        vars(module).update(members)
    _first(_INFER)


def has_feature(function: ast.FunctionDef) -> bool:
    """Return whether ``MeanMetric.compute`` reduces; the two functions of the fix depend on it."""
    return function.name != "compute" or "all_reduce" in ast.unparse(function)


def on_rank(case: Case, rank: int) -> list[dict[str, float]]:
    """Return what this rank logs, or what a trainer gets."""
    import torch.distributed as dist

    is_initialized, options = dist.is_initialized, case.options
    if not options.get("up", True):
        dist.is_initialized = lambda: False
    try:
        return _told(options["metric"], rank, _rows(case), options)
    finally:
        dist.is_initialized = is_initialized


def _told(metric: str, rank: int, rows: Sequence[Any], options: Mapping[str, Any]) -> list[dict[str, float]]:
    mean, scorer, module = _first(_MEAN), _first(_METRIC), _first(_INFER)
    metric_class = partial(mean.MeanMetric, nan_value=options.get("nan", 0))
    scorer.MeanMetric = module.MeanMetric = metric_class
    if metric == "mean of all ranks":
        given = metric_class()
        given.update([1.0] * rank + [0.0])
        return [given.compute()]
    if metric == "rouge of a trainer":
        return [scorer.compute_rouge_bleu(*map(list, zip(*rows)))]
    logged: list[dict[str, float]] = []
    module.logger = SimpleNamespace(info=logged.append)
    module.read_from_jsonl = lambda path: _read(rank, rows, options)
    module.compute_rouge_bleu = options.get("scorer") or scorer.compute_rouge_bleu
    inference = object.__new__(module.SwiftInfer)
    own = rank if options.get("up", True) else -1
    inference.args = SimpleNamespace(metric=metric, task_type=options.get("task", "causal_lm"), rank=own)
    inference.jsonl_writer = SimpleNamespace(fpath="rows.jsonl")
    inference._calc_metric()
    return logged


def _read(rank: int, rows: Sequence[tuple[str, str]], options: Mapping[str, Any]) -> list[dict[str, Any]]:
    if rank:
        raise FileNotFoundError("rows.jsonl, which only the master's node has")
    if options.get("task") == "decision":
        decisions = _DECISIONS[options.get("decisions", 0) :]
        return [{"labels": label, **decision} for (_, label), decision in zip(rows, decisions)]
    return [{"response": response, "labels": label} for response, label in rows]


def _rows(case: Case) -> Sequence[tuple[str, str]]:
    return _ROWS[: case.options["rows"]] if "rows" in case.options else case.options.get("own rows", _ROWS)


def wrong(case: Case, ranks: Sequence[list[dict[str, float]]]) -> str:
    """Return what is wrong with what each rank tells, beside the mean of all rows."""
    for number, told in enumerate(ranks):
        wanted = _wanted(case, number)
        # upstream's all-reduce keeps a float32
        if not any(_same(told, each, 1e-6 if case.options.get("up", True) else 1e-12) for each in wanted):
            return f"rank {number} tells {told}, not {wanted[0]}"
    return ""


def right(case: Case, ranks: Sequence[list[dict[str, float]]]) -> str:
    """Return what was seen."""
    return f"rank 0 tells {ranks[0][0]}"


def _wanted(case: Case, rank: int) -> list[list[dict[str, float]]]:
    """Return what a rank should tell; what a release may tell as well follows."""
    metric, rows, nan = case.options["metric"], _rows(case), case.options.get("nan", 0)
    if metric == "mean of all ranks":
        ranks = range(case.topology.world) if case.options.get("feature", True) else [rank]
        return [[{"value": sum(ranks) / sum(it + 1 for it in ranks)}]]
    if rank and metric != "rouge of a trainer":
        return [[]]
    if metric == "acc":
        found = [response == label for response, label in rows]
        counted = [found]
        if case.options.get("task") == "decision":  # before 4.6.0, each row counts
            decided = _DECIDED[case.options.get("decisions", 0) :][: len(rows)]
            counted = [[it for row in decided for it in row], [False] * len(rows)]
        return [[{"acc": sum(each) / len(each) if each else nan}] for each in counted]
    if case.options.get("scorer"):
        return [[_scorer(*map(list, zip(*rows)))]]
    return [[_scores(rows, nan, *each)] for each in _COUNTED]


_COUNTED: tuple[tuple[Callable[[str, str], object], float], ...] = (
    (lambda response, label: label.strip(), 0.0),
    (lambda response, label: response.strip() and label.strip(), 0.0),
    (lambda response, label: response and label, 0.25),
)
"""Which rows the releases count, the newest first, and the BLEU of a blank response."""


def _scores(rows: Sequence[tuple[str, str]], nan: float, counts: Any, blank: float) -> dict[str, float]:
    """Return the scores of the rows that count."""
    chosen = [row for row in rows if counts(*row)]
    rouge = [_score(*row) for row in chosen]
    found = {**dict.fromkeys(_Rouge.metrics, rouge), "bleu-4": [0.25 if it.strip() else blank for it, _ in chosen]}
    return {name: round(100 * (sum(each) / len(each) if each else nan), 6) for name, each in found.items()}


def _score(response: str, label: str) -> float:
    """Return which part of the words are in place."""
    words = [*zip(response.split(), label.split())]
    return sum(one == other for one, other in words) / max(1, len(words))


def _same(told: Sequence[dict[str, Any]], wanted: Sequence[dict[str, Any]], near: float) -> bool:
    return len(told) == len(wanted) and all(
        one.keys() == other.keys() and all(_close(one[name], other[name], near) for name in other)
        for one, other in zip(told, wanted)
    )


def _close(one: Any, other: Any, near: float) -> bool:
    return bool(one == other) or (isinstance(one, float) and math.isclose(one, other, rel_tol=near))


def _scorer(preds: list[str], labels: list[str]) -> dict[str, Any]:
    """Stand in for ``compute_rouge_bleu``, the other function of the fix."""
    return {"preds": preds, "labels": labels}


class _Rouge:
    """Scores a row by the words that are in place."""

    metrics = ("rouge-1", "rouge-2", "rouge-l")

    def get_scores(self, hypothesis: str, reference: str) -> list[dict[str, dict[str, float]]]:
        return [{name: {"f": _score(hypothesis, reference)} for name in self.metrics}]


class _Smoothing:
    method3 = None


def _first(names: Sequence[str]) -> Any:
    """Import the first of these modules that the release has."""
    return importlib.import_module(next(name for name in names if importlib.util.find_spec(name)))


def _named(name: str) -> Any:
    """Return what has this name in a stand-in: the real thing, where it is run for real, else an empty class."""
    if name == "is_master":
        return importlib.import_module(_MASTER).is_master
    if name in ("MeanMetric", "compute_rouge_bleu"):
        return getattr(_first(_MEAN if name == "MeanMetric" else _METRIC), name)
    plain = {"get_logger": lambda *_, **__: logging.getLogger("swift"), "get_current_device": lambda: shims.DEVICE}
    return plain.get(name) or type(name, (), {})


GRID = [
    Case(
        f"{name} on {ranks}{'' if up else ' without a group'}",
        Topology(dp=ranks),
        PASSED if ranks == 1 or options["metric"] in _EVERYWHERE or "scorer" in options else HUNG,
        options={**options, "up": up, "of": functions},
    )
    for ranks, up in ((1, False), (1, True), (2, True), (4, True))
    for name, functions, options in _settings(up)
]
