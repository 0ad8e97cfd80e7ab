"""Write the tables of docs/maintainers/proofs.md from a run of `nox -s proofs`.

    PYTHONPATH=tests python -m proofs.page docs/maintainers/proofs.md .nox/proofs/tmp/proofs.json

If the run was made in parts (`nox -s proofs -- -k ms-swift`), name the JSON file of each part.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support import pages

START, END = "<!-- proofs: written by tests/proofs/page.py -->", "<!-- proofs: end -->"
_UNTOUCHED, _PATCHED = "untouched", "patched"


def main(arguments: Sequence[str]) -> int:
    """Write the tables of these runs between the markers of the page ``arguments[0]``."""
    page, *sources = map(Path, arguments)
    document = joined([json.loads(source.read_text(encoding="utf-8")) for source in sources])
    pages.fill(page, START, END, f"{summary(document)}\n\n{cases(document['proofs'])}")
    return 0


def joined(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the documents of several runs. Where two runs have the same line, the first one counts."""
    lines: dict[tuple[str, ...], dict[str, Any]] = {}
    left_out: dict[tuple[str, ...], dict[str, Any]] = {}
    for document in documents:
        for line in document["proofs"]:
            lines.setdefault((line["proof"], line["case"], *line["outcomes"]), line)
        for item in document["left-out"]:
            left_out.setdefault((item["proof"], item["name"]), item)
    return {"proofs": list(lines.values()), "left-out": list(left_out.values())}


def summary(document: Mapping[str, Any]) -> str:
    """Return Markdown with one row for each proof, and the cases that some releases cannot have."""
    proofs: dict[str, list[dict[str, Any]]] = {}
    for line in document["proofs"]:
        proofs.setdefault(line["proof"], []).append(line)
    head = ("proof", "cases", "of them controls", "untouched", "patched", "half patches", "seconds", "wrong")
    parts = [pages.table(head, [_summary_row(name, lines) for name, lines in proofs.items()])]
    if document["left-out"]:
        rows = [(item["proof"], f"`{item['name']}`", item["why"]) for item in document["left-out"]]
        parts += ["Left out, because the release cannot have the case:"]
        parts += [pages.table(("proof", "case or variant", "why"), rows)]
    return "\n\n".join(parts)


def cases(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return Markdown with one row for each case, and one for each variant that must fail."""
    pairs = [
        (
            line["proof"],
            f"{line['topology']}: `{line['case']}`{' (control)' if line['control'] else ''}",
            *(_outcome(line["outcomes"][side]) for side in (_UNTOUCHED, _PATCHED)),
            line["wrong"],
        )
        for line in lines
        if _is_pair(line)
    ]
    variants = [
        (line["proof"], name, f"`{line['case']}`", _outcome(outcome), line["wrong"])
        for line in lines
        if not _is_pair(line)
        for name, outcome in line["outcomes"].items()
    ]
    parts = ["Every case:", pages.table(("proof", "job", "untouched", "patched", "wrong"), pairs)]
    if variants:
        parts += ["Half patches, and pull requests as written. Each must fail:"]
        parts += [pages.table(("proof", "variant", "case", "outcome", "wrong"), variants)]
    return "\n\n".join(parts)


def _summary_row(name: str, lines: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    pairs = [line["outcomes"] for line in lines if _is_pair(line)]
    halves = {variant for line in lines if not _is_pair(line) for variant in line["outcomes"]}
    statuses = [
        ", ".join(f"{number} {status}" for status, number in Counter(pair[side]["status"] for pair in pairs).items())
        for side in (_UNTOUCHED, _PATCHED)
    ]
    seconds = sum(outcome["seconds"] for line in lines for outcome in line["outcomes"].values())
    controls = sum(line["control"] for line in lines if _is_pair(line))
    wrong = sum(bool(line["wrong"]) for line in lines)
    return name, str(len(pairs)), str(controls), *statuses, str(len(halves)), f"{seconds:.0f}", str(wrong)


def _is_pair(line: Mapping[str, Any]) -> bool:
    """Return whether a line has both sides, rather than a variant."""
    return set(line["outcomes"]) == {_UNTOUCHED, _PATCHED}


def _outcome(outcome: Mapping[str, Any]) -> str:
    return f"{outcome['status']} ({outcome['seconds']:.1f} s): {outcome['detail']}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
