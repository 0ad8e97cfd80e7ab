"""The table of a run of `nox -s gpu`, in Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from unhang.prove import host
from unhang.prove.cases import BROKEN, CRASHED, DIFFERS, HUNG, PASSED

SIDES = (host.UNTOUCHED, host.PATCHED)
_SAYS = {HUNG: "hung", CRASHED: "aborted", DIFFERS: "wrong", PASSED: "right", BROKEN: "not run"}


def lines(table: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the table, and of what is not as it should be."""
    versions = table["versions"]
    yield f"One {versions['gpu']}, torch {versions['torch']}, NCCL {versions['nccl']}, Python {versions['python']}:"
    yield ""
    yield "| fix | release | settings | untouched | patched | seconds |"
    yield "|---|---|---|---|---|---|"
    for (fix, release), group in groupby(table["rows"], key=lambda row: (row["fix"], row["release"])):
        rows = list(group)
        sides = [", ".join(counted(rows, side)) for side in SIDES]
        seconds = sum(row[side]["seconds"] for row in rows for side in SIDES)
        yield f"| {fix} | {release} | {len(rows)} | {sides[0]} | {sides[1]} | {seconds:.0f} |"
    if wrong := [row for row in table["rows"] if row["wrong"]]:
        yield from ("", "Not as they should be:", "")
        for (fix, release, ends), group in groupby(wrong, key=lambda row: (row["fix"], row["release"], _ends(row))):
            yield f"- {fix}, {release}: {ends}: {', '.join(row['setting'] for row in group)}"


def counted(rows: Iterable[Mapping[str, Any]], side: str) -> list[str]:
    """Return how many settings ended in each way on this side."""
    counts = Counter(row[side]["status"] for row in rows)
    return [
        f"{counts[status]} {_SAYS.get(status, status)}"
        for status in (*_SAYS, *sorted({*counts} - {*_SAYS}))
        if counts[status]
    ]


def _ends(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{side} {_SAYS[row[side]['status']]}" for side in SIDES)
