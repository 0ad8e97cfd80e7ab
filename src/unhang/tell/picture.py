"""The compat matrix as one SVG without scripts: a panel for each upstream, releases across, fixes down. Pure."""

from __future__ import annotations

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
_STYLE = """
.ground { fill: #ffffff; stroke: #d0d7de; }
text { font-family: -apple-system, "Segoe UI", "Noto Sans", Helvetica, Arial, sans-serif; font-size: 12px;
  fill: #1f2328; }
.title { font-size: 17px; font-weight: 600; }
.upstream { font-size: 14px; font-weight: 600; }
.muted { fill: #59636e; }
.version { font-size: 11px; fill: #59636e; text-anchor: middle; }
.fix { text-anchor: end; }
.grade { font-size: 10px; fill: #59636e; text-anchor: end; }
rect.cell { stroke-width: 1; }
path { fill: none; stroke-width: 2.4; stroke-linecap: round; stroke-linejoin: round; }
.needed rect { fill: #a8320b; stroke: #a8320b; } .needed path { stroke: #ffffff; stroke-width: 2.8; }
.fixed-upstream rect { fill: #93d3be; stroke: #93d3be; } .fixed-upstream path { stroke: #0b3d2e; }
.not-affected rect { fill: #f6f8fa; stroke: #d0d7de; } .not-affected path { stroke: #8c959f; stroke-width: 1.6; }
.drifted rect { fill: #d9c8f5; stroke: #6f42c1; } .drifted path { stroke: #4c2889; stroke-width: 1.8; }
@media (prefers-color-scheme: dark) {
  .ground { fill: #0d1117; stroke: #30363d; }
  text { fill: #e6edf3; }
  .muted, .version, .grade { fill: #9198a1; }
  .needed rect { fill: #ff9466; stroke: #ff9466; } .needed path { stroke: #2b0d02; }
  .fixed-upstream rect { fill: #1d6b54; stroke: #1d6b54; } .fixed-upstream path { stroke: #d9fff2; }
  .not-affected rect { fill: #151b23; stroke: #30363d; } .not-affected path { stroke: #656c76; }
  .drifted rect { fill: #3b2a63; stroke: #a98be8; } .drifted path { stroke: #dccbff; }
}
"""


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
    SubElement(root, "desc", id="description").text = _description(rows, fixes)
    SubElement(root, "style").text = _STYLE
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


def _description(rows: Sequence[Row], fixes: Sequence[Fix]) -> str:
    """Return the picture in words, for screen readers."""
    return " ".join(f"{fix.id} ({fix.grade}): needed by {needed_by(rows, fix) or 'no release'}." for fix in fixes)
