"""The figures of docs/promises.md: made from JUnit's reports of an attack, and from nothing else."""

import pytest

from support import promises

REPORT = """<testsuites><testsuite tests="3" failures="{failed}" errors="0" skipped="{skipped}">
<properties><property name="figure" value="14 instants: no mix"/></properties><testcase name="one"/>
<testcase name="other"/></testsuite></testsuites>"""


def test_a_row_for_each_group_and_its_figures_below() -> None:
    reports = [
        ("whole runs, killed", REPORT.format(failed=0, skipped=1)),
        ("links", REPORT.format(failed=0, skipped=0)),
    ]
    assert promises.page(reports).splitlines()[2:] == [
        "| whole runs, killed | 2 | 1 |",
        "| links | 3 | 0 |",
        "",
        "- 14 instants: no mix",
        "- 14 instants: no mix",
    ]


@pytest.mark.parametrize(("failed", "skipped", "why"), [(1, 0, "1 of 3 tests failed"), (0, 3, "3 were skipped")])
def test_no_page_is_made_of_a_run_that_failed_or_showed_nothing(failed: int, skipped: int, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        promises.page([("links", REPORT.format(failed=failed, skipped=skipped))])
