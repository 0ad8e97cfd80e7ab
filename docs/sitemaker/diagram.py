"""A Mermaid flowchart of boxes and arrows, as the architecture page has it, drawn as SVG. Pure.

Layers go down: a box stands below all that point to it. An arrow that passes layers gets a place in each of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from xml.etree.ElementTree import Element, SubElement, tostring

_FENCE = re.compile(r"```mermaid\n(flowchart TD\n.*?)```\n", re.DOTALL)
_BOX = re.compile(r'^\s+(\w+)\["(.*?)"\]$', re.MULTILINE)
_ARROW = re.compile(r"^\s+(\w+) --> (\w+)$", re.MULTILINE)
_EDGE, _GAP, _BETWEEN, _LINE, _LETTER = 8, 14, 34, 16, 7.4


class Box(NamedTuple):
    """A box, or the place of an arrow that passes a layer: that has no lines."""

    lines: tuple[str, ...]

    @property
    def width(self) -> float:
        """How wide it is; an arrow needs little."""
        return max((len(line) for line in self.lines), default=0) * _LETTER + 18 if self.lines else 6.0

    @property
    def height(self) -> float:
        """How high it is."""
        return len(self.lines) * _LINE + 10


def with_diagrams(page: str) -> str:
    """Return a page with a picture in place of each flowchart. Raises ValueError for one that is more than boxes."""
    return _FENCE.sub(lambda fence: f"{svg(fence[1])}\n", page)


def svg(flowchart: str) -> str:
    """Return the picture of a flowchart, on one line. Raises ValueError for a line that is no box and no arrow."""
    boxes = {name: Box(tuple(label.split("<br>"))) for name, label in _BOX.findall(flowchart)}
    arrows = [(str(upper), str(lower)) for upper, lower in _ARROW.findall(flowchart)]
    if len(boxes) + len(arrows) + 1 != len(flowchart.strip().splitlines()) or {*sum(arrows, ())} - {*boxes}:
        raise ValueError("this flowchart has more than boxes and arrows between them")
    level = _levels(boxes, arrows)
    links = [part for arrow in arrows for part in _in_steps(arrow, level, boxes)]
    layers = _ordered(level, links)
    return _drawn(boxes, layers, links, arrows)


def _levels(boxes: Mapping[str, Box], arrows: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Return the layer of each box: one below the lowest that points to it. Raises ValueError where arrows go round."""
    level = dict.fromkeys(boxes, 0)
    for _ in range(len(boxes) + 1):
        lower = {to: max([level[to], *(level[one] + 1 for one, other in arrows if other == to)]) for to in boxes}
        if lower == level:
            break
        level = lower
    else:
        raise ValueError("the arrows go round in a circle")
    for name in boxes:  # what nothing points to stands right above what it points to
        below = [level[to] for one, to in arrows if one == name]
        if below and not any(to == name for _, to in arrows):
            level[name] = min(below) - 1
    return level


def _in_steps(arrow: tuple[str, str], level: dict[str, int], boxes: dict[str, Box]) -> list[tuple[str, str]]:
    """Return an arrow as steps from layer to layer; their places are added to the boxes."""
    upper, lower = arrow
    between = [f"{upper}>{lower}@{row}" for row in range(level[upper] + 1, level[lower])]
    for row, place in enumerate(between, level[upper] + 1):
        boxes[place], level[place] = Box(()), row
    stops = [upper, *between, lower]
    return [*zip(stops, stops[1:])]


def _ordered(level: Mapping[str, int], links: Sequence[tuple[str, str]]) -> list[list[str]]:
    """Return the layers, each in an order that has few arrows cross: by the mean place of what it is linked with."""
    layers = [[name for name, row in level.items() if row == number] for number in range(max(level.values()) + 1)]
    for turn in range(8):
        down = turn % 2 == 0
        for number in range(1, len(layers)) if down else range(len(layers) - 2, -1, -1):
            near = layers[number - 1 if down else number + 1]
            place = {name: at / max(len(near) - 1, 1) for at, name in enumerate(near)}
            means = {}
            for at, name in enumerate(layers[number]):
                linked = [place[one] for pair in links if name in pair for one in pair if one in place]
                means[name] = sum(linked) / len(linked) if linked else at / max(len(layers[number]) - 1, 1)
            layers[number].sort(key=means.__getitem__)
    return layers


def _drawn(
    boxes: Mapping[str, Box],
    layers: Sequence[Sequence[str]],
    links: Sequence[tuple[str, str]],
    arrows: Sequence[tuple[str, str]],
) -> str:
    widths = [sum(boxes[name].width for name in layer) + _GAP * (len(layer) - 1) for layer in layers]
    wide = max(widths)
    root = Element("svg", {"class": "unhang-drawing", "role": "img", "aria-labelledby": "diagram-title diagram-words"})
    quiet = {"class": "nohighlight"}  # Sphinx would put a rectangle on what was searched for
    SubElement(root, "title", quiet, id="diagram-title").text = "Boxes, from the top, and arrows between them"
    words = (f"{upper} to {lower}" for upper, lower in arrows)
    SubElement(root, "desc", quiet, id="diagram-words").text = f"Arrows: {', '.join(words)}."
    middle: dict[str, float] = {}
    top: dict[str, float] = {}
    bottom: dict[str, float] = {}
    y = float(_EDGE)
    for layer, width in zip(layers, widths):
        x, high = _EDGE + (wide - width) / 2, max(boxes[name].height for name in layer)
        for name in layer:
            box = boxes[name]
            middle[name] = x + box.width / 2
            own = box.height if box.lines else high
            top[name], bottom[name] = y + (high - own) / 2, y + (high + own) / 2
            x += box.width + _GAP
        y += high + _BETWEEN
    arrow = "M{0:g} {1:g}C{0:g} {4:g} {2:g} {4:g} {2:g} {3:g}"
    for upper, lower in links:
        start, end = bottom[upper], top[lower]
        line = arrow.format(middle[upper], start, middle[lower], end, (start + end) / 2)
        if boxes[lower].lines:
            line += "m-4-7l4 7l4-7"
        else:
            line += f"V{bottom[lower]:g}"
        SubElement(root, "path", {"class": "arrow", "d": line})
    for name, box in boxes.items():
        if box.lines:
            left = middle[name] - box.width / 2
            size = {"x": left, "y": top[name], "width": box.width, "height": box.height}
            SubElement(root, "rect", {"class": "box", "rx": "4", **{key: f"{value:g}" for key, value in size.items()}})
            for number, line in enumerate(box.lines):
                place = {"x": f"{middle[name]:g}", "y": f"{top[name] + 5 + _LINE * (number + 0.75):g}"}
                kind = "middle nohighlight" if number else "middle key nohighlight"
                SubElement(root, "text", {"class": kind, **place}).text = line
    root.set("viewBox", f"0 0 {wide + 2 * _EDGE:g} {y - _BETWEEN + _EDGE:g}")
    return f'<div class="drawing diagram" tabindex="0">{tostring(root, encoding="unicode")}</div>'
