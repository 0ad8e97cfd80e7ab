"""Writes what a run of `nox -s gpu` saw into docs/maintainers/gpu.md and the pages of the fixes.

PYTHONPATH=src:tests python -m gpu.pages .gpu/out/table.json
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from support import pages
from unhang.prove.cases import CRASHED, DIFFERS, HUNG, PASSED

CHECKOUT = Path(__file__).resolve().parents[2]
PAGE = CHECKOUT / "docs" / "maintainers" / "gpu.md"
START, END = "<!-- gpu: written by tests/gpu/pages.py -->", "<!-- gpu: end -->"
SEEN = re.compile(r"On one GPU, NCCL .*\n(?:.+\n)*")
"""The paragraph of a fix's page."""
_SAYS = {HUNG: "hung", CRASHED: "aborted", DIFFERS: "wrong", PASSED: "right"}


def main(arguments: Sequence[str]) -> int:
    """Write the table that the argument names into the pages."""
    table = json.loads(Path(arguments[0]).read_bytes())
    pages.fill(PAGE, START, END, "\n".join(lines(table)))
    for fix, rows in groupby(table["rows"], key=lambda row: str(row["fix"])):
        if text := sentence(table["versions"], list(rows)):
            path = CHECKOUT / "patches" / fix / "page.md"
            path.write_text(with_sentence(path.read_text(encoding="utf-8"), text), encoding="utf-8")
    return 0


def lines(table: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the table, for the page."""
    versions = table["versions"]
    yield f"One {versions['gpu']}, torch {versions['torch']}, NCCL {versions['nccl']}, Python {versions['python']}:"
    yield ""
    yield "| fix | release | settings | untouched | patched | seconds |"
    yield "|---|---|---|---|---|---|"
    for (fix, release), group in groupby(table["rows"], key=lambda row: (row["fix"], row["release"])):
        rows = list(group)
        sides = [", ".join(_counted(rows, side)) for side in ("untouched", "patched")]
        seconds = sum(row[side]["seconds"] for row in rows for side in ("untouched", "patched"))
        yield f"| {fix} | {release} | {len(rows)} | {sides[0]} | {sides[1]} | {seconds:.0f} |"


def sentence(versions: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> str:
    """Return what a fix's page says of its rows; empty if one is not as it should be, or none shows the defect."""
    struck = [row for row in rows if row["untouched"]["status"] != PASSED]
    if not struck or any(row["wrong"] for row in rows):
        return ""
    nccl, torch = versions["nccl"], versions["torch"].partition("+")[0]
    untouched = " and ".join(_counted(struck, "untouched"))
    return f"On one GPU, NCCL {nccl}, torch {torch} (`nox -s gpu`):\nuntouched {untouched}; rewritten all right.\n"


def with_sentence(page: str, text: str) -> str:
    """Return a fix's page with this paragraph at the end of its evidence, in place of an older one."""
    if SEEN.search(page):
        return SEEN.sub(lambda _: text, page, count=1)
    start = page.index("## Evidence\n")
    end = page.find("\n## ", start)
    end = len(page) if end == -1 else end
    return f"{page[:end].rstrip()}\n\n{text}{page[end:]}"


def _counted(rows: Iterable[Mapping[str, Any]], side: str) -> list[str]:
    counts = Counter(row[side]["status"] for row in rows)
    return [
        f"{counts[status]} {_SAYS.get(status, status)}"
        for status in (*_SAYS, *sorted({*counts} - {*_SAYS}))
        if counts[status]
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
