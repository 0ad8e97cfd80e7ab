"""The report as table and JSON, when it is wrong, and the page made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from upstream import compare, results
from upstream import report as reports
from upstream.compare import Answer, Line
from upstream.report import File, Report


def line(id: str, category: str, before: str = "passed", after: str = "passed", output: str = "", **more: Any) -> Line:
    return Line(id, category, (Answer(before),), (Answer(after, output, more.pop("executed", ())),), **more)


def file(*lines: Line, covers: tuple[str, ...] = ("fix",), was_cut: bool = False) -> File:
    return File("tests/test_it.py", covers, lines, 3.0, was_cut, 1)


def report(*files: File, shims: tuple[str, ...] = (), **verdicts: str) -> Report:
    head = ("verl", "v1", "a clone", "1.0", "Python", 2, 60.0)
    notes, causes = {"t::noted": "wants a GPU"}, {"Boom": "booms"}
    rewritten = {"fix": ALL, "other": ("b.py:1",)}
    return Report(*head, shims, verdicts or {"fix": "applied"}, rewritten, (), files, notes, causes)


ALL = ("a.py:3", "a.py:4", "a.py:7")
GOOD = line("t::good", compare.PASSED_BOTH, executed=ALL)
BAD = line("t::bad", compare.REGRESSION, "passed", "failed", "E   ValueError: bad news")


def test_a_regression_is_wrong_and_so_is_a_run_in_which_nothing_passed() -> None:
    assert report(file(GOOD)).wrong() == ""
    assert report(file(GOOD, BAD)).wrong() == "1 regression"
    assert "no test passed" in report(file(line("t::a", compare.FAILED_BOTH, "failed", "failed"))).wrong()
    assert "no test passed" in report().wrong()


@pytest.mark.parametrize("category", [compare.DISPUTED, compare.FLAKY, compare.CUT_OFF, compare.CHANGED])
def test_other_categories_are_named_but_not_wrong(category: str) -> None:
    shown = report(file(GOOD, line("t::it", category, "passed", "failed", reason="because")))
    assert shown.wrong() == ""
    assert f"{category}: t::it (passed -> failed): because" in reports.table(shown)


def test_the_table_names_shims_and_files_that_were_cut() -> None:
    text = reports.table(report(file(GOOD, was_cut=True), shims=("gloo for nccl",)))
    assert "injected by a plugin of ours, for a CPU: gloo for nccl" in text
    assert "2 ranks" in text
    assert "cut at the deadline: tests/test_it.py" in text
    assert "no shims" in reports.table(report(file(GOOD)))


NONE = "NOT COVERED: fix: a.py lines 3-4, 7"


@pytest.mark.parametrize(
    ("lines", "shown", "last"),
    [
        ([GOOD], "fix: 3 of 3 rewritten lines executed, by tests that passed: 1 in tests/test_it.py", "no regression"),
        (
            [line("t::a", compare.FIXED, "failed", executed=ALL[:1]), line("t::b", compare.FLAKY, executed=ALL)],
            "NOT COVERED: fix: a.py lines 4, 7",
            "no regression in the tests; they execute a part of the rewrite of fix (1 of 3 rewritten lines executed)",
        ),
        (
            [line("t::a", compare.FAILED_BOTH, "failed", "failed", executed=ALL), line("t::b", compare.PASSED_BOTH)],
            NONE,
            "no regression in the tests; none executes the rewrite of fix",
        ),
        ([line("t::a", compare.PASSED_BOTH), BAD], NONE, "FAILED: 1 regression"),
    ],
)
def test_only_lines_that_passing_tests_execute_are_covered(lines: list[Line], shown: str, last: str) -> None:
    rows = reports.table(report(file(*lines))).splitlines()
    assert shown in rows
    assert rows[-1] == last
    missed = "chosen for fix, whose rewrite no test that passed executes: tests/test_it.py"
    assert (missed in rows) == (shown == NONE)
    assert ("fix 3/3" in reports.table(report(file(*lines)))) == (lines == [GOOD])


def test_no_line_is_asked_of_a_fix_that_was_not_applied() -> None:
    text = reports.table(report(file(GOOD), fix="applied", other="fixed-upstream"))
    assert "other: fixed-upstream" in text
    assert text.endswith("\nno regression")
    text = reports.table(report(file(GOOD), fix="applied", other="applied"))
    assert text.endswith("\nno regression in the tests; none executes the rewrite of other")


def test_the_causes_of_tests_that_fail_both_ways_are_counted() -> None:
    ids = {"t::noted[1]": "E   OSError: x", "t::a": "E   Boom: it", "t::b": "E   Boom: that"}
    lines = [line(id, compare.FAILED_BOTH, "failed", "failed", output) for id, output in ids.items()]
    other = lines[1]._replace(before=(Answer("failed", "E   X: 1"),))
    text = reports.table(report(file(GOOD, lines[0], other, lines[2])))
    assert "failed both, 2 times: booms" in text
    assert "failed both, 1 times: wants a GPU" in text
    assert "failed both, for another reason after: t::a" in text


def test_both_outputs_of_a_regression_are_in_the_table_and_the_json_has_all(tmp_path: Path) -> None:
    shown = report(file(GOOD, BAD))._replace(ref="refs/pull/1/head")
    text = reports.table(shown)
    assert "--- t::bad, before: passed" in text
    assert "--- t::bad, after: failed\nE   ValueError: bad" in text
    assert "FAILED: 1 regression" in text
    path = reports.write(shown, tmp_path)
    assert path.name == "verl-refs_pull_1_head-2.json"
    document = path.read_text()
    assert reports.write(reports.read(path), tmp_path).read_text() == document
    assert '"wrong": "1 regression"' in document
    assert "E   ValueError: bad news" in document


def test_the_page_is_made_of_the_reports_and_quotes_no_message(tmp_path: Path) -> None:
    failing = line("t/x.py::a", compare.FAILED_BOTH, "failed", "failed", "E   OddError: secret words")
    disputed = line("t/x.py::d", compare.DISPUTED, "passed", "failed", reason="asserts the defect")
    shown = report(file(GOOD, failing, disputed, line("t/x.py::c", compare.CUT_OFF, "cut", "cut")))
    source = reports.write(shown, tmp_path)
    page = tmp_path / "page.md"
    page.write_text(f"above\n{results.START}\nstale\n{results.END}\nbelow\n")
    assert results.main([str(page), str(source)]) == 0
    text = page.read_text()
    assert (text[:6], text[-7:], "stale" in text) == ("above\n", "\nbelow\n", False)
    for part in (
        "| verl v1 | 2 | 1 | 1 | 0 | 0 | 0 | 1 | 0 | 1 | `fix` 3/3 | 0 |",
        "| `tests/test_it.py` | 1/1/0 |",
        "fix: 3 of 3 rewritten lines executed, by 1 tests that passed.",
        "Cut: `x.py::c`",
        "`x.py::d`: asserts the defect",
        "`OddError` (1)",
    ):
        assert part in text
    assert "secret words" not in text
