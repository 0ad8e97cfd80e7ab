"""Write the tables of docs/maintainers/upstream.md from the reports of `nox -s upstream`.

PYTHONPATH=tests .nox/upstream/bin/python -m upstream.results docs/maintainers/upstream.md REPORT.json ...
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support import pages
from upstream import compare, selection

START, END = "<!-- results: written by tests/upstream/results.py -->", "<!-- results: end -->"
_SHOWN = (*compare.CATEGORIES[:7], compare.CUT_OFF)
_NAMED = (compare.REGRESSION, compare.DISPUTED, compare.FLAKY, compare.CHANGED, compare.APPEARED, compare.VANISHED)


def main(arguments: Sequence[str]) -> int:
    """Write the tables to the page ``arguments[0]``. Raises OSError, and KeyError for another schema."""
    page, *sources = map(Path, arguments)
    pages.fill(page, START, END, results([json.loads(source.read_text(encoding="utf-8")) for source in sources]))
    return 0


def results(reports: Sequence[Mapping[str, Any]]) -> str:
    """Return Markdown: a row for each run, the counts of each file in each run, and remarks on each run."""
    head = ("run", "ranks", *_SHOWN, "not covered", "minutes")
    text = [pages.table(head, [_row(report) for report in reports])]
    for upstream in dict.fromkeys(report["upstream"] for report in reports):
        runs = [report for report in reports if report["upstream"] == upstream]
        files = dict.fromkeys(file["file"] for report in runs for file in report["files"])
        rows = [(f"`{file}`", *(_cell(report, file) for report in runs)) for file in files]
        counts = "passed / failed / were skipped both ways"
        text.append(f"Tests of {upstream} that {counts}, by file (*: cut at the deadline):")
        text.append(pages.table(("file", *map(_name, runs)), rows))
        text.append("\n".join(map(_remarks, runs)))
    return "\n\n".join(text)


def _row(report: Mapping[str, Any]) -> tuple[str, ...]:
    missed = ", ".join(f"`{fix}`" for fix in _applied(report) if not _entering(report, fix)) or "-"
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


def _remarks(report: Mapping[str, Any]) -> str:
    lines = [line for file in report["files"] for line in file["lines"]]
    parts = [f"* **{_name(report)}**: {report['environment']}, {report['deadline']:.0f} s for each file."]
    parts += [f"Narrowed: {report['narrowed']}."] if report.get("narrowed") else []
    parts += [f"{fix}: entered by {_entering(report, fix)} passing tests." for fix in _applied(report)]
    cut = [f"`{_short(line)}`" for line in lines if _was_cut(line)]
    parts += [f"Cut: {', '.join(cut)}."] if cut else []
    for category in _NAMED:
        named = [line for line in lines if line["category"] == category]
        parts += [f"{category.capitalize()}: `{_short(line)}`: {line['reason']}." for line in named]
    known = selection.upstream(report["upstream"]).get("causes", {})
    causes = Counter(_why(line, known) for line in lines if line["category"] == compare.FAILED_BOTH)
    failing = [f"{cause} ({count})" for cause, count in causes.most_common()]
    parts += [f"Failed both ways: {', '.join(failing)}."] if failing else []
    return " ".join(parts)


def _applied(report: Mapping[str, Any]) -> list[str]:
    return [fix for fix, verdict in report["verdicts"].items() if verdict == "applied"]


def _short(line: Mapping[str, Any]) -> str:
    return str(line["id"].rpartition("/")[2])


def _was_cut(line: Mapping[str, Any]) -> bool:
    return any(one["outcome"] == compare.CUT for one in (*line["before"], *line["after"]))


def _why(line: Mapping[str, Any], known: Mapping[str, str]) -> str:
    """Return our own words, or the name of the exception alone: its message is upstream's text."""
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
