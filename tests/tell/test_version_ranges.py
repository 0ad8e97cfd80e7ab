"""Neighbouring releases with the same verdicts are one range; nightlies and yanked releases are counted beside it."""

from collections.abc import Mapping, Sequence

import pytest

from support import made_up
from unhang.judge import matrix
from unhang.shapes.catalog import Fix
from unhang.tell import version_ranges

HANG, STALL = made_up.fix("hang", "core"), made_up.fix("stall", "core", "swift")
BOTH = [HANG, STALL]


def rows_of(fixes: Sequence[Fix], **upstreams: Mapping[str, str]) -> list[matrix.Row]:
    return matrix.rows(fixes, made_up.releases(fixes, **upstreams), made_up.table(*fixes))


def ranges_of(versions: Mapping[str, str], fixes: Sequence[Fix] = (HANG,)) -> list[tuple[str, ...]]:
    """Return label, verdicts and notes of each range of one upstream."""
    (panel,) = version_ranges.panels(rows_of(fixes, core=versions), fixes)
    return [(item.label, *item.verdicts, *item.notes) for item in panel.ranges]


NIGHTLIES = {f"0.16.0rc0.dev{number}": "affected" for number in (103000, 99000, 141000)}
DIFFERENT = {f"0.16.0rc0.dev{100000 + number}": "fixed" if number in (1, 3, 4) else "affected" for number in range(5)}


@pytest.mark.parametrize(
    ("versions", "ranges"),
    [
        pytest.param(
            {"0.2.0": "not-affected", "0.1.0": "-", "0.3.0rc1": "affected", "0.3.0": "affected", "0.4.0": "fixed"},
            [("0.1.0 to 0.2.0", "not-affected"), ("0.3.0rc1 to 0.3.0", "needed"), ("0.4.0", "fixed-upstream")],
            id="neighbours with the same verdict are one range",
        ),
        pytest.param(
            {"1.0": "affected", "1.1!": "affected", "1.2": "affected", "1.3!": "fixed"},
            [("1.0 to 1.2", "needed", "yanked: 1.1"), ("1.3", "fixed-upstream", "yanked: 1.3")],
            id="yanked releases are named beside their range",
        ),
        pytest.param(
            {"0.15.0": "affected", **NIGHTLIES, "0.16.0": "affected", "0.17.0": "fixed"},
            [("0.15.0 to 0.16.0, and 3 nightlies", "needed"), ("0.17.0", "fixed-upstream")],
            id="nightlies are counted in the range around them",
        ),
        pytest.param(
            {"0.15.0": "-", **NIGHTLIES, "0.16.0": "fixed"},
            [("0.15.0", "not-affected"), ("3 nightlies", "needed"), ("0.16.0", "fixed-upstream")],
            id="a range of nightlies alone",
        ),
        pytest.param(
            {"0.15.0": "-", **NIGHTLIES, "0.16.0": "affected"},
            [("0.15.0", "not-affected"), ("0.16.0, and 3 nightlies", "needed")],
            id="a nightly is never named as a bound",
        ),
        pytest.param(
            {"0.15.0": "-", **DIFFERENT},
            [("0.15.0", "not-affected"), ("2 nightlies", "needed"), ("3 nightlies", "fixed-upstream")],
            id="nightlies that differ are grouped by verdict, not by number",
        ),
        pytest.param(
            {"0.14.0": "-", "0.15.0": "affected", **DIFFERENT, "0.16.0": "fixed"},
            [
                ("0.14.0", "not-affected"),
                ("0.15.0, and 2 nightlies", "needed"),
                ("0.16.0, and 3 nightlies", "fixed-upstream"),
            ],
            id="each joins the releases beside it that are like it",
        ),
        pytest.param(
            {"0.15.0": "fixed", **NIGHTLIES, "0.17.0": "fixed"},
            [("0.15.0 to 0.17.0", "fixed-upstream"), ("3 nightlies", "needed")],
            id="and none is between releases that are alike",
        ),
        pytest.param(
            {"0.7.1": "affected", "0.8.0.dev0": "fixed", "0.8.0": "fixed"},
            [("0.7.1", "needed"), ("0.8.0.dev0 to 0.8.0", "fixed-upstream")],
            id="a development release that people number is no nightly",
        ),
    ],
)
def test_the_ranges_of_one_fix(versions: Mapping[str, str], ranges: list[tuple[str, ...]]) -> None:
    assert ranges_of(versions) == ranges


def test_a_range_ends_where_any_of_its_fixes_differs() -> None:
    versions = {"1.0": "affected affected", "1.1": "affected fixed", "1.2": "affected fixed"}
    assert ranges_of(versions, BOTH) == [("1.0", "needed", "needed"), ("1.1 to 1.2", "needed", "fixed-upstream")]


def test_a_fix_without_a_target_in_an_upstream_has_no_column_there() -> None:
    rows = rows_of(BOTH, core={"1.0": "affected fixed"}, swift={"4.0": "affected"}, verl={"0.7": ""})
    columns = [(panel.upstream, [fix.id for fix in panel.fixes]) for panel in version_ranges.panels(rows, BOTH)]
    assert columns == [("core", ["hang", "stall"]), ("swift", ["stall"])]


def test_each_series_begins_a_new_range() -> None:
    versions = {"0.9.0": "affected", "0.9.1": "affected", "0.10.0": "affected", "0.10.1": "fixed"}
    (panel,) = version_ranges.panels_by_series(rows_of([HANG], core=versions), [HANG])
    assert [item.label for item in panel.ranges] == ["0.9.0 to 0.9.1", "0.10.0", "0.10.1"]
    names = {"0.9.0": "0.9", "0.10.1": "0.10", "4": "4.0", "0.16.0rc0.dev99000": "0.16"}
    assert {version: version_ranges.series(version) for version in names} == names
