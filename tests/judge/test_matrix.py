"""The compat matrix on made-up releases: rows, retirement, the releases that a specifier names."""

from collections.abc import Mapping, Sequence

import pytest

from support import made_up
from unhang.errors import UnhangError
from unhang.judge import matrix, untouched
from unhang.shapes.catalog import Fix

HANG, STALL = made_up.fix("hang", "core"), made_up.fix("stall", "core", "swift", grade="safeguard")
BOTH = [HANG, STALL]


def rows_of(fixes: Sequence[Fix], **upstreams: Mapping[str, str]) -> list[matrix.Row]:
    return matrix.rows(fixes, made_up.releases(fixes, **upstreams), made_up.table(*fixes))


def test_rows_are_in_the_order_of_pep_440_and_one_without_a_target_is_not_affected() -> None:
    versions = ("0.9.0", "0.9.0.post1", "0.10.0.dev0", "0.10.0rc1", "0.10.0")
    assert rows_of(BOTH, swift=dict.fromkeys(sorted(versions), "affected")) == [
        row
        for version in versions
        for row in (
            ("swift", version, False, "hang", "cure", ("hang",), False, "not-affected"),
            ("swift", version, False, "stall", "safeguard", ("hang",), False, "needed"),
        )
    ]


@pytest.mark.parametrize(
    ("shapes", "verdict"),
    [
        ("affected", "needed"),
        ("fixed", "fixed-upstream"),
        ("not-affected", "not-affected"),
        ("ours", "applied"),
        ("-", "not-affected"),
        ("nobody-knows", "drifted"),
        ("fixed affected", "needed"),
        ("- fixed", "fixed-upstream"),
        ("not-affected -", "not-affected"),
        ("affected unseen", "drifted"),
    ],
)
def test_the_most_urgent_verdict_on_the_targets_of_an_untouched_release(shapes: str, verdict: str) -> None:
    fix = made_up.fix("hang", *["core"] * len(shapes.split()))
    assert [row.verdict for row in rows_of([fix], core={"1.0": shapes})] == [verdict]


@pytest.mark.parametrize(
    ("shapes", "verdict"),
    [
        ("affected right", "not-affected"),
        ("affected repaired", "fixed-upstream"),
        ("affected wrong", "needed"),
        ("affected unseen", "drifted"),
        ("affected -", "drifted"),
        ("unseen right", "drifted"),
        ("unseen wrong", "drifted"),
        ("fixed right", "fixed-upstream"),
        ("fixed wrong", "drifted"),
        ("not-affected unseen", "not-affected"),
        ("- unseen", "not-affected"),
    ],
)
def test_the_verdict_rests_on_the_function_that_a_target_depends_on(shapes: str, verdict: str) -> None:
    fix = made_up.fix("hang", "core", "core")
    mine, other = fix.targets
    fix = fix._replace(targets=(mine._replace(depends_on=other),))
    assert fix.functions == (*fix.targets, other)
    release = made_up.releases([HANG._replace(targets=(mine, other))], core={"1.0": shapes})["core"]["1.0"]
    table = made_up.table(fix)
    seen = {"affected": ("right", "repaired", "wrong"), "fixed": ("right",)}
    together = {key: one._replace(beside=seen.get(one.state, ())) for key, one in table.shapes.items()}
    assert untouched.verdict(fix, "core", release, table._replace(shapes=together)) == verdict


@pytest.mark.parametrize(
    ("shapes", "verdict"),
    [
        ("affected wrong -", "needed"),
        ("affected - unseen", "needed"),
        ("affected - -", "not-affected"),
        ("unseen - -", "drifted"),
        ("unseen wrong -", "drifted"),
        ("fixed - -", "fixed-upstream"),
        ("- - -", "not-affected"),
    ],
)
def test_a_target_is_wrong_only_with_one_of_some_functions(shapes: str, verdict: str) -> None:
    fix = made_up.fix("hang", "core", "core", "core")
    mine, *others = fix.targets
    fix = fix._replace(targets=(mine._replace(only_with=tuple(others)),))
    assert fix.functions == (*fix.targets, *others)
    release = made_up.releases([HANG._replace(targets=(mine, *others))], core={"1.0": shapes})["core"]["1.0"]
    assert untouched.verdict(fix, "core", release, made_up.table(fix)) == verdict


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
        ({"1.0": "affected", "1.1rc1": "fixed", "1.1": "fixed"}, "1.1"),
        ({"1.0": "affected", "1.1rc1": "fixed"}, "1.1rc1"),
        ({"1.0": "affected", "1.1rc0.dev99000": "fixed", "1.1": "fixed"}, "1.1"),
        ({"1.0": "affected", "1.1rc0.dev99000": "fixed", "1.1rc0.dev99001": "affected", "1.1": "fixed"}, "1.1"),
        ({"1.0": "affected", "1.1rc0.dev99000": "fixed"}, None),
        ({"1.0": "not-affected", "1.1": "fixed"}, None),
        ({}, None),
    ],
)
def test_a_fix_can_be_dropped_where_no_later_release_needs_it(versions: dict[str, str], since: str | None) -> None:
    dropped = matrix.droppable(HANG, made_up.releases([HANG], core=versions), made_up.table(HANG))
    assert dropped == ({"core": since} if "affected" in versions.values() else {})


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


BOTH_NEAR = "nearest in the matrix: core 1.2, swift 4.0"


@pytest.mark.parametrize(
    ("wanted", "code", "hint"),
    [
        *((wanted, "no-such-release", BOTH_NEAR) for wanted in ("1.5", "~=4.7", "==1.7.*", "===nonsense")),
        ("0.5", "no-such-release", "nearest in the matrix: core 1.0, swift 4.0"),
        ("1.2.x", "bad-version", "did you mean 1.2? "),
        ("newest", "bad-version", "a version looks like 0.17.1"),
        ("", "bad-version", "a version looks like 0.17.1"),
    ],
)
def test_a_version_that_matches_nothing_is_refused_with_the_nearest(wanted: str, code: str, hint: str) -> None:
    core = dict.fromkeys(("1.0", "1.2", "1.4rc0.dev99000"), "- fixed")
    with pytest.raises(UnhangError) as caught:
        matrix.matching(rows_of(BOTH, core=core, swift={"4.0": "fixed"}), wanted)
    assert caught.value.code == code
    assert (caught.value.hint or "").startswith(hint)
