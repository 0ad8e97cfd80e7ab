"""The widths of letters: tests/browser holds them against the font, and against what Chromium draws."""

import pytest

from unhang.compat.sweep import letters


def test_a_text_is_as_wide_as_its_letters() -> None:
    assert letters.width("", 12) == 0
    assert letters.width("ii", 20) == 2 * letters.width("i", 20) == 4 * letters.width("i", 10)
    assert letters.width("i", 12) < letters.width("M", 12) < letters.width("M", 12, bold=True)
    assert letters.width("rank 0", 2048) == 842 + 1255 + 1298 + 1186 + 651 + 1303


@pytest.mark.parametrize("letter", ["\N{GREEK SMALL LETTER PI}", "\N{BOX DRAWINGS LIGHT HORIZONTAL}"])
def test_what_has_no_width_counts_as_the_widest(letter: str) -> None:
    assert letters.width(letter, 12) == letters.width("@", 12)
