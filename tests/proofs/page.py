"""Write docs/maintainers/proofs.md, and a page for each fix below it, from a run of `nox -s proofs`.

    PYTHONPATH=tests python -m proofs.page docs/maintainers/proofs.md .nox/proofs/tmp/proofs.json

If the run was made in parts (`nox -s proofs -- -k ms-swift`), name the JSON file of each part. The rows and pages of
fixes that were not played stay.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from support import pages
from unhang.compat.sweep import drawings
from unhang.prove.cases import CRASHED, DIFFERS, HUNG, MISMATCH
from unhang.shapes import catalog
from unhang.tell import drawing

START, END = "<!-- proofs: written by tests/proofs/page.py -->", "<!-- proofs: end -->"
_UNTOUCHED, _PATCHED = "untouched", "patched"
_ENDS = {HUNG: "hang", CRASHED: "abort", DIFFERS: "go wrong", MISMATCH: "issue calls that do not match"}
Line = Mapping[str, Any]
"""A case on both sides, or on a variant of the rewrite."""


def main(arguments: Sequence[str]) -> int:
    """Write the table of these runs between the markers of the page ``arguments[0]``, and the fixes' pages below it."""
    page, *sources = map(Path, arguments)
    document = joined([json.loads(source.read_text(encoding="utf-8")) for source in sources])
    folder = page.with_suffix("")
    folder.mkdir(exist_ok=True)
    by_fix = _by_fix(document["proofs"])
    for fix, lines in by_fix.items():
        left_out = [item for item in document["left-out"] if item["proof"].partition(" ")[0] == fix]
        (folder / f"{fix}.md").write_text(of_fix(fix, lines, left_out), encoding="utf-8")
    pages.fill(page, START, END, with_others(overview(by_fix, folder.name), page.read_text(encoding="utf-8")))
    return 0


def with_others(table: str, page: str) -> str:
    """Return a table with the rows that the page has of fixes that this run did not play, in the order of their ids."""
    head, line, *rows = table.split("\n")
    there = [row for row in page.partition(START)[2].split("\n") if row.startswith("| [`")]
    known = {_fix_of(row): row for row in there if _fix_of(row) in catalog.fixes()}
    known |= {_fix_of(row): row for row in rows}
    return "\n".join([head, line, *(known[fix] for fix in sorted(known))])


def _fix_of(row: str) -> str:
    return row.removeprefix("| [`").partition("`")[0]


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


def overview(by_fix: Mapping[str, Sequence[Line]], folder: str) -> str:
    """Return a table with one row for each fix, which leads to its page in a folder."""
    head = ("proof", "releases", "cases", "of them controls", "untouched", "patched", "variants that fail", "wrong")
    rows = []
    for fix, lines in by_fix.items():
        pairs, variants = _parts(lines)
        numbers = len({line["proof"] for line in lines}), len(pairs), sum(line["control"] for line in pairs)
        ends = (_counted(pairs, side) for side in (_UNTOUCHED, _PATCHED))
        wrong = sum(bool(line["wrong"]) for line in lines)
        rows.append(
            (f"[`{fix}`]({folder}/{fix}.md)", *map(str, numbers), *ends, str(len(_names(variants))), str(wrong))
        )
    return pages.table(head, rows)


def of_fix(fix: str, lines: Sequence[Line], left_out: Sequence[Mapping[str, str]]) -> str:
    """Return the page of a fix: what its proof shows, in a minute; then every case."""
    proofs = {name: [line for line in lines if line["proof"] == name] for name in dict.fromkeys(_of(lines, "proof"))}
    pairs, variants = _parts(lines)
    found = catalog.fixes().get(fix)
    shown = drawing.of_fix(found) if found else None
    parts = [f"# The proof of {fix}", "<!-- written by tests/proofs/page.py; do not edit -->"]
    parts += ["\n".join(_summary(proofs, pairs, variants))]
    if shown:
        words = " ".join(panel.words for panel in shown.panels)
        parts += [f"What one case shows: {words} {shown.note}".rstrip()]
        parts += [f"![{drawings.short(shown)}](../../drawings/{fix}.svg)"]
    columns = "release,cases,of them controls,untouched,patched,variants,seconds,wrong".split(",")
    parts += ["## Releases", pages.table(columns, [_release(name, same) for name, same in proofs.items()])]
    if left_out:
        rows = [(_release_of(item["proof"]), f"`{item['name']}`", item["why"]) for item in left_out]
        parts += ["Left out, because the release cannot have the case:"]
        parts += [pages.table(("release", "case or variant", "why"), rows)]
    parts += ["## Every case", pages.table(("release", "job", "untouched", "patched", "wrong"), map(_pair, pairs))]
    if variants:
        parts += ["## Variants", "Half patches, and pull requests as written. Each must fail:"]
        columns = ["release", "variant", "case", "outcome", "wrong"]
        parts += [pages.table(columns, [row for line in variants for row in _variant(line)])]
    return "\n\n".join(parts) + "\n"


def _summary(proofs: Mapping[str, object], pairs: Sequence[Line], variants: Sequence[Line]) -> Iterator[str]:
    """Yield what a person wants to know first."""
    releases = list(map(_release_of, proofs))
    some = releases if len(releases) < 4 else [releases[0], f"{len(releases) - 2} more", releases[-1]]
    defects = [line for line in pairs if not line["control"]]
    ends = Counter(line["outcomes"][_UNTOUCHED]["status"] for line in defects)
    yield f"- **Run on** {', '.join(some[:-1])}{' and ' if len(some) > 1 else ''}{some[-1]}."
    counted = ", ".join(f"{number} {_ENDS.get(end, end)}" for end, number in ends.items())
    controls = len(pairs) - len(defects)
    yield f"- **Untouched**, of {len(pairs)} cases: {counted}. Controls, which lack the defect and pass: {controls}."
    good = sum(line["outcomes"][_PATCHED]["status"] == "passed" for line in pairs)
    yield f"- **Rewritten**, {good} of {len(pairs)} pass."
    if variants:
        names = "; ".join(_names(variants))
        yield f"- **With a part of the rewrite left out or changed**, the proof fails, as it must: {names}."
    if wrong := [line for line in (*pairs, *variants) if line["wrong"]]:
        yield f"- **Wrong**: {len(wrong)} lines below."


def _by_fix(lines: Sequence[Line]) -> dict[str, list[Line]]:
    found: dict[str, list[Line]] = {}
    for line in lines:
        found.setdefault(line["proof"].partition(" ")[0], []).append(line)
    return found


def _parts(lines: Sequence[Line]) -> tuple[list[Line], list[Line]]:
    """Return the cases on both sides, and the variants."""
    return [line for line in lines if _is_pair(line)], [line for line in lines if not _is_pair(line)]


def _release(name: str, lines: Sequence[Line]) -> tuple[str, ...]:
    pairs, variants = _parts(lines)
    ends = (_counted(pairs, side) for side in (_UNTOUCHED, _PATCHED))
    seconds = sum(outcome["seconds"] for line in lines for outcome in line["outcomes"].values())
    numbers = str(len(pairs)), str(sum(line["control"] for line in pairs))
    wrong = str(sum(bool(line["wrong"]) for line in lines))
    return _release_of(name), *numbers, *ends, str(len(_names(variants))), f"{seconds:.0f}", wrong


def _counted(pairs: Sequence[Line], side: str) -> str:
    ends = Counter(line["outcomes"][side]["status"] for line in pairs)
    return ", ".join(f"{number} {end}" for end, number in ends.items())


def _pair(line: Line) -> tuple[str, ...]:
    job = f"{line['topology']}: `{line['case']}`{' (control)' if line['control'] else ''}"
    sides = (_outcome(line["outcomes"][side]) for side in (_UNTOUCHED, _PATCHED))
    return _release_of(line["proof"]), job, *sides, line["wrong"]


def _variant(line: Line) -> Iterator[tuple[str, ...]]:
    for name, outcome in line["outcomes"].items():
        yield _release_of(line["proof"]), name, f"`{line['case']}`", _outcome(outcome), line["wrong"]


def _names(variants: Sequence[Line]) -> list[str]:
    return list(dict.fromkeys(name for line in variants for name in line["outcomes"]))


def _release_of(proof: str) -> str:
    """Return the name of a proof without its fix."""
    return proof.partition(" ")[2]


def _of(lines: Sequence[Line], key: str) -> list[str]:
    return [line[key] for line in lines]


def _is_pair(line: Line) -> bool:
    """Return whether a line has both sides, rather than a variant."""
    return set(line["outcomes"]) == {_UNTOUCHED, _PATCHED}


def _outcome(outcome: Mapping[str, Any]) -> str:
    return f"{outcome['status']} ({outcome['seconds']:.1f} s): {outcome['detail']}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
