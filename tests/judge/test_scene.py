"""Asking an interpreter to play a scene, and what becomes of one that does not answer."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from unhang.judge import scene, shows
from unhang.judge.scene import NoTorchError, Question, SceneError
from unhang.shapes import catalog

TEXT = "class MeanMetric:\n    def compute(self):\n        return 1\n"
QUESTION = Question(
    "mean-metric-dtype", [], "swift.metrics.utils", "MeanMetric.compute", {"before": TEXT}, {"before": True}
)


def test_a_scene_is_a_proof_with_a_grid_of_settings_each_of_its_own_name() -> None:
    for fix in catalog.fixes():
        cases = scene.of(fix).GRID
        assert len({case.name for case in cases}) == len(cases)
        assert {case.is_control for case in cases} == {True, False}, fix
    assert scene.of("no-such-fix") is None


@pytest.mark.skipif(bool(find_spec("torch")), reason="torch is here")
def test_an_interpreter_without_torch_says_so() -> None:
    with pytest.raises(NoTorchError, match="no torch here: No module named 'torch'"):
        scene.ask(sys.executable, QUESTION, 60)


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("exit 3", "ended with 3"),
        ("kill -9 $$", "ended with -9"),
        ("echo; echo 'unhang-scene:{'; exit 4", "ended with 4"),
        (
            r"printf 'one\nTraceback (most recent call last):\n  File a.py\nKeyError: 1\nleaked 9\n' >&2; exit 5",
            r"ended with 5: Traceback .*\n  File a.py\nKeyError: 1$",
        ),
        ("sleep 60 & sleep 60", "no answer within 1 s"),
    ],
)
def test_a_child_that_does_not_answer_is_an_error(code: str, why: str, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{code}\n")
    python.chmod(0o755)
    with pytest.raises(SceneError, match=why):
        scene.ask(str(python), QUESTION, 1 if "sleep" in code else 60)
    with pytest.raises(SceneError, match="no child process"):
        scene.ask(str(tmp_path / "absent"), QUESTION, 1)


@pytest.mark.parametrize(
    ("wrong", "undecided", "feature", "shows_"),
    [
        ({}, [], True, "no-defect"),
        ({}, ["self.count"], True, "not-run"),
        ({}, [], False, "not-run"),
        ({"a": "another mean"}, [], True, "defect"),
        ({"a": "crashed: rank 1 died"}, [], True, "not-run"),
        ({"a": "crashed: rank 0 raised KeyError: 1", "b": "another mean"}, ["x"], False, "defect"),
        ({"a": "hung: rank 1 waits"}, [], True, "defect"),
    ],
)
def test_no_defect_is_said_only_where_every_condition_went_both_ways(
    wrong: dict[str, str], undecided: list[str], feature: bool, shows_: str
) -> None:
    assert shows._said({"wrong": wrong, "ran": 4, "open": undecided}, feature)[0] == shows_
