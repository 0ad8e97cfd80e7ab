"""ms-swift: the real ``_calc_metric``, ``compute_rouge_bleu`` and ``MeanMetric``, after an inference on several ranks.

What they import besides, such as models and data sets, are stand-ins, and so are jieba, rouge and nltk, which only
score a row. Only the master has the file with the rows, as in a job of several nodes.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import math
import sys
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from ..cases import HUNG, PASSED, Case, Outcome, Topology
from ..ranks import gloo
from ..ranks.around import Around, Filled

if TYPE_CHECKING:
    from collections.abc import Sequence

WARM = ("torch", "numpy", "datasets", "tqdm", "transformers.trainer_utils", "transformers.integrations")
_COMPUTE = "in compute"
_TWO = Topology(dp=2)
_ACC, _ROUGE = {"metric": "acc"}, {"metric": "rouge"}
CASES = (
    Case("acc-2", _TWO, "ranks", HUNG, _COMPUTE, _ACC, core=True),
    Case("acc-4", Topology(dp=4), "ranks", HUNG, _COMPUTE, _ACC),
    Case("acc-2-no-rows", _TWO, "ranks", HUNG, _COMPUTE, {**_ACC, "rows": 0}),
    Case("rouge-2", _TWO, "ranks", HUNG, _COMPUTE, _ROUGE, core=True),
    Case("rouge-4", Topology(dp=4), "ranks", HUNG, _COMPUTE, _ROUGE),
    Case("acc-1", Topology(), "ranks", PASSED, options=_ACC, core=True),
    Case("rouge-1", Topology(), "ranks", PASSED, options=_ROUGE),
    Case("trainer-2", _TWO, "ranks", PASSED, options={"metric": "rouge of a trainer"}, core=True),
    Case("training-2", _TWO, "ranks", PASSED, options={"metric": "mean of all ranks"}, core=True),
)
_ROWS = (("a b c", "a b c"), ("a b d", "a x y"), ("a b d", "a b d"))
_SCORES = {"rouge-1": 77.777778, "rouge-2": 77.777778, "rouge-l": 77.777778, "bleu-4": 25.0}
"""Of these rows. Two of the three are right, and of the other one every third word is."""
_INFER = ("swift.pipelines.infer.infer", "swift.llm.infer.infer")
_METRIC = ("swift.metrics.nlg", "swift.plugin.metric")
_MEAN = ("swift.metrics.utils", "swift.plugin.metric")
_MASTER = "swift.utils.env"
_REAL = {*_INFER, *_METRIC, *_MEAN, _MASTER}
YOURS = Case("yours", Topology(), "ranks", HUNG, _COMPUTE, _ACC)
RULED_OUT = ("world", "one process has no other to wait for")


def prepare() -> None:
    """Import the real modules among stand-ins."""
    sys.meta_path.insert(0, Around("swift", _REAL, partial(Filled, make=_named)))
    scorers: dict[str, dict[str, Any]] = {
        "jieba": {"cut": str.split},
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


def run(case: Case, deadline_s: float) -> Outcome:
    """Run one case, and compare what each rank tells with the mean of all rows."""
    metric = case.options["metric"]
    rows = _ROWS[: case.options.get("rows", len(_ROWS))]
    world = gloo.run(case.topology.world, lambda rank: _told(metric, rank, rows), deadline_s=deadline_s)

    def wrong(ranks: list[list[dict[str, float]]]) -> str:
        for number, told in enumerate(ranks):
            wanted = _wanted(metric, number, case.topology.world, rows)
            if not _same(told, wanted):
                return f"rank {number} tells {told}, not {wanted}"
        return ""

    return world.outcome(wrong, lambda ranks: f"rank 0 tells {ranks[0][0]}")


def _told(metric: str, rank: int, rows: Sequence[tuple[str, str]]) -> list[dict[str, float]]:
    """Return what this rank logs, or what a trainer gets."""
    if metric == "mean of all ranks":
        mean = _first(_MEAN).MeanMetric()
        mean.update([1.0] * rank + [0.0])
        return [mean.compute()]
    if metric == "rouge of a trainer":
        return [_first(_METRIC).compute_rouge_bleu(*map(list, zip(*rows)))]
    module = _first(_INFER)
    logged: list[dict[str, float]] = []
    module.logger = SimpleNamespace(info=logged.append)
    module.read_from_jsonl = lambda path: _read(rank, rows)
    inference = object.__new__(module.SwiftInfer)
    inference.args = SimpleNamespace(metric=metric, task_type="causal_lm", rank=rank)
    inference.jsonl_writer = SimpleNamespace(fpath="rows.jsonl")
    inference._calc_metric()
    return logged


def _read(rank: int, rows: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    if rank:
        raise FileNotFoundError("rows.jsonl, which only the master's node has")
    return [{"response": response, "labels": label} for response, label in rows]


def _wanted(metric: str, rank: int, ranks: int, rows: Sequence[tuple[str, str]]) -> list[dict[str, float]]:
    if metric == "mean of all ranks":
        ones = sum(range(ranks))
        return [{"value": ones / (ones + ranks)}]
    if metric == "rouge of a trainer":
        return [_SCORES]
    if rank:
        return []
    if metric == "rouge":
        return [_SCORES]
    return [{"acc": sum(response == label for response, label in rows) / max(1, len(rows))}]


def _same(told: Sequence[dict[str, float]], wanted: Sequence[dict[str, float]]) -> bool:
    """Compare within what upstream's all-reduce keeps, which is a float32."""
    return len(told) == len(wanted) and all(
        one.keys() == other.keys() and all(math.isclose(one[name], other[name], rel_tol=1e-6) for name in other)
        for one, other in zip(told, wanted)
    )


class _Rouge:
    """Scores a row by the words that are in place."""

    metrics = ("rouge-1", "rouge-2", "rouge-l")

    def get_scores(self, hypothesis: str, reference: str) -> list[dict[str, dict[str, float]]]:
        words = list(zip(hypothesis.split(), reference.split()))
        right = sum(one == other for one, other in words)
        return [{name: {"f": right / len(words)} for name in self.metrics}]


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
    plain = {"get_logger": lambda *_, **__: logging.getLogger("swift"), "get_current_device": lambda: "cpu"}
    return plain.get(name) or type(name, (), {})
