"""The comparison, test by test: every category, several ranks and repeated runs."""

from __future__ import annotations

import pytest

from upstream import compare
from upstream.compare import Answer


def run(**outcomes: str) -> dict[str, Answer]:
    return {id: Answer(outcome) for id, outcome in outcomes.items()}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("passed", "passed", compare.PASSED_BOTH),
        ("failed", "failed", compare.FAILED_BOTH),
        ("skipped", "skipped", compare.SKIPPED_BOTH),
        ("cut", "cut", compare.CUT_OFF),
        ("unreached", "unreached", compare.CUT_OFF),
        ("failed", "passed", compare.FIXED),
        ("cut", "passed", compare.FIXED),
        ("passed", "failed", compare.REGRESSION),
        ("passed", "skipped", compare.REGRESSION),
        ("passed", "cut", compare.REGRESSION),
        ("passed", "-", compare.REGRESSION),
        ("skipped", "failed", compare.REGRESSION),
        ("failed", "-", compare.VANISHED),
        ("-", "passed", compare.APPEARED),
        ("failed", "skipped", compare.CHANGED),
        ("skipped", "passed", compare.FIXED),
        ("cut", "failed", compare.CHANGED),
        ("passed", "unreached", compare.CUT_OFF),
        ("passed passed passed", "failed failed failed", compare.REGRESSION),
        ("passed passed", "failed passed", compare.FLAKY),
        ("failed passed", "failed failed", compare.FLAKY),
        ("passed passed", "cut passed", compare.FLAKY),
        ("passed passed", "unreached passed", compare.PASSED_BOTH),
        ("passed passed passed", "cut cut cut", compare.REGRESSION),
        ("passed passed unreached", "cut cut cut", compare.REGRESSION),
        ("passed passed passed", "cut cut unreached", compare.CUT_OFF),
    ],
)
def test_the_category_of_one_or_more_runs(before: str, after: str, expected: str) -> None:
    """The runs of test `a` on each side; `-`: not collected."""
    first, second = ([run() if word == "-" else run(a=word) for word in words.split()] for words in (before, after))
    (line,) = compare.compare(first, second)
    assert line.category == expected


def test_a_disputed_test_is_no_regression_and_says_why() -> None:
    lines = compare.compare(
        [run(**{"t::a[1]": "passed", "t::b": "passed", "t::c": "passed"})],
        [run(**{"t::a[1]": "failed", "t::b": "failed", "t::c": "passed"})],
        {"t::a": "asserts the defect", "t::c": "why"},
    )
    assert [(line.category, line.reason) for line in lines] == [
        (compare.DISPUTED, "asserts the defect"),
        (compare.REGRESSION, ""),
        (compare.PASSED_BOTH, ""),
    ]


def test_what_makes_a_file_run_again() -> None:
    assert not compare.differs(run(a="passed", b="failed"), run(b="failed", a="passed"))
    assert compare.differs(run(a="passed"), run(a="failed"))
    assert compare.differs(run(a="passed"), run())
    assert compare.differs(run(a="passed", b="unreached"), run(a="passed", b="passed"))
    # the deadline cut both sides
    cut = run(a="passed", b="cut", c="unreached")
    assert not compare.differs(cut, {**cut, **run(d="unreached")})
    assert compare.differs(run(a="passed", b="cut"), run(a="cut", b="unreached"))


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("passed", "passed", "passed"),
        ("passed", "failed", "failed"),
        ("cut", "failed", "failed"),
        ("passed", "cut", "cut"),
        ("passed", "skipped", "passed"),
        ("skipped", "skipped", "skipped"),
        ("passed", "unreached", "unreached"),
    ],
)
def test_the_worst_answer_of_two_ranks_counts(first: str, second: str, expected: str) -> None:
    for ranks in ([run(a=first), run(a=second)], [run(a=second), run(a=first)]):
        assert compare.of_ranks(ranks)["a"].outcome == expected


def test_the_failing_rank_is_named_and_lines_executed_on_any_rank_count() -> None:
    ranks = [{"a": Answer("passed", "", ("x",))}, {"a": Answer("failed", "why", ("y",))}]
    assert compare.of_ranks(ranks)["a"] == Answer("failed", "rank 1: why", ("x", "y"))
    assert compare.of_ranks([run(a="passed"), run()])["a"].outcome == compare.UNREACHED


@pytest.mark.parametrize(
    ("before", "after", "differs"),
    [
        ("E   ValueError: <X at 0x7f01>\nE   and more", "E   ValueError: <X at 0x8ab2>\nE   and more", False),
        ("E   ValueError: x", "E   NameError: x", True),
        ("/tmp/u/before/t.py: no", "/tmp/u/after/t.py: no", False),
    ],
)
def test_another_reason_of_a_failure_is_found(before: str, after: str, differs: bool) -> None:
    (line,) = compare.compare([{"a": Answer("failed", before)}], [{"a": Answer("failed", after)}])
    assert compare.failed_differently(line) == differs


def test_a_known_cause_is_explained() -> None:
    causes = {"no such ranks": "wants more ranks", "ranks": "wants ranks"}
    assert compare.explained("t.py:1: in f\nE   ValueError: no such ranks (2)", causes) == "wants more ranks"
    assert compare.explained("E   ValueError: other", causes) == ""
