"""The matrix as a table, as Markdown, and as the section of `unhang explain`."""

from collections.abc import Mapping, Sequence

from support import made_up
from unhang.judge import matrix
from unhang.shapes.catalog import Fix
from unhang.tell import matrix_text, version_ranges

HANG = made_up.fix("hang", "core")


def rows_of(fixes: Sequence[Fix], **upstreams: Mapping[str, str]) -> list[matrix.Row]:
    return matrix.rows(fixes, made_up.releases(fixes, **upstreams), made_up.table(*fixes))


def test_the_table_fits_80_columns_or_the_terminals() -> None:
    fixes = [
        made_up.fix(name, "core") for name in ("empty-expert-hang", "expert-dp-warmup", "sft-packed-seq-broadcast")
    ]
    yanked = {f"0.17.{number}!": "affected affected fixed" for number in range(1, 20)}
    core = {"0.10.0rc0": "affected affected -", "0.16.1": "affected affected -", **yanked, "0.18.0": "- - -"}
    text = matrix_text.text_table(version_ranges.panels(rows_of(fixes, core=core), fixes), colour=False)
    lines = text.splitlines()
    assert lines[:6] == [
        "core: 22 releases",
        "                       empty-expert-  expert-dp-warmup  sft-packed-seq-",
        "                       hang                             broadcast",
        "                       cure           cure              cure",
        "                       hang           hang              hang",
        "  0.10.0rc0 to 0.16.1  needed         needed            not-affected",
    ]
    assert "    yanked: 0.17.1, 0.17.2," in text
    assert max(map(len, lines)) <= 80
    wide = matrix_text.text_table(version_ranges.panels(rows_of(fixes, core=core), fixes), colour=False, width=120)
    assert (len(wide.splitlines()), wide.split()) == (len(lines) - 1, text.split())
    assert 100 < max(map(len, wide.splitlines())) <= 120
    coloured = matrix_text.text_table(version_ranges.panels(rows_of(fixes, core=core), fixes), colour=True)
    assert "\x1b[33mneeded       \x1b[0m" in coloured


def test_markdown_has_a_table_for_each_upstream() -> None:
    nightlies = {f"1.1rc0.dev{number}": "affected" for number in (99000, 99001)}
    panels = version_ranges.panels(rows_of([HANG], core={"1.0": "-", **nightlies, "1.1!": "fixed"}), [HANG])
    assert matrix_text.markdown_table(panels).splitlines() == [
        "### core",
        "",
        "| releases | `hang` (cure; hang) |",
        "| --- | --- |",
        "| 1.0 | not-affected |",
        "| 2 nightlies | needed |",
        "| 1.1 (yanked: 1.1) | fixed-upstream |",
    ]


def test_the_section_of_explain_says_when_the_fix_can_be_dropped() -> None:
    twofold = made_up.fix("twofold", "core", "swift", "verl")
    releases = made_up.releases(
        [twofold], core={"1.0": "affected", "1.1": "fixed"}, swift={"4.0": "-", "4.1": "affected"}, verl={"0.7": "-"}
    )
    table = made_up.table(twofold)
    rows = matrix.rows([twofold], releases, table)
    assert matrix_text.section(twofold, rows, matrix.droppable(twofold, releases, table)).splitlines() == [
        "## In the matrix",
        "core (2 releases):",
        "- 1.0  needed",
        "- 1.1  fixed-upstream",
        "It can be dropped with core 1.1 and later: none of these releases needs it.",
        "swift (2 releases):",
        "- 4.0  not-affected",
        "- 4.1  needed",
        "It cannot be dropped yet: the newest release of swift in the matrix needs it.",
        "verl (1 release):",
        "- 0.7  not-affected",
        "No release of verl in the matrix needs it.",
        "Upstream's own fix: core 1.1.",
    ]
    assert matrix_text.needed_by(rows, twofold) == "core 1.0; swift 4.1"
