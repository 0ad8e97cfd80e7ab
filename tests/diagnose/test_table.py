"""The table of ranks and groups, folded."""

from __future__ import annotations

from unhang.diagnose import facts, report
from unhang.diagnose.evidence import Count, Group, Job, Rank
from unhang.diagnose.report import Row

TENSOR, DONE = Group("8", "TENSOR_MODEL_PARALLEL_GROUP"), Group("9", "EMBEDDING_GROUP")


def folded(counts: dict[int, Count], first: tuple[int, ...] = ()) -> report.Table:
    ranks = {number: Rank(number, counts={"8": one, "9": Count(4, -1, 4)}) for number, one in counts.items()}
    return report.folded(facts.of(Job(ranks, {"8": TENSOR, "9": DONE}, len(ranks), 1)), first)


def test_ranks_that_are_equally_far_are_one_row_and_a_group_that_is_done_is_no_column() -> None:
    found = folded({number: Count(9, -1, 7 + (number == 3)) for number in range(1024)}, first=(3,))
    assert found.groups == ("TENSOR_MODEL_PARALLEL_GROUP",)
    assert found.rows == (
        Row((3,), ("8/9",)),
        Row((*range(3), *range(4, 1024)), ("7/9",)),
    )


def test_of_many_kinds_of_rows_a_screen_shows_the_suspects_and_says_how_many_are_left_out() -> None:
    found = folded({number: Count(5000, -1, number) for number in range(100)}, first=(77,))
    assert (found.rows[0].ranks, len(found.rows), found.left_out) == ((77,), 20, 80)


def test_a_suspect_has_a_row_apart_from_those_that_are_as_far() -> None:
    found = folded({number: Count(9, -1, 7) for number in range(8)}, first=(3, 5))
    assert [row.ranks for row in found.rows] == [(3, 5), (0, 1, 2, 4, 6, 7)]


def test_where_all_is_done_there_is_no_table() -> None:
    assert folded({0: Count(3, -1, 3), 1: Count(3, -1, 3)}) == report.Table((), (), 0)
