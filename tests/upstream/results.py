"""Write the tables of docs/maintainers/upstream.md from the reports of `nox -s upstream`.

PYTHONPATH=tests .nox/upstream/bin/python -m upstream.results docs/maintainers/upstream.md REPORT.json ...
"""

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from support import pages
from upstream import compare, report, selection, traced
from upstream.compare import Line
from upstream.report import Report

START, END = "<!-- results: written by tests/upstream/results.py -->", "<!-- results: end -->"
_SHOWN = (*compare.CATEGORIES[:7], compare.CUT_OFF)
_NAMED = (compare.REGRESSION, compare.DISPUTED, compare.FLAKY, compare.CHANGED, compare.APPEARED, compare.VANISHED)


def main(arguments: Sequence[str]) -> int:
    """Write the tables to the page ``arguments[0]``. Raises OSError, and KeyError for another schema."""
    page, *sources = map(Path, arguments)
    pages.fill(page, START, END, results(list(map(report.read, sources))))
    return 0


def results(reports: Sequence[Report]) -> str:
    """Return Markdown: a row for each run, the counts of each file in each run, and remarks on each run."""
    head = ("run", "ranks", *_SHOWN, "rewritten lines executed", "minutes")
    text = [pages.table(head, [_row(one) for one in reports])]
    for upstream in dict.fromkeys(one.upstream for one in reports):
        runs = [one for one in reports if one.upstream == upstream]
        files = dict.fromkeys(file.file for one in runs for file in one.files)
        rows = [(f"`{file}`", *(_cell(one, file) for one in runs)) for file in files]
        counts = "passed / failed / were skipped both ways"
        text.append(f"Tests of {upstream} that {counts}, by file (*: cut at the deadline):")
        text.append(pages.table(("file", *map(_name, runs)), rows))
        text.append("\n".join(map(_remarks, runs)))
    return "\n\n".join(text)


def _row(one: Report) -> tuple[str, ...]:
    covers = {fix: one.cover(fix) for fix in one.applied()}
    executed = ", ".join(f"`{fix}` {cover.executed()}/{len(cover.lines)}" for fix, cover in covers.items())
    minutes = sum(file.seconds for file in one.files) / 60
    counts = [str(one.counts()[category]) for category in _SHOWN]
    return (f"{one.upstream} {one.ref}", str(one.ranks), *counts, executed, f"{minutes:.0f}")


def _cell(one: Report, name: str) -> str:
    for file in one.files:
        if file.file == name:
            found = Counter(line.category for line in file.lines)
            return "/".join(str(found[category]) for category in _SHOWN[:3]) + "*" * file.was_cut
    return ""


def _remarks(one: Report) -> str:
    parts = [f"* **{_name(one)}**: {one.environment}, {one.deadline:.0f} s for each file."]
    parts += [f"Narrowed: {one.narrowed}."] if one.narrowed else []
    for fix in one.applied():
        cover = one.cover(fix)
        parts.append(f"{fix}: {cover.share()}, by {cover.tests.total()} tests that passed.")
        parts += [f"Not covered: {traced.places(cover.missed)}."] if cover.missed else []
    cut = [f"`{_short(line)}`" for file in one.files for line in file.lines if _was_cut(line)]
    parts += [f"Cut: {', '.join(cut)}."] if cut else []
    for category in _NAMED:
        parts += [f"{category.capitalize()}: `{_short(line)}`: {line.reason}." for line in one.lines(category)]
    newest = one._replace(causes=selection.upstream(one.upstream).get("causes", {}))
    causes = Counter(newest.why(line) or _exception(line) for line in one.lines(compare.FAILED_BOTH))
    failing = [f"{cause} ({count})" for cause, count in causes.most_common()]
    parts += [f"Failed both ways: {', '.join(failing)}."] if failing else []
    return " ".join(parts)


def _short(line: Line) -> str:
    return line.id.rpartition("/")[2]


def _was_cut(line: Line) -> bool:
    return any(one.outcome == compare.CUT for one in (*line.before, *line.after))


def _exception(line: Line) -> str:
    """Return the name of the exception alone: its message is upstream's text."""
    return f"`{compare.cause(line.after[-1].output).partition(':')[0][:40]}`"


def _name(one: Report) -> str:
    return f"{one.ref}, {one.ranks} rank{'s' * (one.ranks > 1)}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
