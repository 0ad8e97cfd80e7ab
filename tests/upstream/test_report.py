"""The report as table and JSON, when it is wrong, and the page made of it."""

from pathlib import Path
from typing import Any

import pytest

from upstream import compare, results
from upstream import report as reports
from upstream.compare import Answer, Line
from upstream.report import File, Report

ALL = ("a.py:3", "a.py:4", "a.py:7")


def line(id: str, category: str, ends: str = "passed passed", output: str = "", **more: Any) -> Line:
    before, after = ends.split()
    return Line(id, category, (Answer(before),), (Answer(after, output, more.pop("executed", ())),), **more)


def report(*lines: Line, was_cut: bool = False, shims: tuple[str, ...] = (), **verdicts: str) -> Report:
    files = (File("tests/test_it.py", ("fix",), lines, 3.0, was_cut, 1),)
    head = ("verl", "v1", "a clone", "1.0", "Python", 2, 60.0, shims, verdicts or {"fix": "applied"})
    return Report(*head, {"fix": ALL, "other": ("b.py:1",)}, (), files, {"t::noted": "a GPU"}, {"Boom": "booms"})


def failing(id: str, output: str, before: str = "") -> Line:
    both = line(id, compare.FAILED_BOTH, "failed failed", output)
    return both._replace(before=(Answer("failed", before or output),))


GOOD = line("t::good", compare.PASSED_BOTH, executed=ALL)
BAD = line("t::bad", compare.REGRESSION, "passed failed", "E   ValueError: bad news")
IDLE = line("t::idle", compare.PASSED_BOTH)
SOME = [line("t::a", compare.FIXED, "failed passed", executed=ALL[:1]), line("t::b", compare.FLAKY, executed=ALL)]
PART = "no regression in the tests; they execute a part of the rewrite of fix (1 of 3 rewritten lines executed)"
NONE, NOTHING = "a.py lines 3-4, 7", "FAILED: no test passed after the fixes, so nothing was compared"


@pytest.mark.parametrize(
    ("lines", "missed", "last"),
    [
        ([GOOD], "", "no regression"),
        (SOME, "a.py lines 4, 7", PART),
        ([IDLE, failing("t::a", "")._replace(after=GOOD.after)], NONE, f"{PART[:28]}none executes the rewrite of fix"),
        ([IDLE, BAD], NONE, "FAILED: 1 regression"),
        ([failing("t::a", "")], NONE, NOTHING),
        ([], NONE, NOTHING),
    ],
)
def test_only_lines_that_passing_tests_execute_are_covered(lines: list[Line], missed: str, last: str) -> None:
    rows = reports.table(report(*lines)).splitlines()
    assert (rows[-1], report(*lines).wrong()) == (last, last.partition("FAILED: ")[2])
    assert [row for row in rows if row.startswith("NOT")] == ([f"NOT COVERED: fix: {missed}"] if missed else [])
    whole = "fix: 3 of 3 rewritten lines executed, by tests that passed: 1 in tests/test_it.py"
    assert (whole in rows, "fix 3/3" in "".join(rows)) == (not missed, not missed)
    useless = "chosen for fix, whose rewrite no test that passed executes: tests/test_it.py"
    assert (useless in rows) == (missed == NONE)


def test_everything_else_is_named_in_the_table_and_not_wrong() -> None:
    named = [compare.DISPUTED, compare.FLAKY, compare.CUT_OFF, compare.CHANGED]
    lines = [line(f"t::{category}", category, "passed failed", reason="because") for category in named]
    lines += [failing("t::noted[1]", "E   OSError: x"), failing("t::a", "E   Boom: it", "E   X: 1")]
    lines += [
        failing("t::b", "E   Boom: 0x8a\nE   2", "E   Boom: 0x7f\nE   1"),
        failing("t::c", "/u/after/t", "/u/before/t"),
    ]
    shown = report(GOOD, *lines, was_cut=True, shims=("gloo for nccl",), fix="applied", other="fixed-upstream")
    rows = reports.table(shown).splitlines()
    assert {*rows} > {
        *(f"{category}: t::{category} (passed -> failed): because" for category in named),
        "Python; 2 ranks, 60 s for each file", "injected by a plugin of ours, for a CPU: gloo for nccl",
        "cut at the deadline: tests/test_it.py", "other: fixed-upstream", "failed both, 2 times: booms",
        "failed both, 1 times: a GPU", "failed both, for another reason after: t::a (failed -> failed)",
    }  # fmt: skip
    assert sum("for another reason" in row for row in rows) == 1
    assert (shown.wrong(), rows[-1]) == ("", "no regression"), "no line is asked of a fix that was not applied"
    text = reports.table(report(GOOD, fix="applied", other="applied"))
    assert text.endswith("\nno regression in the tests; none executes the rewrite of other")
    assert "no shims" in text


def test_the_json_has_all_and_the_page_made_of_it_quotes_no_message(tmp_path: Path) -> None:
    odd, cut = failing("t/x.py::a", "E   OddError: secret words"), line("t/x.py::c", compare.CUT_OFF, "cut cut")
    disputed = line("t/x.py::d", compare.DISPUTED, "passed failed", reason="asserts the defect")
    shown = report(GOOD, BAD, odd, disputed, cut)._replace(ref="refs/pull/1/head")
    text, path = reports.table(shown), reports.write(shown, tmp_path)
    assert "--- t::bad, before: passed" in text
    assert "--- t::bad, after: failed\nE   ValueError: bad" in text
    document = path.read_text()
    assert (path.name, '"wrong": "1 regression"' in document) == ("verl-refs_pull_1_head-2.json", True)
    assert reports.write(reports.read(path), tmp_path).read_text() == document
    page = tmp_path / "page.md"
    page.write_text(f"above\n{results.START}\nstale\n{results.END}\nbelow\n")
    assert results.main([str(page), str(path)]) == 0
    text = page.read_text()
    assert (text[:6], text[-7:], "stale" in text, "secret words" in text) == ("above\n", "\nbelow\n", False, False)
    for part in (
        "| verl refs/pull/1/head | 2 | 1 | 1 | 0 | 0 | 1 | 1 | 0 | 1 | `fix` 3/3 | 0 |",
        "| `tests/test_it.py` | 1/1/0 |",
        "fix: 3 of 3 rewritten lines executed, by 1 tests that passed.",
        "Cut: `x.py::c`. Regression: `t::bad`: .",
        "`x.py::d`: asserts the defect",
        "`OddError` (1)",
    ):
        assert part in text
