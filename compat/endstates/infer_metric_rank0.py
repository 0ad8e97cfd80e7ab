"""infer-metric-rank0: which ranks all-reduce a metric, and what is made of its sums."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

from unhang.compat.endstates.endstate import EndState, Outcome, Source, called, importing
from unhang.compat.endstates.standin import StandIn
from unhang.compat.endstates.tensors import Tensor, torch
from unhang.shapes.branches import words
from unhang.shapes.shape import Function

Pair = tuple[str, str]
"""A prediction and its label."""
ROWS: tuple[tuple[Pair, ...], ...] = (
    (),
    (("abc", "abc"),),
    (("abc", "abd"), ("b c", "b"), ("abc", "abc")),
    (("", "ab"), ("ab", ""), (".", "ab"), (" ", "a b")),
    (("ab", ""), ("b", " ")),
)
"""Without a reference, a row has no score; the last are all such."""
DECISIONS: tuple[dict[str, Any], ...] = (
    {"response": [{"index": 1}, {"index": 0}, {"index": 0}], "target_probs": [[0.2, 0.8], [0.1, 0.9], [0, 0]]},
    {"response": ["no index", {"other": 1}, {"index": 2}], "target_probs": [[1, 0], [1, 0], [0, 0.4, 0.6]]},
    {"response": [{"index": 0}], "target_probs": [[0, 0]]},
    {"response": None, "target_probs": None},
)
"""The last ones are given to a few rows; those of the last two decide nothing."""
SCORES = ("rouge-1", "rouge-2", "rouge-l", "bleu-4")
NOT_A_NUMBER = -1.0
"""What a metric without a row is; not upstream's 0, to tell it from a sum."""


class Setting(NamedTuple):
    """One job: its ranks, and what it measures."""

    ranks: int = 2
    up: bool = True
    """Whether torch.distributed is up. With several ranks it always is."""
    reduces: bool = True
    """Whether ``MeanMetric.compute`` all-reduces, as since ms-swift 3.8.0."""
    rows: tuple[Pair, ...] = ()
    metric: str = "acc"
    task: str = "causal_lm"
    trains: bool = False
    """Whether a trainer evaluates, and so every rank calls with all rows."""


WORLDS = (Setting(1, up=False), Setting(1), Setting(2), Setting(4))


class Seen(NamedTuple):
    """What one rank did."""

    collectives: list[str]
    results: list[Any]
    """What it logs or returns."""
    wanted: list[Any]
    """What it should, from the sums of its own metrics."""


def mean_metric(setting: Setting, collectives: list[str], made: list[Any]) -> type:
    """Return a stand-in for ``MeanMetric`` that records its all-reduces, and itself."""

    class MeanMetric(StandIn):
        state: float
        count: int

        def __init__(self) -> None:
            super().__init__("MeanMetric", state=0.0, count=0, nan_value=NOT_A_NUMBER)
            made.append(self)

        def update(self, state: float) -> None:
            self.state, self.count = self.state + state, self.count + 1

        def mean(self) -> float:
            return self.state / self.count if self.count else NOT_A_NUMBER

        def compute(self) -> dict[str, float]:
            if setting.up and setting.reduces:
                collectives.append("all-reduce of the metric")
            return {"value": self.mean()}

    return MeanMetric


class _EndState(EndState):
    """What both targets share."""

    without: ClassVar[dict[str, Any]] = {"reduces": False}

    def concerned(self, configuration: Setting) -> bool:
        return configuration.up and configuration.reduces

    def observe(self, source: Source, configuration: Setting) -> Outcome:
        seen = [self.run_rank(source, configuration, rank) for rank in range(configuration.ranks)]
        return Outcome(frozenset(_faults(seen)), repr(seen))

    def run_rank(self, source: Source, setting: Setting, rank: int) -> Seen:
        """Run the function as one rank."""
        raise NotImplementedError


def _faults(seen: Sequence[Seen]) -> Iterator[str]:
    if any(one.collectives != seen[0].collectives for one in seen):
        yield "a rank all-reduces a metric, and others never join"
    if any(one.results != one.wanted for one in seen):
        yield "not the mean of all rows, from the ranks that tell it"


class CalcMetric(_EndState):
    """The end state of SwiftInfer._calc_metric."""

    varied: ClassVar[dict[str, str]] = {
        "args.metric": "metric",
        "args.task_type": "task",
        **dict.fromkeys(("is_master", "args.rank"), "every rank"),
        **dict.fromkeys(("data.get", "isinstance", "resp", "dict", "sum", "tp"), "rows of decisions"),
    }

    def configurations(self, function: Function) -> Iterator[Setting]:
        for world, reduces, rows in itertools.product(WORLDS, (True, False), ROWS):
            job = world._replace(reduces=reduces, rows=rows)
            yield from (job, job._replace(metric="rouge"), job._replace(task="decision"))

    def run_rank(self, source: Source, setting: Setting, rank: int) -> Seen:
        collectives: list[str] = []
        made: list[Any] = []
        logged: list[Any] = []
        rows: list[dict[str, Any]] = [{"response": pred, "labels": label} for pred, label in setting.rows]
        if setting.task == "decision":
            rows = [{**row, **decision} for row, decision in zip(rows, DECISIONS[-len(rows) :])]
        given = [row["response"] for row in rows], [row["labels"] for row in rows]

        def read_from_jsonl(path: str) -> list[dict[str, Any]]:
            if rank:
                raise FileNotFoundError("only the master has the file: others may be on another node")
            return rows

        stand_ins = {
            "is_master": lambda: rank == 0,
            "read_from_jsonl": read_from_jsonl,
            "MeanMetric": mean_metric(setting, collectives, made),
            "compute_rouge_bleu": lambda preds, labels: {"rouge of": (preds, labels)},  # the other target's part
            "logger": StandIn("logger", info=lambda msg: logged.append(msg)),
        }
        args = StandIn("args", metric=setting.metric, task_type=setting.task, rank=rank if setting.up else -1)
        called(source, stand_ins)(StandIn("self", args=args, jsonl_writer=StandIn("jsonl_writer", fpath="rows.jsonl")))
        if rank:
            return Seen(collectives, logged, [])
        rouge = {"rouge of": given}
        return Seen(collectives, logged, [rouge if setting.metric == "rouge" else {"acc": made[0].mean()}])


class ComputeRougeBleu(_EndState):
    """The end state of compute_rouge_bleu."""

    varied: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("hypothesis", "reference", "w.strip"), "rows"),
        **dict.fromkeys(("hypothesis_text.strip", "reference_text.strip"), "rows"),
    }

    def configurations(self, function: Function) -> Iterator[Setting]:
        for world, reduces, rows, trains in itertools.product(WORLDS, (True, False), ROWS, (False, True)):
            yield world._replace(reduces=reduces, rows=rows, trains=trains)

    def run_rank(self, source: Source, setting: Setting, rank: int) -> Seen:
        if rank and not setting.trains:
            return Seen([], [], [])  # the master alone calls it
        collectives: list[str] = []
        made: list[Any] = []
        namespace = {
            "__builtins__": importing(_STAND_INS),
            "MeanMetric": mean_metric(setting, collectives, made),
        }
        result = called(source, namespace)([pred for pred, _ in setting.rows], [label for _, label in setting.rows])
        wanted = {name: round(metric.mean() * 100, 6) for name, metric in zip(SCORES, made)}
        return Seen(collectives, [result], [wanted])


class Compute(_EndState):
    """The end state of MeanMetric.compute, on which both targets depend: one rank alone may call it, or not."""

    varied: ClassVar[dict[str, str]] = {"dist.is_initialized": "up", "self.count": "rows"}
    without: ClassVar[dict[str, Any]] = {}  # nothing here is rewritten

    def configurations(self, function: Function) -> Iterator[Setting]:
        for world, rows, trains in itertools.product(WORLDS, ROWS, (False, True)):
            yield world._replace(rows=rows, trains=trains)

    def has_feature(self, source: Source) -> bool:
        return "all_reduce" in words(source.function)

    def concerned(self, configuration: Setting) -> bool:
        return configuration.up and not configuration.trains

    def run_rank(self, source: Source, setting: Setting, rank: int) -> Seen:
        if rank and not setting.trains:
            return Seen([], [], [])
        collectives: list[str] = []
        right, count = sum(pred == label for pred, label in setting.rows), len(setting.rows)

        def all_reduce(tensor: Tensor, op: Any = None, group: Any = None) -> None:
            collectives.append(f"all-reduce of the metric in {group}")
            tensor.data = tensor * setting.ranks

        distributed = StandIn(
            "dist", is_initialized=lambda: setting.up, all_reduce=all_reduce, ReduceOp=StandIn("ReduceOp", SUM="sum")
        )
        metric = StandIn(
            "self", state=float(right), count=count, nan_value=NOT_A_NUMBER, device="cuda", group=f"all {setting.ranks}"
        )
        result = called(source, {"torch": torch(distributed=distributed), "dist": distributed})(metric)
        return Seen(collectives, [result], [{"value": right / count if count else NOT_A_NUMBER}])


class _Rouge(StandIn):
    """Scores that differ by name, and have many digits."""

    def __init__(self) -> None:
        super().__init__("Rouge", metrics=SCORES[:3])

    def get_scores(self, hypothesis: str, reference: str) -> list[dict[str, dict[str, float]]]:
        common = len({*hypothesis} & {*reference}) / 7
        return [{name: {"f": common / number} for number, name in enumerate(self.metrics, 1)}]


_STAND_INS = {
    "jieba": StandIn("jieba", cut=iter),
    "nltk.translate.bleu_score": StandIn(
        "bleu_score",
        SmoothingFunction=lambda: StandIn("SmoothingFunction", method3=None),
        sentence_bleu=lambda references, hypothesis, smoothing_function: len(references[0]) / (3 * len(hypothesis) + 1),
    ),
    "rouge.rouge": StandIn("rouge", Rouge=_Rouge),
}


END_STATES: dict[str, EndState] = {
    "SwiftInfer._calc_metric": CalcMetric(),
    "compute_rouge_bleu": ComputeRougeBleu(),
    "MeanMetric.compute": Compute(),
}
