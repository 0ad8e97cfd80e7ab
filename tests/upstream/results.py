"""Writes the tables of docs/upstream.md from reports: `python results.py docs/upstream.md REPORT.json ...`."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from upstream import compare, selection

START, END = "<!-- results: written by tests/upstream/results.py -->", "<!-- results: end -->"
_SHOWN = (
    *(compare.PASSED_BOTH, compare.FAILED_BOTH, compare.SKIPPED_BOTH, compare.FIXED, compare.REGRESSION),
    *(compare.DISPUTED, compare.FLAKY, compare.CUT_OFF),
)
_NAMED = (compare.REGRESSION, compare.DISPUTED, compare.FLAKY, compare.CHANGED, compare.APPEARED, compare.VANISHED)
_CONDITIONS = ("upstream", "ref", "origin", "version", "environment", "ranks", "deadline", "shims", "verdicts")
_CAUSES = 8  # of what fails both ways, for each run


def main(arguments: Sequence[str]) -> int:
    """Write the tables between the markers of the page ``arguments[0]``. Raises OSError; KeyError on another schema."""
    page, *sources = map(Path, arguments)
    found = [json.loads(source.read_text(encoding="utf-8")) for source in sources]
    before, _, rest = page.read_text(encoding="utf-8").partition(START)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{START}\n{results(found)}\n{END}{after}", encoding="utf-8")
    return 0


def results(reports: Sequence[Mapping[str, Any]]) -> str:
    """Return a row for each run, the counts of each file in each run of its upstream, and remarks on each run."""
    reports = joined(reports)
    head = ("run", "ranks", *_SHOWN, "not covered", "minutes")
    text = [table(head, (_row(report) for report in reports))]
    for upstream in dict.fromkeys(report["upstream"] for report in reports):
        runs = [report for report in reports if report["upstream"] == upstream]
        files = dict.fromkeys(file["file"] for report in runs for file in report["files"])
        rows = [(f"`{file}`", *(_cell(report, file) for report in runs)) for file in files]
        text.append(f"{upstream}, passed / failed / skipped both ways of each file (*: cut at the deadline):")
        text.append(table(("file", *map(_name, runs)), rows))
        text.append("\n".join(line for report in runs for line in _remarks(report)))
    return "\n\n".join(text)


def joined(reports: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a report for each run, merging those of other files under the same conditions (``--only``)."""
    found: list[dict[str, Any]] = []
    for report in reports:
        files = {file["file"] for file in report["files"]}
        for whole in found:
            alike = all(whole[name] == report[name] for name in _CONDITIONS)
            if alike and files.isdisjoint(file["file"] for file in whole["files"]):
                whole["files"] = sorted((*whole["files"], *report["files"]), key=lambda file: str(file["file"]))
                whole["counts"] = Counter(whole["counts"]) + Counter(report["counts"])
                whole["parts"] = whole.get("parts", 1) + 1
                whole["narrowed"] = f"{whole['parts']} runs by --only, of {len(whole['files'])} files together"
                break
        else:
            found.append({**report})
    return found


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as Markdown."""
    cells = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(str(cell).replace('|', '/') for cell in row)} |" for row in cells)


def _row(report: Mapping[str, Any]) -> tuple[str, ...]:
    applied = [fix for fix, verdict in report["verdicts"].items() if verdict == "applied"]
    missed = ", ".join(f"`{fix}`" for fix in applied if not _entering(report, fix)) or "-"
    minutes = sum(file["seconds"] for file in report["files"]) / 60
    counts = [str(report["counts"][category]) for category in _SHOWN]
    return (f"{report['upstream']} {report['ref']}", str(report["ranks"]), *counts, missed, f"{minutes:.0f}")


def _cell(report: Mapping[str, Any], name: str) -> str:
    for file in report["files"]:
        if file["file"] == name:
            found = Counter(line["category"] for line in file["lines"])
            numbers = (found[category] for category in (compare.PASSED_BOTH, compare.FAILED_BOTH, compare.SKIPPED_BOTH))
            return f"{'/'.join(map(str, numbers))}{'*' * file['was_cut']}"
    return ""


def _remarks(report: Mapping[str, Any]) -> list[str]:
    lines = [line for file in report["files"] for line in file["lines"]]
    applied = [fix for fix, verdict in report["verdicts"].items() if verdict == "applied"]
    parts = [f"* **{_name(report)}**: {report['environment']}, {report['deadline']:.0f} s for each file."]
    parts += [f"Narrowed: {report['narrowed']}."] if report.get("narrowed") else []
    parts += [f"{fix}: entered by {_entering(report, fix)} tests that pass." for fix in applied]
    cut = [f"`{line['id'].rpartition('/')[2]}`" for line in lines if _was_cut(line)]
    parts += [f"Cut: {', '.join(cut)}."] if cut else []
    for category in _NAMED:
        for line in lines:
            if line["category"] == category:
                parts.append(f"{category.capitalize()}: `{line['id'].rpartition('/')[2]}`: {line['reason']}.")
    known = selection.upstream(report["upstream"]).get("causes", {})
    causes = Counter(_why(line, known) for line in lines if line["category"] == compare.FAILED_BOTH)
    failing = [f"{count} {cause}" for cause, count in causes.most_common(_CAUSES)]
    rest = sum(causes.values()) - sum(count for _, count in causes.most_common(_CAUSES))
    parts += [f"Failed both ways: {', '.join(failing)}{f', {rest} others' * bool(rest)}."] if failing else []
    return [" ".join(parts)]


def _was_cut(line: Mapping[str, Any]) -> bool:
    return any(one["outcome"] == compare.CUT for one in (*line["before"], *line["after"]))


def _why(line: Mapping[str, Any], known: Mapping[str, str]) -> str:
    """Return why a test failed: our explanation, else the exception's name without its message (upstream's text)."""
    output = line["after"][-1]["output"]
    return line["reason"] or compare.explained(output, known) or f"`{compare.cause(output).partition(':')[0][:40]}`"


def _entering(report: Mapping[str, Any], fix: str) -> int:
    lines = [line for file in report["files"] for line in file["lines"]]
    passing = [line for line in lines if line["category"] in (compare.PASSED_BOTH, compare.FIXED)]
    return sum(any(fix in one["entered"] for one in line["after"]) for line in passing)


def _name(report: Mapping[str, Any]) -> str:
    return f"{report['ref']}, {report['ranks']} rank{'s' * (report['ranks'] > 1)}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
