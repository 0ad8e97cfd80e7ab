"""Writes the tables of docs/prove.md and docs/proofs.md from a run of the proofs: `python page.py proofs.json docs`.

If the run was in parts (`nox -s proofs -- -k ms-swift`), name the files of all parts.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

START, END = "<!-- proofs: written by tests/proofs/page.py -->", "<!-- proofs: end -->"
_UNTOUCHED, _PATCHED = "untouched", "patched"


def main(arguments: Sequence[str]) -> int:
    """Write the tables of these runs between the markers of both pages; the last argument is their folder."""
    *sources, docs = map(Path, arguments)
    document = joined([json.loads(source.read_text(encoding="utf-8")) for source in sources])
    for page, text in (docs / "prove.md", summary(document)), (docs / "proofs.md", tables(document["proofs"])):
        before, _, rest = page.read_text(encoding="utf-8").partition(START)
        after = rest.partition(END)[2]
        page.write_text(f"{before}{START}\n{text}\n{END}{after}", encoding="utf-8")
    return 0


def joined(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the documents of several runs; the first of equal lines counts."""
    lines: dict[tuple[str, ...], dict[str, Any]] = {}
    left_out: dict[tuple[str, ...], dict[str, Any]] = {}
    for document in documents:
        for line in document["proofs"]:
            lines.setdefault((line["proof"], line["case"], *line["outcomes"]), line)
        for item in document["left-out"]:
            left_out.setdefault((item["proof"], item["name"]), item)
    return {"proofs": list(lines.values()), "left-out": list(left_out.values())}


def summary(document: Mapping[str, Any]) -> str:
    """Return a line for each proof, and the cases that a release does not have, as Markdown."""
    proofs: dict[str, list[dict[str, Any]]] = {}
    for line in document["proofs"]:
        proofs.setdefault(line["proof"], []).append(line)
    rows = [_summed(name, lines) for name, lines in proofs.items()]
    left_out = [(item["proof"], f"`{item['name']}`", item["why"]) for item in document["left-out"]]
    head = ("proof", "cases", "of them controls", "untouched", "patched", "half patches", "seconds", "wrong")
    parts = [table(head, rows)]
    if left_out:
        parts += ["Left out, because the release cannot have it:", table(("proof", "case or variant", "why"), left_out)]
    return "\n\n".join(parts)


def _summed(name: str, lines: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    pairs = [line["outcomes"] for line in lines if is_pair(line)]
    halves = {variant for line in lines if not is_pair(line) for variant in line["outcomes"]}
    ends = [
        ", ".join(f"{number} {status}" for status, number in Counter(pair[side]["status"] for pair in pairs).items())
        for side in (_UNTOUCHED, _PATCHED)
    ]
    seconds = sum(outcome["seconds"] for line in lines for outcome in line["outcomes"].values())
    controls = sum(line["control"] for line in lines if is_pair(line))
    wrong = sum(bool(line["wrong"]) for line in lines)
    return name, str(len(pairs)), str(controls), *ends, str(len(halves)), f"{seconds:.0f}", str(wrong)


def is_pair(line: Mapping[str, Any]) -> bool:
    """Return whether a line has both sides, and no variant."""
    return set(line["outcomes"]) == {_UNTOUCHED, _PATCHED}


def tables(lines: Sequence[dict[str, Any]]) -> str:
    """Return the proofs, and the variants that must fail, as Markdown."""
    pairs = [line for line in lines if is_pair(line)]
    others = [line for line in lines if not is_pair(line)]
    proofs = [
        (
            line["proof"],
            f"{line['topology']}: `{line['case']}`{' (control)' if line['control'] else ''}",
            *(shown(line["outcomes"][side]) for side in (_UNTOUCHED, _PATCHED)),
            line["wrong"],
        )
        for line in pairs
    ]
    variants = [
        (line["proof"], name, f"`{line['case']}`", shown(outcome), line["wrong"])
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
    """Return a table as Markdown, without empty columns."""
    cells = [head, *rows]
    kept = [index for index in range(len(head)) if any(row[index] for row in cells[1:])]
    kept_rows = [[row[index].replace("|", "\\|").replace("\n", " ") for index in kept] for row in cells]
    return "\n".join(f"| {' | '.join(row)} |" for row in [kept_rows[0], ["---"] * len(kept), *kept_rows[1:]])


def shown(outcome: dict[str, Any]) -> str:
    """Return how an outcome ended, how long it took, and its detail."""
    return f"{outcome['status']} ({outcome['seconds']:.1f} s): {outcome['detail']}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
