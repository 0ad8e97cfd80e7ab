"""Writes the tables of docs/prove.md from a run of the proofs: `python page.py proofs.json docs/prove.md`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

START, END = "<!-- proofs: written by tests/proofs/page.py -->", "<!-- proofs: end -->"
_UNTOUCHED, _PATCHED = "untouched", "patched"


def main(arguments: Sequence[str]) -> int:
    """Put the tables of ``arguments[0]`` between the markers of ``arguments[1]``."""
    source, page = map(Path, arguments)
    document = json.loads(source.read_text(encoding="utf-8"))
    before, _, rest = page.read_text(encoding="utf-8").partition(START)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{START}\n{tables(document['proofs'])}\n{END}{after}", encoding="utf-8")
    return 0


def tables(lines: Sequence[dict[str, Any]]) -> str:
    """The proofs, and what must fail and does, as Markdown."""
    pairs = [line for line in lines if set(line["outcomes"]) == {_UNTOUCHED, _PATCHED}]
    others = [line for line in lines if line not in pairs]
    proofs = [
        (
            line["proof"],
            f"{line['topology']}: `{line['case']}`{' (control)' if line['control'] else ''}",
            *(told(line["outcomes"][side]) for side in (_UNTOUCHED, _PATCHED)),
            line["wrong"],
        )
        for line in pairs
    ]
    variants = [
        (line["proof"], name, f"`{line['case']}`", told(outcome), line["wrong"])
        for line in others
        for name, outcome in line["outcomes"].items()
    ]
    return "\n\n".join(
        [
            table(("proof", "job", "untouched", "patched", "wrong"), proofs),
            "Half a patch, and pull requests as written, which must fail:",
            table(("proof", "variant", "case", "what it did", "wrong"), variants),
        ]
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table as Markdown; a column in which nothing stands is left out."""
    cells = [head, *rows]
    kept = [index for index in range(len(head)) if any(row[index] for row in cells[1:])]
    told_rows = [[row[index].replace("|", "\\|").replace("\n", " ") for index in kept] for row in cells]
    return "\n".join(f"| {' | '.join(row)} |" for row in [told_rows[0], ["---"] * len(kept), *told_rows[1:]])


def told(outcome: dict[str, Any]) -> str:
    """One outcome: how it ended, how long it took, and where."""
    return f"{outcome['status']} ({outcome['seconds']:.1f} s): {outcome['detail']}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
