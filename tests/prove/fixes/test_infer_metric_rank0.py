"""infer-metric-rank0's proof: a user's job, what each rank should tell, and what is a stand-in. Runs no torch."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from unittest import mock

import pytest

from unhang.prove.cases import PASSED, Case, Topology
from unhang.prove.fixes import infer_metric_rank0 as proof
from unhang.prove.ranks.around import Around, Filled

SCORES = {"rouge-1": 77.777778, "rouge-2": 77.777778, "rouge-l": 77.777778, "bleu-4": 25.0}
"""Of the rows of the proof: two of the three are right, and of the other one every third word is."""


def _wrong(metric: str, rank: int, told: list[dict[str, float]], **options: object) -> str:
    case = Case("", Topology(dp=2), PASSED, options={"metric": metric, **options})
    right = [proof._wanted(case, number)[0] for number in range(2)]
    return proof.wrong(case, [told if number == rank else each for number, each in enumerate(right)])


@pytest.mark.parametrize(
    ("metric", "rank", "told", "right"),
    [
        ("acc", 0, [{"acc": 2 / 3}], True),
        ("acc", 0, [{"acc": 0.5}], False),
        ("acc", 0, [], False),
        ("acc", 1, [], True),
        ("acc", 1, [{"acc": 2 / 3}], False),
        ("rouge", 0, [SCORES], True),
        ("rouge", 0, [{**SCORES, "rouge-1": 77.777775}], True),  # float32 has no more digits
        ("rouge", 0, [{**SCORES, "rouge-1": 77.7777}], False),
        ("rouge", 0, [{"rouge-1": SCORES["rouge-1"]}], False),
        ("rouge of a trainer", 1, [SCORES], True),
        ("mean of all ranks", 1, [{"value": 1 / 3}], True),
        ("mean of all ranks", 1, [{"value": 1 / 2}], False),
    ],
)
def test_the_master_tells_the_mean_and_only_a_trainer_tells_it_on_each_rank(
    metric: str, rank: int, told: list[dict[str, float]], right: bool
) -> None:
    assert bool(_wrong(metric, rank, told)) is not right


def test_without_a_row_the_accuracy_is_what_the_metric_has_for_none() -> None:
    assert not _wrong("acc", 0, [{"acc": 0.0}], rows=0)
    assert not _wrong("acc", 0, [{"acc": -1}], rows=0, nan=-1)
    assert _wrong("acc", 0, [{"acc": 0.0}], rows=0, nan=-1)


def test_without_a_group_all_digits_are_due() -> None:
    assert _wrong("rouge", 0, [{**SCORES, "rouge-1": 77.777775}], up=False)


def test_stand_ins_lead_to_the_real_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = tmp_path / "swift" / "metrics" / "utils.py"
    real.parent.mkdir(parents=True)
    real.write_text("from swift.models import Model\nfrom swift.utils import get_current_device\nMeanMetric = 'real'\n")
    (tmp_path / "swift" / "__init__.py").write_text("raise ImportError('never run')")
    monkeypatch.syspath_prepend(tmp_path)
    around = Around("swift", proof._REAL, partial(Filled, make=proof._named))
    monkeypatch.setattr(sys, "meta_path", [around, *sys.meta_path])
    with mock.patch.dict(sys.modules):
        found = proof._first(("swift.plugin.metric", "swift.metrics.utils"))
        assert found.__file__ == str(real)
        assert (found.MeanMetric, found.get_current_device()) == ("real", "cpu")
        assert isinstance(found.Model, type)
        assert sys.modules["swift.metrics"].MeanMetric == "real"
    assert around.find_spec("swiftly") is None
