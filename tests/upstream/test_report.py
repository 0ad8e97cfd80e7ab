"""Both sides compared test by test, the lines that count as rewritten, and what the report and its page say of them."""

from pathlib import Path

import pytest

from support import environments
from upstream import compare, results, traced
from upstream import report as reports
from upstream.compare import Answer, Line
from upstream.report import File, Report

# The runs of a test before and after; `-`: not collected.
CASES = {
    compare.PASSED_BOTH: "passed > passed, passed passed > unreached passed",
    compare.FAILED_BOTH: "failed > failed",
    compare.SKIPPED_BOTH: "skipped > skipped",
    compare.FIXED: "failed > passed, cut > passed, skipped > passed",
    compare.REGRESSION: "passed > failed, passed > skipped, passed > cut, passed > -, skipped > failed, "
    "passed passed > failed failed, passed passed > cut cut, passed unreached > cut cut",
    compare.FLAKY: "passed passed > failed passed, failed passed > failed failed, passed passed > cut passed",
    compare.CHANGED: "failed > skipped, cut > failed",
    compare.CUT_OFF: "cut > cut, unreached > unreached, passed > unreached, passed passed > cut unreached",
    compare.APPEARED: "- > passed",
    compare.VANISHED: "failed > -",
}


def run(**outcomes: str) -> dict[str, Answer]:
    return {id: Answer(outcome) for id, outcome in outcomes.items()}


def test_the_category_of_one_or_more_runs_and_of_what_is_disputed() -> None:
    for category, cases in CASES.items():
        for case in cases.split(", "):
            before, after = ([run() if it == "-" else run(a=it) for it in side.split()] for side in case.split(" > "))
            assert [line.category for line in compare.compare(before, after)] == [category], case
    passed, failed = run(a="passed", b="passed", c="passed"), run(a="failed", b="failed", c="passed")
    lines = compare.compare([passed], [failed], {"a": "asserts the defect", "c": "why"})
    assert [line.category for line in lines] == [compare.DISPUTED, compare.REGRESSION, compare.PASSED_BOTH]


def test_what_makes_a_file_run_again_and_that_the_worst_answer_of_two_ranks_counts() -> None:
    """Another answer, but not what the deadline cut on both sides. The lines executed on any rank count."""
    cut = run(a="passed", b="cut", c="unreached")
    assert not compare.differs(cut, {**cut, **run(d="unreached")})
    for other in run(a="failed"), run(), run(a="passed", b="unreached"):
        assert compare.differs(run(a="passed"), other)
    one, other_rank = {"a": Answer("passed", "", ("x",))}, {"a": Answer("failed", "why", ("y",))}
    assert compare.of_ranks([one, other_rank])["a"] == Answer("failed", "rank 1: why", ("x", "y"))
    assert compare.of_ranks([run(a="passed"), run()])["a"].outcome == compare.UNREACHED


BODY = "class Layer:\n    def forward(self, x):\n        first(x)\n        if x:\n            second(x)\n"
REWRITES = [
    ("first(x)", "first(x)\n        # a comment\n\n        1\n        global x", ""),
    ("if x:", "if (\n            x\n            and rank\n        ):", "if (+x+and rank"),
    ("            second(x)\n", "            if rank:\n                second(x)\n", "if rank:; second(x)"),
    ("first(x)", "raise ValueError\n        first(x)\n        other(x)", "raise ValueError; other(x)"),
    ("first(x)", "try:\n            x\n        except (\n            E):\n            y", "try:; x; except (+E):; y"),
]


@pytest.mark.parametrize(("old", "new", "expected"), REWRITES)
def test_the_statements_whose_text_is_new_are_rewritten(tmp_path: Path, old: str, new: str, expected: str) -> None:
    """Each with all of its lines; a head ends before its body."""
    text = BODY.replace(old, new, 1)
    before, after = (environments.write(tmp_path / it, {"a/b.py": code}) for it, code in (("b", BODY), ("a", text)))
    found = traced.lines(before, after, [("fix", "a/b.py", "Layer.forward"), ("fix", "a/elsewhere.py", "f")])["fix"]
    assert [*found] == [f"a/b.py:{numbers[0]}" for numbers in found.values()]
    rows = [row.strip() for row in text.splitlines()]
    assert "; ".join("+".join(rows[number - 1] for number in numbers) for numbers in found.values()) == expected


ALL = ("a.py:3", "a.py:4", "a.py:7")


def line(id: str, category: str, ends: str = "passed passed", output: str = "", executed: tuple[str, ...] = ()) -> Line:
    before, after = ends.split()
    return Line(id, category, (Answer(before, output),), (Answer(after, output, executed),))


def report(*lines: Line) -> Report:
    files = (File("tests/test_it.py", ("fix",), lines, 3.0, False, 1),)
    head = ("verl", "refs/pull/1/head", "a clone", "1.0", "Python", 2, 60.0, (), {"fix": "applied"})
    return Report(*head, {"fix": ALL, "other": ("b.py:1",)}, (), files, {}, {})


GOOD = line("t::good", compare.PASSED_BOTH, executed=ALL)
BAD = line("t::bad", compare.REGRESSION, "passed failed", "E   ValueError: bad news")
IDLE = line("t::idle", compare.PASSED_BOTH)
FAILING = line("t::a", compare.FAILED_BOTH, "failed failed", "E   OddError: secret words")
SOME = [line("t::a", compare.FIXED, "failed passed", executed=ALL[:1]), line("t::b", compare.FLAKY, executed=ALL)]
PART = "no regression in the tests; they execute a part of the rewrite of fix (1 of 3 rewritten lines executed)"
NONE, NOTHING = "a.py lines 3-4, 7", "FAILED: no test passed after the fixes, so nothing was compared"


@pytest.mark.parametrize(
    ("lines", "missed", "last"),
    [
        ([GOOD], "", "no regression"),
        (SOME, "a.py lines 4, 7", PART),
        ([IDLE, FAILING._replace(after=GOOD.after)], NONE, f"{PART[:28]}none executes the rewrite of fix"),
        ([IDLE, BAD], NONE, "FAILED: 1 regression"),
        ([FAILING], NONE, NOTHING),
    ],
)
def test_only_lines_that_passing_tests_execute_are_covered(lines: list[Line], missed: str, last: str) -> None:
    rows = reports.table(report(*lines)).splitlines()
    assert (rows[-1], report(*lines).wrong()) == (last, last.partition("FAILED: ")[2])
    assert [row for row in rows if row.startswith("NOT")] == ([f"NOT COVERED: fix: {missed}"] if missed else [])


def test_the_page_made_of_the_json_quotes_no_message(tmp_path: Path) -> None:
    path = reports.write(report(GOOD, BAD, FAILING), tmp_path)
    page = tmp_path / "page.md"
    page.write_text(f"above\n{results.START}\nstale\n{results.END}\nbelow\n")
    assert results.main([str(page), str(path)]) == 0
    text = page.read_text()
    assert (text[:6], text[-7:], "stale" in text, "secret words" in text) == ("above\n", "\nbelow\n", False, False)
    for part in ("| verl refs/pull/1/head | 2 | 1 | 1 |", "`fix` 3/3", "Regression: `t::bad`: .", "`OddError` (1)"):
        assert part in text
