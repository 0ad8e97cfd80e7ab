"""How ranks are shown."""

from __future__ import annotations

from unhang.prove.ranks.rank_numbers import ranges


def test_ranks_are_shown_as_ranges() -> None:
    assert ranges([3, 1, 2, 0]) == "0-3"
    assert ranges([0, 4, 8, 12]) == "0-12 by 4"
    assert ranges([0, 1, 5]) == "0, 1, 5"
    assert ranges([]) == ""
