"""The result of a comparison as a table, and as JSON. Pure, except ``write`` and ``read``."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from upstream import compare, traced
from upstream.compare import CATEGORIES, Answer, Line

_LISTED = CATEGORIES[3:]  # by name, below the table
_MANY = 30  # names of one category in the table; the JSON has all


class File(NamedTuple):
    """One test file, on both sides."""

    file: str
    covers: tuple[str, ...]
    """The fixes whose rewritten functions it calls."""
    lines: tuple[Line, ...]
    seconds: float
    """Of all runs on both sides."""
    was_cut: bool
    runs: int
    """On each side."""


class Cover(NamedTuple):
    """Which of the lines that a fix rewrote are executed by tests that pass after the fixes."""

    lines: Sequence[str]
    missed: Sequence[str]
    tests: Counter[str]
    """How many tests of each file execute a line."""

    def executed(self) -> int:
        return len(self.lines) - len(self.missed)

    def share(self) -> str:
        """Return this in words."""
        return f"{self.executed()} of {len(self.lines)} rewritten lines executed"


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
    rewritten: Mapping[str, Sequence[str]]
    """The lines that each applied fix rewrote, as ``FILE:LINE``."""
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
        found = Counter(line.category for file in self.files for line in file.lines)
        return {category: found[category] for category in CATEGORIES}

    def wrong(self) -> str:
        """Return why the session fails; empty where it does not."""
        if regressions := self.counts()[compare.REGRESSION]:
            return f"{regressions} regression{'s' * (regressions > 1)}"
        if not self.counts()[compare.PASSED_BOTH] + self.counts()[compare.FIXED]:
            return "no test passed after the fixes, so nothing was compared"
        return ""

    def applied(self) -> list[str]:
        """Return the fixes that are in the second tree."""
        return [fix for fix, verdict in self.verdicts.items() if verdict == "applied"]

    def cover(self, fix: str, files: Iterable[File] | None = None) -> Cover:
        """Return which of the lines that a fix rewrote the tests of these files, or of all files, execute."""
        lines, tests = self.rewritten.get(fix, ()), Counter[str]()
        executed: set[str] = set()
        for file in self.files if files is None else files:
            for line in file.lines:
                found = {name for one in line.after for name in one.executed}.intersection(lines)
                if found and line.category in (compare.PASSED_BOTH, compare.FIXED):
                    executed |= found
                    tests[file.file] += 1
        return Cover(lines, [name for name in lines if name not in executed], tests)

    def verdict(self) -> str:
        """Return what the run shows. It claims nothing of a rewritten line that no test executed."""
        if self.wrong():
            return f"FAILED: {self.wrong()}"
        covers = {fix: self.cover(fix) for fix in self.applied()}
        none = ", ".join(fix for fix, cover in covers.items() if not cover.executed())
        parts = [f"{fix} ({cover.share()})" for fix, cover in covers.items() if cover.executed() and cover.missed]
        claims = [f"none executes the rewrite of {none}"] if none else []
        claims += [f"they execute a part of the rewrite of {', '.join(parts)}"] if parts else []
        return "; ".join(["no regression in the tests", *claims]) if claims else "no regression"

    def why(self, line: Line) -> str:
        """Return why a test fails on both sides, in our words if the data has any."""
        output = line.after[-1].output
        return self.note(line) or compare.explained(output, self.causes)

    def note(self, line: Line) -> str:
        """Return what the data says of a test."""
        return line.reason or next((why for start, why in self.notes.items() if line.id.startswith(start)), "")


def table(report: Report) -> str:
    """Return the table, with its headings and remarks."""
    shown = [category for category in CATEGORIES if report.counts()[category] or category in CATEGORIES[:5]]
    rows = [["file", "executes", *shown, "s"]]
    for file in report.files:
        rows.append([file.file, _executes(report, file), *_cells(file.lines, shown), f"{file.seconds:.0f}"])
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
    for fix in report.applied():
        cover = report.cover(fix)
        tests = ", ".join(f"{count} in {file}" for file, count in cover.tests.most_common())
        text.append(f"{fix}: {cover.share()}{f', by tests that passed: {tests}' if tests else ''}")
        text += [f"NOT COVERED: {fix}: {traced.places(cover.missed)}"] if cover.missed else []
    for file in report.files:
        missed = ", ".join(fix for fix in file.covers if not report.cover(fix, [file]).executed())
        text += [f"chosen for {missed}, whose rewrite no test that passed executes: {file.file}"] if missed else []
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
    failing = report.lines(compare.FAILED_BOTH)
    causes = Counter(report.why(line) or compare.cause(line.after[-1].output) for line in failing)
    text += [f"failed both, {count} times: {cause}" for cause, count in causes.most_common(_MANY)]
    return [*text, report.verdict()]


def write(report: Report, folder: Path) -> Path:
    """Write the report as JSON, schema 2, into a folder, and return its path. Raises OSError."""
    files = [{**file._asdict(), "lines": [_line(report, line) for line in file.lines]} for file in report.files]
    head = {"schema": 2, "wrong": report.wrong(), "counts": report.counts()}
    path = folder / f"{report.upstream}-{report.ref.replace('/', '_')}-{report.ranks}.json"
    path.write_text(json.dumps({**head, **report._asdict(), "files": files}, indent=1), encoding="utf-8")
    return path


def read(path: Path) -> Report:
    """Return the report that ``write`` wrote. Raises OSError, and KeyError for another schema."""
    data = json.loads(path.read_text(encoding="utf-8"))
    for file in data["files"]:
        for line in file["lines"]:
            line |= {side: tuple(Answer(**answer) for answer in line[side]) for side in ("before", "after")}
        file["lines"] = tuple(Line(**line) for line in file["lines"])
    data["files"] = tuple(File(**file) for file in data["files"])
    return Report(**{name: data[name] for name in Report._fields if name in data})


def _line(report: Report, line: Line) -> dict[str, Any]:
    sides = {side: [one._asdict() for one in answers] for side, answers in zip(("before", "after"), line[2:4])}
    return {**line._asdict(), "reason": report.note(line), **sides}


def _executes(report: Report, file: File) -> str:
    covers = {fix: report.cover(fix, [file]) for fix in report.applied()}
    shares = [f"{fix} {cover.executed()}/{len(cover.lines)}" for fix, cover in covers.items() if cover.executed()]
    return ", ".join(shares) or "no rewrite"


def _cells(lines: Iterable[Line], shown: Sequence[str]) -> list[str]:
    found = Counter(line.category for line in lines)
    return [str(found[category] or "-") for category in shown]


def _answers(line: Line) -> str:
    before, after = (", ".join(one.outcome for one in side) or "not there" for side in (line.before, line.after))
    return f" ({before} -> {after}){': ' + line.reason if line.reason else ''}"
