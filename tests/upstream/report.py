"""The result of a comparison as a table, as JSON and as JUnit. Pure, except ``write``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from upstream import compare
from upstream.compare import CATEGORIES, Line

_LISTED = CATEGORIES[3:]  # by name, below the table
_MANY = 30  # names of one category in the table; the JSON has all


class File(NamedTuple):
    """One test file, on both sides."""

    file: str
    covers: tuple[str, ...]
    """The fixes whose rewritten functions it calls."""
    reason: str
    lines: tuple[Line, ...]
    seconds: float
    """Of all runs on both sides."""
    was_cut: bool
    runs: int
    """On each side."""


class Report(NamedTuple):
    """One run of the session."""

    upstream: str
    ref: str
    origin: str
    version: str
    environment: str
    ranks: int
    deadline: float
    shims: tuple[str, ...]
    """What our plugin changes; empty where it is not used."""
    verdicts: Mapping[str, str]
    """The verdict of each fix on the second tree, after `unhang apply`."""
    absent: tuple[str, ...]
    """Patterns of the selection that match no file."""
    files: tuple[File, ...]
    notes: Mapping[str, str]
    """Why tests fail on both sides, by the start of their ids."""
    causes: Mapping[str, str]
    """Likewise, by a phrase of their error."""
    narrowed: str = ""
    """Which of the chosen files were run, if not all."""

    def lines(self, category: str) -> list[Line]:
        """Return the tests of one category in all files."""
        return [line for file in self.files for line in file.lines if line.category == category]

    def counts(self) -> dict[str, int]:
        """Return the number of tests of each category."""
        found = Counter(line.category for file in self.files for line in file.lines)
        return {category: found[category] for category in CATEGORIES}

    def wrong(self) -> str:
        """Return why the session fails; empty where it does not."""
        if regressions := self.counts()[compare.REGRESSION]:
            return f"{regressions} regression{'s' * (regressions > 1)}"
        if not self.counts()[compare.PASSED_BOTH] + self.counts()[compare.FIXED]:
            return "no test passed after the fixes, so nothing was compared"
        return ""


def table(report: Report) -> str:
    """Return the table, with its headings and remarks."""
    shown = [category for category in CATEGORIES if report.counts()[category] or category in CATEGORIES[:5]]
    rows = [["file", "enters", *shown, "s"]]
    rows += [[file.file, _enters(file), *_cells(file.lines, shown), f"{file.seconds:.0f}"] for file in report.files]
    total = [str(report.counts()[category]) for category in shown]
    rows.append(["all", "", *total, f"{sum(file.seconds for file in report.files):.0f}"])
    widths = [max(map(len, column)) for column in zip(*rows)]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    return "\n".join([*headings(report), "", *text, "", *remarks(report)])


def headings(report: Report) -> list[str]:
    """Return what was run, and how."""
    ranks = f"{report.ranks} rank{'s' * (report.ranks > 1)}, {report.deadline:.0f} s for each file"
    shims = f"injected by a plugin of ours, for a CPU: {'; '.join(report.shims)}" if report.shims else "no shims"
    return [
        f"{report.upstream} {report.ref} (version {report.version}), from {report.origin}",
        f"{report.environment}; {ranks}",
        shims,
        *(f"{fix}: {verdict}" for fix, verdict in report.verdicts.items()),
        *([f"NARROWED: {report.narrowed}"] if report.narrowed else []),
    ]


def remarks(report: Report) -> list[str]:
    """Return the lines below the table: names, reasons, outputs, and what is not covered."""
    text = []
    for fix in report.verdicts:
        if report.verdicts[fix] == "applied" and not any(entering(file)[fix] for file in report.files):
            text.append(f"NOT COVERED: no test that passed enters a function that {fix} rewrites")
    for file in report.files:
        missed = ", ".join(fix for fix in file.covers if not entering(file)[fix])
        text += [f"chosen for {missed}, which no test that passed enters: {file.file}"] if missed else []
    text += [f"not in this tree: {pattern}" for pattern in report.absent]
    text += [f"cut at the deadline: {file.file}" for file in report.files if file.was_cut]
    for category in _LISTED:
        found = report.lines(category)
        text += [f"{category}: {line.id}{_answers(line)}" for line in found[:_MANY]]
        text += [f"{category}: and {len(found) - _MANY} more, in the JSON"] if len(found) > _MANY else []
    different = [line for line in report.lines(compare.FAILED_BOTH) if compare.failed_differently(line)]
    text += [f"failed both, for another reason after: {line.id}{_answers(line)}" for line in different]
    for line in report.lines(compare.REGRESSION):
        for side, answers in ("before", line.before), ("after", line.after):
            text += [f"--- {line.id}, {side}: {one.outcome}\n{one.output}" for one in answers[-1:]]
    causes = Counter(_why(report, line) for line in report.lines(compare.FAILED_BOTH))
    text += [f"failed both, {count} times: {cause}" for cause, count in causes.most_common(_MANY)]
    return [*text, f"FAILED: {report.wrong()}" if report.wrong() else "no regression"]


def document(report: Report) -> dict[str, Any]:
    """Return the report as JSON, schema 1."""
    files = [{**file._asdict(), "lines": [_line(report, line) for line in file.lines]} for file in report.files]
    head = {"schema": 1, "wrong": report.wrong(), "counts": report.counts()}
    return {**head, **report._asdict(), "files": files}


def junit(report: Report) -> ElementTree.Element:
    """Return the report as JUnit: a regression is a failure; a test that was not compared is skipped."""
    root = ElementTree.Element("testsuites")
    for file in report.files:
        suite = ElementTree.SubElement(root, "testsuite", name=f"{report.upstream} {report.ref} {file.file}")
        for line in file.lines:
            seconds = str(sum(one.seconds for one in line.after[-1:]))
            case = ElementTree.SubElement(suite, "testcase", classname=file.file, name=line.id, time=seconds)
            if line.category == compare.REGRESSION:
                output = "\n".join(one.output for one in (*line.before[-1:], *line.after[-1:]))
                failure = ElementTree.SubElement(case, "failure", message=f"{line.category}{_answers(line)}")
                failure.text = "".join(letter for letter in output if letter.isprintable() or letter in "\n\t")
            elif line.category not in (compare.PASSED_BOTH, compare.FIXED):
                ElementTree.SubElement(case, "skipped", message=f"{line.category}{_answers(line)}")
        suite.set("tests", str(len(file.lines)))
        suite.set("failures", str(sum(line.category == compare.REGRESSION for line in file.lines)))
    return root


def write(report: Report, folder: Path) -> list[Path]:
    """Write table, JSON and JUnit into a folder, and return their paths. Raises OSError."""
    stem = f"{report.upstream}-{report.ref.replace('/', '_')}-{report.ranks}"
    paths = [folder / f"{stem}.{ending}" for ending in ("txt", "json", "xml")]
    paths[0].write_text(table(report) + "\n", encoding="utf-8")
    paths[1].write_text(json.dumps(document(report), indent=1), encoding="utf-8")
    ElementTree.ElementTree(junit(report)).write(paths[2], encoding="utf-8", xml_declaration=True)
    return paths


def _line(report: Report, line: Line) -> dict[str, Any]:
    sides = {side: [one._asdict() for one in answers] for side, answers in zip(("before", "after"), line[2:4])}
    return {"id": line.id, "category": line.category, "reason": line.reason or _note(report, line.id), **sides}


def _why(report: Report, line: Line) -> str:
    output = line.after[-1].output
    return _note(report, line.id) or compare.explained(output, report.causes) or compare.cause(output)


def _note(report: Report, id: str) -> str:
    return next((why for start, why in report.notes.items() if id.startswith(start)), "")


def entering(file: File) -> Counter[str]:
    """Return the number of tests that enter a function which a fix rewrites and pass after the fixes, by fix."""
    lines = [line for line in file.lines if line.category in (compare.PASSED_BOTH, compare.FIXED)]
    return Counter(fix for line in lines for fix in {fix for one in line.after for fix in one.entered})


def _enters(file: File) -> str:
    return ", ".join(f"{fix} {count}" for fix, count in sorted(entering(file).items())) or "no rewrite"


def _cells(lines: Iterable[Line], shown: Sequence[str]) -> list[str]:
    found = Counter(line.category for line in lines)
    return [str(found[category] or "-") for category in shown]


def _answers(line: Line) -> str:
    before, after = (", ".join(one.outcome for one in side) or "not there" for side in (line.before, line.after))
    return f" ({before} -> {after}){': ' + line.reason if line.reason else ''}"
