"""The comparison, test by test: every category, several ranks and repeated runs."""

from upstream import compare
from upstream.compare import Answer

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


def test_the_category_of_one_or_more_runs() -> None:
    assert {*CASES, compare.DISPUTED} == {*compare.CATEGORIES}
    for category, cases in CASES.items():
        for case in cases.split(", "):
            before, after = ([run() if it == "-" else run(a=it) for it in side.split()] for side in case.split(" > "))
            assert [line.category for line in compare.compare(before, after)] == [category], case


def test_a_disputed_test_is_no_regression_and_says_why() -> None:
    before, after = run(a="passed", b="passed", c="passed"), run(a="failed", b="failed", c="passed")
    lines = compare.compare([before], [after], {"a": "asserts the defect", "c": "why"})
    expected = [(compare.DISPUTED, "asserts the defect"), (compare.REGRESSION, ""), (compare.PASSED_BOTH, "")]
    assert [(line.category, line.reason) for line in lines] == expected


def test_what_makes_a_file_run_again() -> None:
    """Another answer, or one that is missing; but not what was unreached because the deadline cut both sides."""
    cut = run(a="passed", b="cut", c="unreached")
    for same in (run(a="passed", b="failed"), run(b="failed", a="passed")), (cut, {**cut, **run(d="unreached")}):
        assert not compare.differs(*same)
    for other in run(a="failed"), run(), run(a="passed", b="unreached"):
        assert compare.differs(run(a="passed"), other)
    assert compare.differs(run(a="passed", b="cut"), run(a="cut", b="unreached"))


def test_the_worst_answer_of_two_ranks_counts_and_lines_executed_on_any() -> None:
    for pair in "passed passed", "failed passed", "failed cut", "cut passed", "passed skipped", "unreached passed":
        worst, other = pair.split()
        for ranks in ([run(a=worst), run(a=other)], [run(a=other), run(a=worst)]):
            assert compare.of_ranks(ranks)["a"].outcome == worst
    one, other_rank = {"a": Answer("passed", "", ("x",))}, {"a": Answer("failed", "why", ("y",))}
    assert compare.of_ranks([one, other_rank])["a"] == Answer("failed", "rank 1: why", ("x", "y"))
    assert compare.of_ranks([run(a="passed"), run()])["a"].outcome == compare.UNREACHED
