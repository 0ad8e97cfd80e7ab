"""`unhang matrix`: rows, ranges, retirement on made-up releases; the command on the data that is there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pytest

from support import cli, made_up
from unhang.cli.main import main
from unhang.compat import radar
from unhang.errors import UnhangError
from unhang.judge import matrix
from unhang.shapes import catalog
from unhang.shapes.catalog import Fix
from unhang.tell import matrix_text, version_ranges

HANG, STALL = made_up.fix("hang", "core"), made_up.fix("stall", "core", "swift")
BOTH = [HANG, STALL]


def rows_of(fixes: Sequence[Fix], **upstreams: Mapping[str, str]) -> list[matrix.Row]:
    return matrix.rows(fixes, made_up.releases(fixes, **upstreams), made_up.table(*fixes))


def ranges_of(versions: Mapping[str, str], fixes: Sequence[Fix] = (HANG,)) -> list[tuple[str, ...]]:
    """Label, verdicts and notes of each range of one upstream."""
    (panel,) = version_ranges.panels(rows_of(fixes, core=versions), fixes)
    return [(item.label, *item.verdicts, *item.notes) for item in panel.ranges]


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
def test_of_several_targets_the_most_urgent_one_counts(shapes: str, verdict: str) -> None:
    twice = made_up.fix("twice", "core", "core")
    assert [row.verdict for row in rows_of([twice], core={"1.0": shapes})] == [verdict]


def test_rows_stand_as_pep_440_orders_them() -> None:
    versions = dict.fromkeys(("0.10.0", "0.9.0", "0.10.0rc1", "0.9.0.post1", "0.10.0.dev0"), "fixed")
    ordered = ["0.9.0", "0.9.0.post1", "0.10.0.dev0", "0.10.0rc1", "0.10.0"]
    assert [row.version for row in rows_of([HANG], core=versions)] == ordered


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
    assert ranges_of({version: told.split()[0] for version, told in versions.items()}) == [("1.0 - 1.2", "needed")]


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


def test_nightlies_that_differ_are_told_apart_by_verdict_not_by_number() -> None:
    shapes = ("affected", "fixed", "affected", "fixed", "fixed")
    nightlies = {f"0.16.0rc0.dev{100000 + number}": shape for number, shape in enumerate(shapes)}
    told = ranges_of({"0.15.0": "-", **nightlies, "0.16.0": "-"})
    assert told[1:3] == [
        ("0.16.0rc0.dev*", "fixed-upstream", "3 nightlies"),
        ("0.16.0rc0.dev*", "needed", "2 nightlies"),
    ]


def test_a_development_release_that_people_number_is_no_nightly() -> None:
    assert ranges_of({"0.7.1": "affected", "0.8.0.dev0": "fixed", "0.8.0": "fixed"}) == [
        ("0.7.1", "needed"),
        ("0.8.0.dev0 - 0.8.0", "fixed-upstream"),
    ]


def test_a_fix_has_no_column_where_it_has_no_target() -> None:
    rows = rows_of(BOTH, core={"1.0": "affected fixed"}, swift={"4.0": "affected"}, verl={"0.7": ""})
    told = [(panel.upstream, panel.fixes) for panel in version_ranges.panels(rows, BOTH)]
    assert told == [("core", ("hang", "stall")), ("swift", ("stall",))]


def test_series_stay_apart_in_columns() -> None:
    versions = {"0.9.0": "affected", "0.9.1": "affected", "0.10.0": "affected", "0.10.1": "fixed"}
    (panel,) = version_ranges.panels_by_series(rows_of([HANG], core=versions), [HANG])
    assert [item.label for item in panel.ranges] == ["0.9.0 - 0.9.1", "0.10.0", "0.10.1"]
    assert [version_ranges.series(version) for version in ("0.9.0", "0.10.1", "4", "0.16.0rc0.dev99000")] == [
        "0.9",
        "0.10",
        "4.0",
        "0.16",
    ]


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
def test_a_version_or_a_specifier_names_releases_pre_releases_too(wanted: str, chosen: list[str]) -> None:
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
        ("newest", "bad-version", "a version reads 0.17.1"),
        ("", "bad-version", "a version reads 0.17.1"),
    ],
)
def test_what_matches_nothing_is_refused_with_the_nearest(wanted: str, code: str, hint: str) -> None:
    core = {"1.0": "- fixed", "1.2": "- fixed", "1.4rc0.dev99000": "- fixed"}
    rows = rows_of(BOTH, core=core, swift={"4.0": "fixed"})
    with pytest.raises(UnhangError) as caught:
        matrix.matching(rows, wanted)
    assert caught.value.code == code
    assert (caught.value.hint or "").startswith(hint)


def test_the_table_is_readable_at_80_columns() -> None:
    fixes = [
        made_up.fix(name, "core") for name in ("empty-expert-hang", "expert-dp-warmup", "sft-packed-seq-broadcast")
    ]
    yanked = {f"0.17.{number}!": "affected affected fixed" for number in range(1, 20)}
    core = {"0.10.0rc0": "affected affected -", "0.16.1": "affected affected -", **yanked, "0.18.0": "- - -"}
    text = matrix_text.text_table(version_ranges.panels(rows_of(fixes, core=core), fixes), colour=False)
    lines = text.splitlines()
    assert lines[:4] == [
        "core: 22 releases",
        "                      empty-expert-  expert-dp-warmup  sft-packed-seq-",
        "                      hang                             broadcast",
        "  0.10.0rc0 - 0.16.1  needed         needed            not-affected",
    ]
    assert "    yanked: 0.17.1, 0.17.2," in text
    assert max(map(len, lines)) <= 80
    coloured = matrix_text.text_table(version_ranges.panels(rows_of(fixes, core=core), fixes), colour=True)
    assert "\x1b[33mneeded       \x1b[0m" in coloured


def test_markdown_escapes_what_would_be_emphasis() -> None:
    nightlies = {f"1.1rc0.dev{number}": "affected" for number in (99000, 99001)}
    panels = version_ranges.panels(rows_of([HANG], core={"1.0": "-", **nightlies, "1.1!": "fixed"}), [HANG])
    assert matrix_text.markdown_table(panels).splitlines() == [
        "### core",
        "",
        "| releases | `hang` |",
        "| --- | --- |",
        "| 1.0 | not-affected |",
        r"| 1.1rc0.dev\* (2 nightlies) | needed |",
        "| 1.1 (yanked: 1.1) | fixed-upstream |",
    ]


def test_the_section_of_explain_tells_when_the_fix_can_go() -> None:
    twofold = made_up.fix("twofold", "core", "swift", "verl")
    releases = made_up.releases(
        [twofold],
        core={"1.0": "affected", "1.1": "fixed"},
        swift={"4.0": "-", "4.1": "affected"},
        verl={"0.7": "-"},
    )
    table = made_up.table(twofold)
    rows = matrix.rows([twofold], releases, table)
    assert matrix_text.section(twofold, rows, matrix.droppable(twofold, releases, table)).splitlines() == [
        "## In the matrix",
        "core (2 releases):",
        "- 1.0  needed",
        "- 1.1  fixed-upstream",
        "From core 1.1 on it can be dropped: no release from there on needs it.",
        "swift (2 releases):",
        "- 4.0  not-affected",
        "- 4.1  needed",
        "It cannot be dropped yet: the newest release of swift in the matrix needs it.",
        "verl (1 release):",
        "- 0.7  not-affected",
        "No release of verl in the matrix needs it.",
    ]
    assert matrix_text.needed_by(rows, twofold) == "core 1.0; swift 4.1"


def test_json_has_a_row_for_every_release_and_every_fix() -> None:
    document = cli.unhang("matrix", "--output-format", "json").json
    assert list(document) == ["schema", "rows"]
    assert document["schema"] == 1
    assert all(list(row) == ["upstream", "version", "yanked", "fix", "verdict"] for row in document["rows"])
    told = {(row["upstream"], row["version"], row["fix"]) for row in document["rows"]}
    assert len(told) == len(document["rows"])
    assert told == {
        (upstream, version, fix)
        for upstream, versions in catalog.releases().items()
        for version in versions
        for fix in catalog.fixes()
    }
    assert {row["verdict"] for row in document["rows"]} <= {"needed", "fixed-upstream", "not-affected"}
    yanked = {(row["upstream"], row["version"]) for row in document["rows"] if row["yanked"]}
    assert {("megatron-core", "0.18.1"), ("megatron-core", "0.19.1")} <= yanked


def test_a_release_has_the_verdicts_that_the_pages_tell() -> None:
    def verdicts(upstream: str, version: str) -> dict[str, str]:
        ran = cli.unhang("matrix", "--upstream", upstream, "--version", version, "--output-format", "json")
        assert ran.code == 0
        assert {(row["upstream"], row["version"]) for row in ran.json["rows"]} == {(upstream, version)}
        return {row["fix"]: row["verdict"] for row in ran.json["rows"]}

    none = dict.fromkeys(catalog.fixes(), "not-affected")
    assert verdicts("verl", "0.7.0") == none
    assert verdicts("verl", "0.7.1") == {**none, "mtp-cp-deadlock": "needed"}
    assert verdicts("verl", "0.8.0") == {**none, "mtp-cp-deadlock": "fixed-upstream"}
    assert verdicts("megatron-lm", "0.17.1") == {**none, "sft-packed-seq-broadcast": "needed"}
    assert verdicts("megatron-core", "0.18.0") == {
        "empty-expert-hang": "needed",
        "expert-dp-warmup": "needed",
        "mtp-cp-deadlock": "not-affected",
        "sft-packed-seq-broadcast": "fixed-upstream",
    }


def test_the_command_narrows_by_fix_and_by_upstream() -> None:
    whole = cli.unhang("matrix")
    assert whole.code == 0
    upstreams = ["megatron-core", "megatron-lm", "ms-swift", "verl"]
    assert [line.split(":")[0] for line in whole.out.splitlines() if " releases" in line] == upstreams
    assert max(map(len, whole.out.splitlines())) <= 80
    one = cli.unhang("matrix", "--fix", "expert-dp-warmup", "--upstream", "ms-swift").out
    assert "expert-dp-warmup" in one
    assert "megatron-core" not in one
    rest = cli.unhang("matrix", "--skip", "expert-dp-warmup").out
    assert "expert-dp-warmup" not in rest
    assert "ms-swift" not in rest
    assert "empty-expert-" in rest


def test_pairs_without_a_target_are_left_out_for_people_alone() -> None:
    pair = "matrix", "--fix", "mtp-cp-deadlock", "--upstream", "ms-swift", "--output-format"
    assert cli.unhang(*pair, "text").out == f"{matrix_text.NO_TARGET}\n"
    assert cli.unhang(*pair, "markdown").out == f"{matrix_text.NO_TARGET}\n"
    assert {row["verdict"] for row in cli.unhang(*pair, "json").json["rows"]} == {"not-affected"}


def test_markdown_is_printed_on_stdout_alone() -> None:
    ran = cli.unhang("matrix", "--output-format", "markdown", "--upstream", "verl")
    assert ran.out.startswith("### verl\n\n| releases | `mtp-cp-deadlock` |\n")
    assert "| 0.7.1 | needed |" in ran.out
    assert ran.err == ""


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [({}, False), ({"FORCE_COLOR": "1"}, True), ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, False)],
)
def test_colour_is_asked_for_or_left_out(environment: dict[str, str], coloured: bool) -> None:
    assert ("\x1b[" in cli.unhang("matrix", env=environment).out) is coloured


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--version", "0.0.1.x"], "bad-version"),
        (["--version", "99"], "no-such-release"),
        (["--fix", "no-such-fix"], "unknown-fix"),
        (["--skip", "no-such-fix"], "unknown-fix"),
        (["--against-index", "--version", "0.17.1"], "bad-option"),
    ],
)
def test_errors_have_their_code_in_every_format(arguments: list[str], code: str) -> None:
    text = cli.unhang("matrix", *arguments)
    assert (text.code, text.out) == (2, "")
    assert text.err.startswith(f"error[{code}]: ")
    assert "hint: " in text.err
    assert cli.unhang("matrix", *arguments, "--output-format", "json").json["error"]["code"] == code
    assert cli.unhang("matrix", "--against-index", "--output-format", "svg").code == 2


def test_the_radar_is_asked_about_the_fixes_that_were_named(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(radar, "against_index", lambda *arguments: asked.append(arguments) or 1)
    arguments = ["matrix", "--against-index", "--skip", "expert-dp-warmup", "--skip", "mtp-cp-deadlock"]
    assert main([*arguments, "--upstream", "verl", "--output-format", "markdown"]) == 1
    ((fixes, upstreams, output_format),) = asked
    assert [fix.id for fix in fixes] == ["empty-expert-hang", "sft-packed-seq-broadcast"]
    assert (upstreams, output_format) == (["verl"], "markdown")


def test_nothing_slow_is_imported() -> None:
    program = (
        "import sys; from unhang.cli.main import main; main(['matrix', '--output-format', 'json']); "
        "sys.stderr.write(' '.join({'libcst', 'requests', 'rich', 'git', 'xml.etree.ElementTree'} & set(sys.modules)))"
    )
    ran = cli.python("-c", program)
    assert (ran.code, ran.err) == (0, "")
    assert json.loads(ran.out)["schema"] == 1


def test_explain_ends_with_what_the_matrix_says() -> None:
    told = cli.unhang("explain", "mtp-cp-deadlock").out
    page, _, section = told.partition("\n\n## In the matrix\n")
    assert page == catalog.page("mtp-cp-deadlock").rstrip()
    assert "0.7.1" in section
    assert "From verl 0.8.0.dev0 on it can be dropped" in section
    assert "It cannot be dropped yet: the newest release of ms-swift" in cli.unhang("explain", "expert-dp-warmup").out
