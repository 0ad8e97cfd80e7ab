"""What the proof of a fix showed, as a table for a terminal: a row for each case, and what was seen in some. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from unhang import gate
from unhang.prove.cases import BROKEN, PASSED, Outcome
from unhang.prove.line import NOTHING, PATCHED_PASSES, PROVEN, UNAFFECTED, Line
from unhang.shapes.catalog import Fix
from unhang.tell import terminal

_FINE = (UNAFFECTED, PATCHED_PASSES, NOTHING)


def drawn(fix: Fix, lines: Sequence[Line], width: int, *, verbose: bool = False, colour: bool = False) -> list[str]:
    """Return the lines about one fix on one installation."""
    drawn = terminal.folded(f"  {fix.id} ({fix.grade}; {lines[0].verdict} here): {fix.what}", width, "    ")
    ran = [line for line in lines if line.case]
    for line in lines:
        if not line.case:
            drawn += terminal.folded(f"    {line.answer}: {gate.line(line.detail)}", width, "      ")
    if ran:
        drawn += _table(ran, width, colour=colour)
    first = next((line for line in ran if line.answer == PROVEN), None)
    for line in ran:
        if verbose or line is first or line.answer not in (PROVEN, *_FINE):
            drawn += _seen(line, width)
    return drawn


def _table(lines: Sequence[Line], width: int, *, colour: bool) -> list[str]:
    """Return the table of the cases: the job's sizes, where there is room for them, and how both sides end."""
    rows = [["case", "job", "untouched", "patched"]]
    rows += [[line.case, line.topology, _end(line.untouched), _end(line.patched)] for line in lines]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    columns = [0, 1, 2, 3] if 4 + sum(widths) + 6 <= width else [0, 2, 3]
    texts = ["    " + "  ".join(f"{gate.line(row[n]):<{widths[n]}}" for n in columns).rstrip() for row in rows]
    if colour:
        pairs = zip(texts, [None, *lines])
        texts = [text if line is None else _painted(text, line) for text, line in pairs]
    return texts


def _end(outcome: Outcome | None) -> str:
    return "not there" if outcome is None else f"{outcome.status} {outcome.seconds:.1f} s"


def _painted(text: str, line: Line) -> str:
    """Return a row with the end of each side in a colour, the last one first: a case may be named like one."""
    for outcome in (line.patched, line.untouched):
        if outcome is not None:
            before, _, rest = text.rpartition(_end(outcome))
            code = "32" if outcome.status == PASSED else "31"
            text = f"{before}\x1b[{code}m{_end(outcome)}\x1b[0m{rest}"
    return text


def _seen(line: Line, width: int) -> list[str]:
    """Return what was seen in one case: the ranks that wait and where, or the values, of each side."""
    rows = terminal.folded(f"    {line.case}: {line.topology}", width, "      ")
    notes = [("untouched", line.untouched), ("patched", line.patched)]
    texts = [(name, it.detail) for name, it in notes if it is not None and it.status != BROKEN]
    for name, text in (*texts, ("note", line.detail)):
        label = f"      {name:<9}  "
        for part in filter(None, text.split("; ")):
            rows += terminal.folded(f"{label}{gate.line(part)}", width, " " * 17)
            label = " " * 17
    return rows
