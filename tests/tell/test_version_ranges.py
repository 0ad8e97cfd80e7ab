"""Neighbouring releases with the same verdicts are one range; nightlies and yanked releases are counted beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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


def test_neighbours_with_the_same_row_are_one_range() -> None:
    versions = {"0.2.0": "not-affected", "0.1.0": "-", "0.3.0rc1": "affected", "0.3.0": "affected", "0.4.0": "fixed"}
    assert ranges_of(versions) == [
        ("0.1.0 - 0.2.0", "not-affected"),
        ("0.3.0rc1 - 0.3.0", "needed"),
        ("0.4.0", "fixed-upstream"),
    ]


def test_a_range_ends_where_any_of_its_fixes_differs() -> None:
    versions = {"1.0": "affected affected", "1.1": "affected fixed", "1.2": "affected fixed"}
    assert ranges_of(versions, BOTH) == [("1.0", "needed", "needed"), ("1.1 - 1.2", "needed", "fixed-upstream")]
    assert ranges_of({version: shapes.split()[0] for version, shapes in versions.items()}) == [("1.0 - 1.2", "needed")]


def test_yanked_releases_are_in_the_range_and_named_beside_it() -> None:
    versions = {"1.0": "affected", "1.1!": "affected", "1.2": "affected", "1.3!": "fixed"}
    assert ranges_of(versions) == [
        ("1.0 - 1.2", "needed", "yanked: 1.1"),
        ("1.3", "fixed-upstream", "yanked: 1.3"),
    ]


def test_nightlies_fold_into_the_range_around_them_and_are_counted() -> None:
    nightlies = {f"0.16.0rc0.dev{number}": "affected" for number in (103000, 99000, 141000)}
    assert ranges_of({"0.15.0": "affected", **nightlies, "0.16.0": "affected", "0.17.0": "fixed"}) == [
        ("0.15.0 - 0.16.0", "needed", "3 nightlies 0.16.0rc0.dev*"),
        ("0.17.0", "fixed-upstream"),
    ]


def test_a_nightly_is_never_named_as_a_bound() -> None:
    nightlies = {f"0.16.0rc0.dev{number}": "affected" for number in (103000, 99000, 141000)}
    assert ranges_of({"0.15.0": "-", **nightlies, "0.16.0": "fixed"})[1] == ("0.16.0rc0.dev*", "needed", "3 nightlies")
    assert ranges_of({"0.15.0": "-", **nightlies, "0.16.0": "affected"})[1] == (
        "0.16.0rc0.dev* - 0.16.0",
        "needed",
        "3 nightlies 0.16.0rc0.dev*",
    )


def test_nightlies_that_differ_are_grouped_by_verdict_not_by_number() -> None:
    shapes = ("affected", "fixed", "affected", "fixed", "fixed")
    nightlies = {f"0.16.0rc0.dev{100000 + number}": shape for number, shape in enumerate(shapes)}
    ranges = ranges_of({"0.15.0": "-", **nightlies, "0.16.0": "-"})
    assert ranges[1:3] == [
        ("0.16.0rc0.dev*", "fixed-upstream", "3 nightlies"),
        ("0.16.0rc0.dev*", "needed", "2 nightlies"),
    ]


def test_a_development_release_that_people_number_is_no_nightly() -> None:
    assert ranges_of({"0.7.1": "affected", "0.8.0.dev0": "fixed", "0.8.0": "fixed"}) == [
        ("0.7.1", "needed"),
        ("0.8.0.dev0 - 0.8.0", "fixed-upstream"),
    ]


def test_a_fix_without_a_target_in_an_upstream_has_no_column_there() -> None:
    rows = rows_of(BOTH, core={"1.0": "affected fixed"}, swift={"4.0": "affected"}, verl={"0.7": ""})
    columns = [(panel.upstream, panel.fixes) for panel in version_ranges.panels(rows, BOTH)]
    assert columns == [("core", ("hang", "stall")), ("swift", ("stall",))]


def test_each_series_begins_a_new_range() -> None:
    versions = {"0.9.0": "affected", "0.9.1": "affected", "0.10.0": "affected", "0.10.1": "fixed"}
    (panel,) = version_ranges.panels_by_series(rows_of([HANG], core=versions), [HANG])
    assert [item.label for item in panel.ranges] == ["0.9.0 - 0.9.1", "0.10.0", "0.10.1"]
    assert [version_ranges.series(version) for version in ("0.9.0", "0.10.1", "4", "0.16.0rc0.dev99000")] == [
        "0.9",
        "0.10",
        "4.0",
        "0.16",
    ]
