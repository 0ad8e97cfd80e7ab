"""docs/performance.md: the judgement of each goal, and that the page has the generator's own text."""

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def document(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("document")


def test_a_limit_fails_the_run_and_an_aim_does_not(document: Any) -> None:
    goals = [document.Goal("check", 2, value, None, aim=0.6) for value in (0.5, 0.7, 2.1)]
    assert [goal.met for goal in goals] == [True, True, False]
    assert [goal.judged for goal in goals] == ["pass", "pass, aim not reached", "**fail**"]


def test_a_goal_may_be_a_lower_bound(document: Any) -> None:
    goals = [document.Goal("others", 4, value, 3.5, at_least=True) for value in (3.9, 4.1)]
    assert [goal.met for goal in goals] == [False, True]
    assert document.goals_table(goals).splitlines()[-1] == "| others | >= 4x |  | 4.10x | pass | 3.50x |"


def test_the_committed_page_has_the_text_of_the_generator(document: Any) -> None:
    text = re.sub(r"\\\{\w+\\\}", "(?s:.+?)", re.escape(document._PAGE))
    assert re.fullmatch(text, (ROOT / "docs" / "performance.md").read_text(encoding="utf-8"))
