"""The compat matrix on made-up releases: rows, retirement, the releases that a specifier names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from support import made_up
from unhang.errors import UnhangError
from unhang.judge import matrix
from unhang.shapes.catalog import Fix

HANG, STALL = made_up.fix("hang", "core"), made_up.fix("stall", "core", "swift")
BOTH = [HANG, STALL]


def rows_of(fixes: Sequence[Fix], **upstreams: Mapping[str, str]) -> list[matrix.Row]:
    return matrix.rows(fixes, made_up.releases(fixes, **upstreams), made_up.table(*fixes))


def dropped(versions: Mapping[str, str]) -> dict[str, str | None]:
    return matrix.droppable(HANG, made_up.releases([HANG], core=versions), made_up.table(HANG))


def test_a_release_without_a_target_is_not_affected_and_has_its_row() -> None:
    assert rows_of(BOTH, swift={"4.0": "affected"}) == [
        ("swift", "4.0", False, "hang", "not-affected"),
        ("swift", "4.0", False, "stall", "needed"),
    ]


@pytest.mark.parametrize(
    ("shape", "verdict"),
    [
        ("affected", "needed"),
        ("superseded", "needed"),
        ("fixed", "fixed-upstream"),
        ("not-affected", "not-affected"),
        ("ours", "applied"),
        ("-", "not-affected"),
        ("nobody-knows", "drifted"),
    ],
)
def test_the_verdict_of_an_untouched_release_follows_from_its_shape(shape: str, verdict: str) -> None:
    assert [row.verdict for row in rows_of([HANG], core={"1.0": shape})] == [verdict]


@pytest.mark.parametrize(
    ("shapes", "verdict"),
    [
        ("fixed affected", "needed"),
        ("- fixed", "fixed-upstream"),
        ("not-affected -", "not-affected"),
        ("affected unseen", "drifted"),
    ],
)
def test_of_several_targets_the_most_urgent_verdict_counts(shapes: str, verdict: str) -> None:
    twice = made_up.fix("twice", "core", "core")
    assert [row.verdict for row in rows_of([twice], core={"1.0": shapes})] == [verdict]


def test_rows_are_in_the_order_of_pep_440() -> None:
    versions = dict.fromkeys(("0.10.0", "0.9.0", "0.10.0rc1", "0.9.0.post1", "0.10.0.dev0"), "fixed")
    ordered = ["0.9.0", "0.9.0.post1", "0.10.0.dev0", "0.10.0rc1", "0.10.0"]
    assert [row.version for row in rows_of([HANG], core=versions)] == ordered


@pytest.mark.parametrize(
    ("versions", "since"),
    [
        ({"1.0": "affected", "1.1": "fixed", "1.2": "fixed"}, "1.1"),
        ({"1.0": "affected", "1.1": "-"}, "1.1"),
        ({"1.0": "affected", "1.1": "fixed", "1.2": "affected", "1.3": "fixed"}, "1.3"),
        ({"1.0": "affected", "1.1": "fixed", "1.2": "affected"}, None),
        ({"1.0": "fixed", "1.1": "affected"}, None),
        ({"1.0": "affected", "1.1": "affected"}, None),
        ({"1.0": "affected", "1.1": "fixed", "1.2": "unseen"}, None),
        ({"1.10": "fixed", "1.9": "affected"}, "1.10"),
        ({"1.0": "affected", "1.1rc1": "fixed", "1.1": "fixed"}, "1.1rc1"),
        ({"1.0": "affected", "1.1rc0.dev99000": "fixed", "1.1": "fixed"}, "1.1"),
        ({"1.0": "affected", "1.1rc0.dev99000": "fixed", "1.1rc0.dev99001": "affected", "1.1": "fixed"}, "1.1"),
        ({"1.0": "affected", "1.1rc0.dev99000": "fixed"}, None),
    ],
)
def test_a_fix_can_be_dropped_where_no_later_release_needs_it(versions: dict[str, str], since: str | None) -> None:
    assert dropped(versions) == {"core": since}


def test_an_upstream_that_never_needed_a_fix_has_nothing_to_drop() -> None:
    assert dropped({"1.0": "not-affected", "1.1": "fixed"}) == {}
    assert dropped({}) == {}


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        ("1.1", ["1.1"]),
        ("1.1.0", ["1.1"]),
        ("1.2rc1", ["1.2rc1"]),
        ("~=1.1", ["1.1", "1.2rc1", "1.2"]),
        (">=1.0, <1.2", ["1.0", "1.1"]),
        ("<=1.2rc1", ["1.0", "1.1", "1.2rc1"]),
        ("==1.*", ["1.0", "1.1", "1.2rc1", "1.2"]),
    ],
)
def test_a_version_or_a_specifier_selects_releases_and_pre_releases(wanted: str, chosen: list[str]) -> None:
    rows = rows_of([HANG], core=dict.fromkeys(("1.0", "1.1", "1.2rc1", "1.2"), "fixed"))
    assert [row.version for row in matrix.matching(rows, wanted)] == chosen


@pytest.mark.parametrize(
    ("wanted", "code", "hint"),
    [
        ("1.5", "no-such-release", "nearest in the matrix: core 1.2, swift 4.0"),
        ("0.5", "no-such-release", "nearest in the matrix: core 1.0, swift 4.0"),
        ("~=4.7", "no-such-release", "nearest in the matrix: core 1.2, swift 4.0"),
        ("==1.7.*", "no-such-release", "nearest in the matrix: core 1.2, swift 4.0"),
        ("===nonsense", "no-such-release", "nearest in the matrix: core 1.2, swift 4.0"),
        ("1.2.x", "bad-version", "did you mean 1.2? "),
        ("newest", "bad-version", "a version looks like 0.17.1"),
        ("", "bad-version", "a version looks like 0.17.1"),
    ],
)
def test_a_version_that_matches_nothing_is_refused_with_the_nearest(wanted: str, code: str, hint: str) -> None:
    core = {"1.0": "- fixed", "1.2": "- fixed", "1.4rc0.dev99000": "- fixed"}
    rows = rows_of(BOTH, core=core, swift={"4.0": "fixed"})
    with pytest.raises(UnhangError) as caught:
        matrix.matching(rows, wanted)
    assert caught.value.code == code
    assert (caught.value.hint or "").startswith(hint)
