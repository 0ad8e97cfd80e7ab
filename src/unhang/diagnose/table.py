"""How far each rank is in each group, folded to what differs: 1,024 ranks are a few rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import NamedTuple

from unhang.diagnose import where
from unhang.diagnose.evidence import Count
from unhang.diagnose.facts import Facts

_ROWS, _COLUMNS = 20, 6


class Row(NamedTuple):
    """Ranks that are equally far; all of them are suspects, or none."""

    ranks: tuple[int, ...]
    cells: tuple[str, ...]
    """One for each group of the table."""


class Table(NamedTuple):
    """Ranks and groups."""

    groups: tuple[str, ...]
    """Descriptions; of several groups with one, each rank has its own."""
    rows: tuple[Row, ...]
    left_out: int
    """How many ranks are in no row: a screen is small."""


def of(facts: Facts, first: Collection[int]) -> Table:
    """Return the table of a job. The ranks in ``first`` have rows of their own, which come first; then the longest."""
    counts: dict[str, dict[int, list[Count]]] = defaultdict(lambda: defaultdict(list))
    for number, rank in facts.job.ranks.items():
        for name, count in rank.counts.items():
            counts[where.label(facts.job.group(name))][number].append(count)
    cells = {
        label: {number: ", ".join(map(_cell, several)) for number, several in ranks.items()}
        for label, ranks in counts.items()
        if any(count.completed != count.enqueued for several in ranks.values() for count in several)
    }
    waiting = {label: sum("/" in cell for cell in ranks.values()) for label, ranks in cells.items()}
    groups = tuple(sorted(waiting, key=lambda label: (-waiting[label], label))[:_COLUMNS])
    rows: dict[tuple[bool, tuple[str, ...]], list[int]] = defaultdict(list)
    for number in facts.job.ranks if groups else ():
        rows[number not in first, tuple(cells[group].get(number, "") for group in groups)].append(number)
    ordered = sorted(rows.items(), key=lambda row: (row[0][0], -len(row[1]), row[1]))
    shown = tuple(Row(tuple(ranks), key) for (_, key), ranks in ordered[:_ROWS])
    return Table(groups, shown, sum(len(ranks) for _, ranks in ordered[_ROWS:]))


def _cell(count: Count) -> str:
    """Return a count as people read it: what is completed, and of how many."""
    completed = "?" if count.completed < 0 < count.enqueued and not count.device else str(max(count.completed, 0))
    return completed if count.completed == count.enqueued else f"{completed}/{count.enqueued}"
