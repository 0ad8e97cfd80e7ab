"""The comparison, test by test: every category, several ranks and repeated runs."""

from __future__ import annotations

import pytest

from upstream import compare
from upstream.compare import Answer, Line


def run(**outcomes: str) -> dict[str, Answer]:
    return {id: Answer(outcome) for id, outcome in outcomes.items()}


def category(before: str, after: str) -> str:
    """Return the category of test `a`, given the outcomes of its runs on each side; `-`: not collected."""
    first, second = ([run() if word == "-" else run(a=word) for word in words.split()] for words in (before, after))
    (line,) = compare.compare(first, second)
    return line.category


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
    ],
)
def test_the_category_of_one_run(before: str, after: str, expected: str) -> None:
    assert category(before, after) == expected


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
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
def test_a_test_that_gives_two_answers_on_one_side_is_flaky(before: str, after: str, expected: str) -> None:
    assert category(before, after) == expected


def test_a_disputed_test_is_no_regression_and_says_why() -> None:
    lines = compare.compare(
        [run(**{"t.py::a[1]": "passed", "t.py::b": "passed"})],
        [run(**{"t.py::a[1]": "failed", "t.py::b": "failed"})],
        {"t.py::a": "asserts the defect"},
    )
    assert [(line.id, line.category, line.reason) for line in lines] == [
        ("t.py::a[1]", compare.DISPUTED, "asserts the defect"),
        ("t.py::b", compare.REGRESSION, ""),
    ]


def test_a_disputed_test_that_passes_both_ways_is_not_counted_as_disputed() -> None:
    (line,) = compare.compare([run(a="passed")], [run(a="passed")], {"a": "why"})
    assert (line.category, line.reason) == (compare.PASSED_BOTH, "")


def test_what_makes_a_file_run_again() -> None:
    assert not compare.differs(run(a="passed", b="failed"), run(b="failed", a="passed"))
    assert compare.differs(run(a="passed"), run(a="failed"))
    assert compare.differs(run(a="passed"), run())
    assert compare.differs(run(a="passed", b="unreached"), run(a="passed", b="passed"))


def test_where_the_deadline_cut_both_sides_unreached_tests_do_not_differ() -> None:
    assert not compare.differs(
        run(a="passed", b="cut", c="unreached"), run(a="passed", b="cut", c="unreached", d="unreached")
    )
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


def test_the_failing_rank_is_named_and_functions_entered_by_any_rank_count() -> None:
    ranks = [{"a": Answer("passed", 1.0, "", ("x",))}, {"a": Answer("failed", 2.0, "why", ("y",))}]
    assert compare.of_ranks(ranks)["a"] == Answer("failed", 2.0, "rank 1: why", ("x", "y"))


def test_a_test_that_one_rank_has_not_collected_was_not_reached_there() -> None:
    assert compare.of_ranks([run(a="passed"), run()])["a"].outcome == compare.UNREACHED


def test_another_reason_of_a_failure_is_found_and_addresses_are_ignored() -> None:
    def line(before: str, after: str) -> Line:
        (found,) = compare.compare([{"a": Answer("failed", 0, before)}], [{"a": Answer("failed", 0, after)}])
        return found

    same = "t.py:3: in f\nE   ValueError: <X at {}>\nE   and more"
    assert not compare.failed_differently(line(same.format("0x7f01"), same.format("0x8ab2")))
    assert compare.failed_differently(line("E   ValueError: x", "E   NameError: x"))
    assert not compare.failed_differently(line("/tmp/u/before/t.py: no", "/tmp/u/after/t.py: no"))


def test_a_known_cause_is_explained() -> None:
    causes = {"no such ranks": "wants more ranks", "ranks": "wants ranks"}
    assert compare.explained("t.py:1: in f\nE   ValueError: no such ranks (2)", causes) == "wants more ranks"
    assert compare.explained("E   ValueError: other", causes) == ""
