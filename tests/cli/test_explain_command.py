"""`unhang explain FIX`: its page, and what the matrix says about it."""

from __future__ import annotations

import pytest

from support import cli, ptys
from unhang.shapes import catalog


@pytest.mark.parametrize("fix", cli.FOUR)
def test_a_page_has_its_sections_and_fits_80_columns(fix: str) -> None:
    page = cli.unhang("explain", fix)
    assert page.code == 0
    for word in ("Symptom", "Cause", "Evidence", "Cost", "github.com"):
        assert word in page.out
    assert max(map(len, page.out.splitlines())) <= 80


@pytest.mark.parametrize(("columns", "above"), [(50, 40), (130, 120)])
def test_a_terminal_gets_the_page_at_its_width(columns: int, above: int) -> None:
    piped = cli.unhang("explain", "expert-dp-warmup")
    code, shown = ptys.unhang("explain", "expert-dp-warmup", columns=columns)
    assert (code, shown.split()) == (piped.code, piped.out.split())
    assert above < max(map(len, shown.splitlines())) <= columns


def test_the_last_section_is_about_the_matrix() -> None:
    text = cli.unhang("explain", "mtp-cp-deadlock").out
    page, _, section = text.partition("\n\n## In the matrix\n")
    assert page == catalog.page("mtp-cp-deadlock").rstrip()
    assert "0.7.1" in section
    assert "It can be dropped with verl 0.8.0.dev0 and later" in section
    assert "It cannot be dropped yet: the newest release of ms-swift" in cli.unhang("explain", "expert-dp-warmup").out
