"""A `tell.drawing.Drawing` as SVG: as wide as a phone, in light and in dark, with its words for who cannot see it.

Pure, but for reading its style sheet.
"""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from unhang.compat.sweep import letters
from unhang.tell.drawing import DONE, Drawing, Panel, Row, explained

STYLE = Path(__file__).with_name("drawings.css")
WIDTH = 360
_EDGE, _LINE, _ROW, _BLOCK, _LEFT = 10, 16, 28, 20, 62
_RIGHT = WIDTH - _EDGE
_COLOURS = 4


def short(drawing: Drawing) -> str:
    """Return what a drawing shows in a sentence or two, for a picture on a page."""
    return " ".join([f"{drawing.title}.", *(f"{panel.heading}. {panel.words}" for panel in drawing.panels)])


def words(drawing: Drawing) -> str:
    """Return what a drawing shows, for who cannot see it."""
    parts = [f"{panel.heading}. {panel.words} {_spoken(panel)}." for panel in drawing.panels]
    about = [f"The number: {drawing.number}."] if drawing.number else []
    return " ".join([*about, *parts, *(f"{part.rstrip('.')}." for part in explained(drawing))])


def _spoken(panel: Panel) -> str:
    if panel.bars:
        return ", ".join(f"{bar.name} {bar.shown}" for bar in panel.bars)
    return ", ".join(
        f"{row.name}: {' '.join([*(block.letter for block in row.blocks), row.end])}" for row in panel.rows
    )


def inline(picture: str) -> str:
    """Return a picture of `svg` for a page that has its style sheet: on one line, which Markdown takes as HTML."""
    found = ElementTree.fromstring(picture)  # noqa: S314 - our own
    for part in found.iter():
        part.tag = part.tag.rpartition("}")[2]
        part.text, part.tail = (part.text or "").strip(), None
        if part.text:  # Sphinx would put a rectangle on what was searched for
            part.set("class", f"{part.get('class', '')} nohighlight".strip())
    found.remove(next(part for part in found if part.tag == "style"))
    return f'<div class="drawing">{tostring(found, encoding="unicode")}</div>'


def svg(drawing: Drawing, name: str) -> str:
    """Return the picture of a drawing; `name` is what its ids begin with: the same drawing, the same bytes."""
    root = Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "class": "unhang-drawing", "role": "img"})
    root.set("aria-labelledby", f"{name}-title {name}-words")
    SubElement(root, "title", id=f"{name}-title").text = drawing.title
    SubElement(root, "desc", id=f"{name}-words").text = words(drawing)
    SubElement(root, "style").text = f"\n{STYLE.read_text(encoding='utf-8')}"
    ground = SubElement(root, "rect", {"class": "ground"})
    bottom = _lines(root, drawing.title, 20, "title")
    if drawing.number:
        bottom = _lines(root, f"The number: {drawing.number}", bottom, "dim")
    cells = [_cell(panel) for panel in drawing.panels if panel.columns > 1]
    measure = min(cells) if cells else drawing.scale
    for panel in drawing.panels:
        bottom = _panel(root, panel, measure, bottom + (2 if panel is drawing.panels[0] else 8))
    bottom += 12
    for letter, told in drawing.legend:
        _text(root, _EDGE, bottom, letter, "key")
        bottom = _lines(root, told, bottom, "", _EDGE + 18)
    for number, group in enumerate(drawing.groups):
        _rect(root, _EDGE, bottom - 10, 11, 11, f"done g{number % _COLOURS}")
        bottom = _lines(root, group, bottom, "", _EDGE + 18)
    for part in filter(None, (drawing.note, drawing.source and f"Recorded: {drawing.source}")):
        bottom = _lines(root, part, bottom + 4, "dim small")
    height = bottom - 4
    for key, value in ("width", WIDTH), ("height", height):
        ground.set(key, str(value))
        root.set(key, str(value))
    root.set("viewBox", f"0 0 {WIDTH} {height}")
    indent(root, " ")
    return tostring(root, encoding="unicode") + "\n"


def _panel(root: Element, panel: Panel, measure: float, top: int) -> int:
    """Draw one side below `top`, given the width of a column, or what the longest bar is; return the y below it."""
    _text(root, _EDGE, top + 12, panel.heading, "good" if panel.is_good else "bad")
    below = _lines(root, panel.words, top + 12 + _LINE, "")
    below -= 8
    if panel.bars:
        return _bars(root, panel, measure, below)
    for row in panel.rows:
        _row(root, row, measure, below)
        below += _ROW
    y = below + 5
    SubElement(root, "path", {"class": "grid", "d": f"M{_LEFT} {y}H{_RIGHT}m-5-3l5 3l-5 3"})
    _text(root, _EDGE, y + 4, "time", "dim small")
    return y + 10


def _cell(panel: Panel) -> float:
    """Return how wide its columns can be, beside what stands at their end."""
    room = max(size(*_said(row)) for row in panel.rows) + 8
    return min(58.0, (_RIGHT - _LEFT - room) / (panel.columns - 1))


def _row(root: Element, row: Row, cell: float, top: int) -> None:
    """Draw what a rank does; what it waits in goes on to the right edge."""
    middle = top + _ROW / 2
    _text(root, _EDGE, middle + 4, row.name)
    SubElement(root, "path", {"class": "grid", "d": f"M{_LEFT} {middle:g}H{_RIGHT}"})
    if row.is_cut:
        _text(root, _LEFT - 11, middle + 4, "...", "dim small")
    end = float(_LEFT)
    for block in row.blocks:
        left = _LEFT + block.column * cell + 3
        is_last = block is row.blocks[-1] and not row.more
        goes_on = block.state != DONE and is_last
        width = _RIGHT - left if goes_on else cell - 6
        kind = f"done g{block.group % _COLOURS}" if block.state == DONE else "stuck"
        _rect(root, left, middle - _BLOCK / 2, width, _BLOCK, kind)
        _text(root, left + (cell - 6) / 2, middle + 4, block.letter, "letter" if block.state == DONE else "letter bad")
        end = left + cell - 3
    said, kind = _said(row)
    if not _is_stuck(row):  # on the ground, where the line of time would cross it
        _rect(root, end + 1, middle - 8, size(said, kind) + 4, 16, "ground")
    _text(root, end + 3, middle + 4, said, kind)


def _said(row: Row) -> tuple[str, str]:
    """Return what stands at the end of a row, and its kind."""
    kind = "bad small" if _is_stuck(row) or row.end.startswith("raises") else "dim small"
    return (f"+ {row.more} more, {row.end}" if row.more else row.end), kind


def _is_stuck(row: Row) -> bool:
    return bool(row.blocks) and row.blocks[-1].state != DONE


def _bars(root: Element, panel: Panel, scale: float, top: int) -> int:
    for bar in panel.bars:
        _text(root, _EDGE, top + 16, bar.name)
        length = 210 * abs(bar.value or 0) / scale
        if length:
            kind = "right" if bar.is_right else "done g0" if panel.is_good else "wrong"
            _rect(root, _LEFT + 8, top + 4, max(length, 1), 16, kind)
        _text(root, _LEFT + 14 + length, top + 16, bar.shown, "key")
        top += 24
    return top + 4


def _lines(root: Element, part: str, base: int, kind: str, left: int = _EDGE) -> int:
    """Write a text in as many lines as it needs; return the base of a line below it."""
    line = ""
    for word in [*part.split(), ""]:
        longer = f"{line} {word}".strip()
        if line and (not word or size(longer, kind) > _RIGHT - left):
            _text(root, left, base, line, kind)
            base, line = base + _LINE, word
        else:
            line = longer
    return base


def size(text: str, kind: str) -> float:
    """Return how wide a text of these classes is, as drawings.css has them."""
    kinds = {*kind.split()}
    pixels = 14 if "title" in kinds else 11 if "small" in kinds else 12
    return letters.width(text, pixels, bold=not kinds.isdisjoint(("title", "bad", "good", "letter", "key")))


def _rect(root: Element, left: float, top: float, width: float, height: float, kind: str) -> None:
    size = {"x": f"{left:.4g}", "y": f"{top:.4g}", "width": f"{width:.4g}", "height": f"{height:.4g}"}
    SubElement(root, "rect", {"class": kind, "rx": "3", **size})


def _text(root: Element, left: float, base: float, text: str, kind: str = "") -> None:
    element = SubElement(root, "text", {"x": f"{left:.4g}", "y": f"{base:.4g}", **({"class": kind} if kind else {})})
    element.text = text
