"""The compat matrix as text: a table for people, Markdown, JSON, and the section of ``explain``. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest

from unhang import gate
from unhang.judge.decide import FIXED_UPSTREAM, NEEDED
from unhang.judge.matrix import Releases, Row, droppable, is_nightly
from unhang.shapes import catalog
from unhang.shapes.catalog import GRADES, UNPROVED, Fix, ShapeTable
from unhang.tell.report import NUMBERS
from unhang.tell.rows import COLOURS
from unhang.tell.version_ranges import Panel, Range, named, narrowed, panels

WIDTH = 80
"""Where no terminal has one."""
_HEADING = 16
NO_TARGET = "none of these fixes has a target in these upstreams"
_FOOT = "Verdicts are for untouched copies; `unhang check` judges an environment."


def json_rows(rows: Iterable[Row]) -> str:
    """Return the JSON document of ``unhang matrix``; docs/json.md documents its stable form."""
    return gate.document({"schema": 1, "rows": [row._asdict() for row in rows]})


def text_table(folded: Sequence[Panel], *, colour: bool, width: int = WIDTH) -> str:
    """Return the table for people: a block for each upstream, a line for each range, a column for each fix.

    Columns that do not fit the width are in another block, whose ranges are about these fixes alone.
    """
    if not folded:
        return NO_TARGET
    lines: list[str] = []
    for panel in folded:
        lines.append(f"{panel.upstream}: {panel.summary}")
        for part in _fitting(panel, width):
            lines += [*_block(part, colour, width), ""]
    return "\n".join([*lines, *textwrap.wrap(_FOOT, width)])


def markdown_table(folded: Sequence[Panel]) -> str:
    """Return the matrix as Markdown: a heading and a table for each upstream."""
    if not folded:
        return NO_TARGET
    return "\n\n".join(_markdown(panel) for panel in folded)


def effect(fix: Fix) -> str:
    """Return the section of ``unhang explain`` about what the defect, and its cure, do to a job."""
    if fix.grade == UNPROVED:
        return (
            f"## What it does to a job\n{fix.effect.capitalize()}. It is unproved: {GRADES.partition('unproved: ')[2]}."
        )
    numbers = f"changes numbers: {NUMBERS}" if fix.changes_numbers else "changes no numbers of a job that runs today"
    return f"## What it does to a job\nThe defect: {', '.join(fix.kinds)}. The rewrite {numbers}."


def section(fix: Fix, rows: Sequence[Row], droppable: Mapping[str, str | None], width: int = WIDTH) -> str:
    """Return the section of ``unhang explain`` about the matrix: ranges with verdicts, and when to drop the fix.

    ``rows`` are those of this fix; ``droppable`` is the result of ``matrix.droppable`` for it.
    """
    lines = ["## In the matrix"]
    for panel in panels(rows, [fix]):
        lines.append(f"{panel.upstream} ({panel.summary}):")
        longest = max(len(item.label) for item in panel.ranges)
        for item in panel.ranges:
            lines += [f"- {item.label:<{longest}}  {item.verdicts[0]}", *_notes(item.notes, "  ", width)]
        lines += textwrap.wrap(retirement(panel.upstream, droppable), width)
    return "\n".join([*lines, *textwrap.wrap(f"Upstream's own fix: {upstreams_own(fix, rows)}.", width)])


def upstreams_own(fix: Fix, rows: Iterable[Row]) -> str:
    """Return since when upstream has its own fix: the first release of each upstream, else the first commit."""
    own = [row for row in rows if row.fix == fix.id and row.verdict == FIXED_UPSTREAM and not is_nightly(row.version)]
    if own:
        first = {row.upstream: row.version for row in reversed(own)}
        return ", ".join(f"{upstream} {first[upstream]}" for upstream in reversed(first))
    shapes = catalog.facts(fix.id).get("shapes", {}).values()
    commits = sorted(row["first"] for row in shapes if row["state"] == "fixed" and "first" in row)
    return f"the commit of {commits[0]}; no release in the matrix is {FIXED_UPSTREAM}" if commits else "none on record"


def fixed_in(droppable: Mapping[str, str | None]) -> str:
    """Return in words the first release of each upstream with which a fix can be dropped, by ``matrix.droppable``."""
    upstreams = [f"{upstream} {version}" for upstream, version in droppable.items() if version]
    lacking = [upstream for upstream, version in droppable.items() if not version]
    none = [f"no release of {' and '.join(lacking)} yet"] * bool(lacking)
    return f"fixed in {', '.join([*upstreams, *none])}" if upstreams else "no release yet"


def retirement(upstream: str, droppable: Mapping[str, str | None]) -> str:
    """Return a sentence: the first release of an upstream with which a fix can be dropped."""
    if upstream not in droppable:
        return f"No release of {upstream} in the matrix needs it."
    version = droppable[upstream]
    if version is None:
        return f"It cannot be dropped yet: the newest release of {upstream} in the matrix needs it."
    return f"It can be dropped with {upstream} {version} and later: none of these releases needs it."


def retirements(fixes: Iterable[Fix], releases: Releases, table: ShapeTable) -> list[str]:
    """Return a line for each fix and upstream where some release, and all later ones, do not need the fix."""
    return [
        f"{fix.id}: {retirement(upstream, since)}"
        for fix in fixes
        for since in [droppable(fix, releases, table)]
        for upstream, version in since.items()
        if version is not None
    ]


def needed_by(rows: Iterable[Row], fix: Fix) -> str:
    """Return the releases that need a fix: ``megatron-core 0.10.0 to 0.19.2, and 339 nightlies; ms-swift 4.0.0``."""
    ranges = []
    for panel in panels((row for row in rows if row.fix == fix.id), [fix]):
        if needed := [item for item in panel.ranges if item.verdicts == (NEEDED,)]:
            ranges.append(f"{panel.upstream} {named(needed)}")
    return "; ".join(ranges)


def _fitting(panel: Panel, width: int) -> list[Panel]:
    """Return the panel in as many parts as its columns need."""
    _, widths, first = _columns(panel)
    groups: list[list[int]] = [[]]
    left = start = width - 2 - first
    for number, column in enumerate(widths):
        if groups[-1] and left < 2 + column:
            groups.append([])
            left = start
        groups[-1].append(number)
        left -= 2 + column
    return [panel] if len(groups) == 1 else [narrowed(panel, group) for group in groups]


def _columns(panel: Panel) -> tuple[list[list[list[str]]], list[int], int]:
    """Return the heads of the columns, the columns' widths, and the width of the releases before them.

    The heads are the ids, the grades, and what the defects do: the lines of each, for each column.
    """
    texts = [(fix.id, fix.grade, fix.effect) for fix in panel.fixes]
    heads = [[textwrap.wrap(text, _HEADING, break_on_hyphens=" " not in text) for text in row] for row in zip(*texts)]
    columns = zip(*(lines for head in heads for lines in zip_longest(*head, fillvalue="")))
    verdicts = zip(*(item.verdicts for item in panel.ranges))
    widths = [max(map(len, (*head, *column))) for head, column in zip(columns, verdicts, strict=True)]
    return heads, widths, max(len(_span(item)) for item in panel.ranges)


def _block(panel: Panel, colour: bool, width: int) -> Iterable[str]:
    heads, widths, first = _columns(panel)
    for head in heads:
        for parts in zip_longest(*head, fillvalue=""):
            yield _line("", first, list(parts), widths)
    for item in panel.ranges:
        cells = [_coloured(cell, width, colour) for cell, width in zip(item.verdicts, widths, strict=True)]
        yield _line(_span(item), first, cells, widths)
        beside = [f"and {item.nightlies}"] if item.ends and item.nightlies else []
        yield from _notes([*beside, *item.notes], "    ", width)


def _line(label: str, first: int, cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True))
    return "  ".join((f"  {label:<{first}}", *padded)).rstrip()


def _coloured(verdict: str, width: int, colour: bool) -> str:
    return f"\x1b[{COLOURS[verdict]}m{verdict:<{width}}\x1b[0m" if colour else verdict


def _span(item: Range) -> str:
    """Return a range's name without its nightlies, which are told below it: the column is narrow."""
    return " to ".join(item.ends) or item.nightlies


def _notes(notes: Iterable[str], indent: str, width: int) -> list[str]:
    return [
        line
        for note in notes
        for line in textwrap.wrap(note, width, initial_indent=indent, subsequent_indent=indent + "  ")
    ]


def _markdown(panel: Panel) -> str:
    heads = ("releases", *(f"`{fix.id}` ({fix.grade}; {fix.effect})" for fix in panel.fixes))
    lines = [f"### {panel.upstream}", "", _cells(heads), _cells(["---"] * len(heads))]
    for item in panel.ranges:
        notes = f" ({'; '.join(item.notes)})" if item.notes else ""
        lines.append(_cells((f"{item.label}{notes}", *item.verdicts)))
    return "\n".join(lines)


def _cells(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
