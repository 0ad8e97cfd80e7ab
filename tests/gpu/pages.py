"""Writes what runs of `nox -s gpu` saw into docs/maintainers/gpu.md and the pages of the fixes.

PYTHONPATH=src:tests python -m gpu.pages .gpu/out/table.json

It takes several tables: each side of a setting is that of the first in which it has run.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from gpu import __main__ as session
from gpu import table
from support import pages
from unhang.prove.cases import BROKEN, PASSED, Outcome

CHECKOUT = Path(__file__).resolve().parents[2]
PAGE = CHECKOUT / "docs" / "maintainers" / "gpu.md"
START, END = "<!-- gpu: written by tests/gpu/pages.py -->", "<!-- gpu: end -->"
SEEN = re.compile(r"Seen on NCCL [\d.]+ \(`nox .*\n(?:.+\n)*")
"""The paragraph of a fix's page."""


def main(arguments: Sequence[str]) -> int:
    """Write the tables that the arguments name into the pages."""
    whole = joined([json.loads(Path(path).read_bytes()) for path in arguments])
    pages.fill(PAGE, START, END, "\n".join(table.lines(whole)))
    for fix, rows in groupby(whole["rows"], key=lambda row: str(row["fix"])):
        if text := sentence(whole["versions"], list(rows)):
            path = CHECKOUT / "patches" / fix / "page.md"
            path.write_text(with_sentence(path.read_text(encoding="utf-8"), text), encoding="utf-8")
    return 0


def joined(tables: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return one table of several, judged anew. Raises ValueError if they are of different versions."""
    versions = tables[0]["versions"]
    if any(one["versions"] != versions for one in tables):
        raise ValueError("the tables are of different versions")
    ran: dict[tuple[str, ...], Outcome] = {}
    for row in (row for one in reversed(tables) for row in one["rows"]):
        name = f"{row['fix']} {row['release']}".strip()
        ran |= {(name, row["setting"], it): Outcome(**row[it]) for it in table.SIDES if row[it]["status"] != BROKEN}
    every = [*session.parts()]
    found: session.Found = {
        (name := part.proof.name, side := part.side): session.Outcomes(
            {case.name: ran.get((name, case.name, side), Outcome(BROKEN, "")) for case in part.cases}, versions
        )
        for part in every
    }
    return {"versions": versions, "rows": [session.plain(row) for row in sorted(session.judged(every, found))]}


def sentence(versions: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> str:
    """Return what a fix's page says of its rows; empty if one is not as it should be, or none shows the defect."""
    struck = [row for row in rows if row["untouched"]["status"] != PASSED]
    if not struck or any(row["wrong"] for row in rows):
        return ""
    untouched = ", ".join(table.counted(struck, "untouched"))
    patched = " and ".join(table.counted(rows, "patched")) + ", as they must"
    if all(row["patched"]["status"] == PASSED for row in rows):
        patched = "all right"
    return (
        textwrap.fill(f"Seen on NCCL {versions['nccl']} (`nox -s gpu`): {untouched}; rewritten {patched}.", 80) + "\n"
    )


def with_sentence(page: str, text: str) -> str:
    """Return a fix's page with this paragraph at the end of its evidence, in place of an older one."""
    if SEEN.search(page):
        return SEEN.sub(lambda _: text, page, count=1)
    start = page.index("## Evidence\n")
    end = page.find("\n## ", start)
    end = len(page) if end == -1 else end
    return f"{page[:end].rstrip()}\n\n{text}{page[end:]}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
