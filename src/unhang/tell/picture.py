"""The compat matrix as one SVG without scripts: a panel for each upstream, releases across, fixes down.

Pure, but for reading its style sheet.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from unhang.judge.decide import DRIFTED, FIXED_UPSTREAM, NEEDED, NOT_AFFECTED
from unhang.judge.matrix import Row
from unhang.shapes.catalog import Fix
from unhang.tell.matrix_text import needed_by
from unhang.tell.version_ranges import Panel, Range, panels_by_series, series

WIDTH = 900
TITLE = "Which release needs which fix"

_MARGIN, _LABELS, _ROW, _CELL, _GAP = 20, 172, 27, 22, 3
_NARROWEST = 28  # a column, without its gap
_MEANING = {
    NEEDED: "the defect is here",
    FIXED_UPSTREAM: "upstream's own fix is here",
    NOT_AFFECTED: "nothing to fix here",
    DRIFTED: "nobody has verified it",
}
# Each verdict has a sign as well as a colour, and the colours differ in lightness, so that the picture works in black
# and white. The signs are paths around the middle of a cell: a character might be missing from a font.
_SIGNS = {
    NEEDED: "M0-6.5V1.5M0 5.2V6.2",
    FIXED_UPSTREAM: "M-5.5 .5L-1.5 4.5L5.5-4.5",
    NOT_AFFECTED: "M-4 0H4",
    DRIFTED: "M0-5.5L5.5 0L0 5.5L-5.5 0Z",
}
# The picture has its own background: a page may be dark where the reader's system is light, or the other way round.
_STYLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "picture.css")


class _Column(NamedTuple):
    """A column of a panel: a series of releases, or a part of one whose verdicts differ from the rest."""

    lines: tuple[str, ...]
    left: float
    width: float
    range: Range


def picture(rows: Sequence[Row], fixes: Sequence[Fix]) -> str:
    """Return the SVG of these rows of ``matrix.rows``, which are about these fixes: the same rows, the same bytes."""
    panels = panels_by_series(rows, fixes)
    root = Element("svg", xmlns="http://www.w3.org/2000/svg", role="img")
    root.set("aria-labelledby", "title description")
    SubElement(root, "title", id="title").text = TITLE
    words = (
        f"{fix.id} ({fix.grade}; {fix.effect}): needed by {needed_by(rows, fix) or 'no release'}." for fix in fixes
    )
    SubElement(root, "desc", id="description").text = " ".join(words)  # for screen readers
    with open(_STYLE, encoding="utf-8") as file:
        SubElement(root, "style").text = f"\n{file.read()}"
    ground = SubElement(root, "rect", {"class": "ground", "x": "0.5", "y": "0.5", "rx": "8"})
    _text(root, _MARGIN, 32, TITLE, "title")
    top = _legend(root, panels, 58)
    for panel in panels:
        top = _panel(root, panel, top + 30)
    height = top + 12
    ground.set("width", str(WIDTH - 1))
    ground.set("height", str(height - 1))
    root.set("viewBox", f"0 0 {WIDTH} {height}")
    root.set("width", str(WIDTH))
    root.set("height", str(height))
    indent(root, " ")
    return tostring(root, encoding="unicode") + "\n"


def _legend(root: Element, panels: Sequence[Panel], middle: int) -> int:
    """Draw the signs in use and what they mean; return the y of the legend's end."""
    used = {verdict for panel in panels for item in panel.ranges for verdict in item.verdicts}
    left = float(_MARGIN)
    for verdict in (verdict for verdict in _SIGNS if verdict in used):
        text = f"{verdict}: {_MEANING[verdict]}"
        width = _NARROWEST + 8 + _measure(text, 12)
        if left + width > WIDTH - _MARGIN:
            left, middle = _MARGIN, middle + _ROW
        _cell(root, left, middle - _CELL / 2, _NARROWEST, verdict)
        _text(root, left + _NARROWEST + 8, middle + 4, text)
        left += width + 20
    return middle + _CELL // 2


def _panel(root: Element, panel: Panel, top: int) -> int:
    """Draw one upstream, in as many bands as its columns need; return the y of the panel's end."""
    _text(root, _MARGIN, top, panel.upstream, "upstream")
    yanked = sum(len(item.yanked) for item in panel.ranges)
    caption = panel.summary + (f"; {yanked} release{'' if yanked == 1 else 's'} yanked" if yanked else "")
    _text(root, _MARGIN + _LABELS, top, caption, "muted")
    for band in _bands(panel):
        lines = max(len(column.lines) for column in band)
        for column in band:
            for line, text in enumerate(column.lines):
                base = top + 5 + 13 * (lines - len(column.lines) + line + 1)
                _text(root, column.left + column.width / 2, base, text, "version")
        top += 5 + 13 * lines + 6
        for number, fix in enumerate(panel.fixes):
            _text(root, _MARGIN + _LABELS - 12, top + 10, fix.id, "fix")
            _text(root, _MARGIN + _LABELS - 12, top + 21, fix.grade, "grade")
            for column in band:
                verdict = column.range.verdicts[number]
                group = _cell(root, column.left, top, column.width, verdict)
                what = f"{fix.id}, {panel.upstream} {column.range.label}: {verdict}"
                SubElement(group, "title").text = "; ".join((what, *column.range.notes))
            top += _ROW
        top -= _ROW - _CELL
    return top


def _bands(panel: Panel) -> list[list[_Column]]:
    """Return the columns of a panel: side by side if there is room, else in bands of about the same number."""
    names = [series(item.versions[-1]) for item in panel.ranges]
    labels = [
        (name,) if names.count(name) == 1 else _part(item) for name, item in zip(names, panel.ranges, strict=True)
    ]
    bands = _placed(panel, labels, len(labels))
    return bands if len(bands) == 1 else _placed(panel, labels, -(-len(labels) // len(bands)))


def _placed(panel: Panel, labels: Sequence[tuple[str, ...]], most: int) -> list[list[_Column]]:
    """Return the columns with their places, in bands of at most ``most`` columns that fit the width."""
    bands: list[list[_Column]] = [[]]
    left = start = float(_MARGIN + _LABELS)
    for lines, item in zip(labels, panel.ranges, strict=True):
        width = max(_NARROWEST, *(_measure(line, 11) + 4 for line in lines))
        if len(bands[-1]) == most or (bands[-1] and left + width > WIDTH - _MARGIN):
            bands.append([])
            left = start
        bands[-1].append(_Column(lines, left, width, item))
        left += width + _GAP
    return bands


def _part(item: Range) -> tuple[str, ...]:
    """Return the label of a part of a series: its first and last release, one below the other."""
    first, *last = item.ends or (item.nightlies,)
    return (first, *(f"to {end}" for end in last))


def _cell(root: Element, left: float, top: float, width: float, verdict: str) -> Element:
    group = SubElement(root, "g", {"class": verdict, "transform": f"translate({_number(left)} {_number(top)})"})
    SubElement(group, "rect", {"class": "cell", "width": _number(width), "height": str(_CELL), "rx": "3"})
    SubElement(group, "path", {"transform": f"translate({_number(width / 2)} {_CELL // 2})", "d": _SIGNS[verdict]})
    return group


def _text(root: Element, left: float, base: float, text: str, kind: str = "") -> None:
    element = SubElement(root, "text", {"x": _number(left), "y": _number(base), **({"class": kind} if kind else {})})
    element.text = text


def _measure(text: str, size: int) -> float:
    """Return an upper estimate of a text's width in any sans-serif font, in pixels."""
    narrow = sum(letter in " .,:'-ijlt" for letter in text)
    return round(size * (0.59 * (len(text) - narrow) + 0.34 * narrow), 1)


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
