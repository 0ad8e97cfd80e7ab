"""Draw the processes as a bar chart, the SVG of docs/performance.md. It follows the reader's dark mode. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element, SubElement, indent, tostring

if TYPE_CHECKING:
    import pyperf


WIDTH, LABELS, ROW, MARGIN, TOP = 860, 230, 24, 20, 74
STYLE = """
.ground { fill: #ffffff; stroke: #d0d7de; }
text { font-family: -apple-system, "Segoe UI", "Noto Sans", Helvetica, Arial, sans-serif; font-size: 12px;
  fill: #1f2328; }
.title { font-size: 17px; font-weight: 600; }
.muted { fill: #59636e; }
.name { text-anchor: end; } .tick { text-anchor: middle; fill: #59636e; font-size: 11px; }
.grid { stroke: #d0d7de; }
.ours { fill: #a8320b; } .theirs { fill: #8c959f; } .spread { stroke: #1f2328; stroke-width: 1.5; }
@media (prefers-color-scheme: dark) {
  .ground { fill: #0d1117; stroke: #30363d; }
  text { fill: #e6edf3; } .muted, .tick { fill: #9198a1; } .grid { stroke: #30363d; }
  .ours { fill: #ff9466; } .theirs { fill: #656c76; } .spread { stroke: #e6edf3; }
}
"""


def render(processes: Mapping[str, pyperf.Benchmark]) -> str:
    """Return the SVG: a bar up to each process's median, on a logarithmic scale, and a line for the middle half."""
    low, high = 5.0, max(max(bench.get_values()) for bench in processes.values()) * 1000
    span = WIDTH - LABELS - 2 * MARGIN - 60

    def x(milliseconds: float) -> float:
        return LABELS + MARGIN + span * math.log(max(milliseconds, low) / low) / math.log(high / low)

    height = TOP + ROW * len(processes) + MARGIN
    svg = Element("svg", xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDTH} {height}", role="img")
    SubElement(svg, "title").text = "Wall time of each process"
    SubElement(svg, "style").text = STYLE
    SubElement(svg, "rect", {"class": "ground", "rx": "6", **place(0.5, 0.5, WIDTH - 1, height - 1)})
    text(svg, MARGIN, 30, "Wall time of whole processes, in milliseconds", "title")
    text(svg, MARGIN, 48, "median, and the middle half of the runs; logarithmic; less is better", "muted")
    for tick in (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000):
        if low < tick < high:
            line = {"x1": f"{x(tick):.1f}", "x2": f"{x(tick):.1f}", "y1": str(TOP), "y2": str(height - MARGIN)}
            SubElement(svg, "line", {"class": "grid", **line})
            text(svg, x(tick), TOP - 6, f"{tick:,}", "tick")
    for index, (name, bench) in enumerate(processes.items()):
        _bar(svg, TOP + ROW * index, name, bench, x)
    indent(svg, " ")
    return tostring(svg, encoding="unicode") + "\n"


def _bar(svg: Element, top: float, name: str, bench: pyperf.Benchmark, x: Callable[[float], float]) -> None:
    values = sorted(value * 1000 for value in bench.get_values())
    median = bench.median() * 1000
    first, last = (x(values[round(share * (len(values) - 1))]) for share in (0.25, 0.75))
    left, middle = LABELS + MARGIN, top + ROW / 2
    kind = "ours" if name.startswith("unhang") else "theirs"
    text(svg, left - 8, middle + 4, name, "name")
    SubElement(svg, "rect", {"class": kind, **place(left, top + 4, max(x(median) - left, 1), ROW - 8)})
    line = {"x1": f"{first:.1f}", "x2": f"{last:.1f}", "y1": f"{middle:.1f}", "y2": f"{middle:.1f}"}
    SubElement(svg, "line", {"class": "spread", **line})
    text(svg, max(last, x(median)) + 6, middle + 4, f"{median:,.0f}" if median >= 100 else f"{median:.1f}", "muted")


def place(x: float, y: float, width: float, height: float) -> dict[str, str]:
    """Return the attributes of a rectangle."""
    return {"x": f"{x:.1f}", "y": f"{y:.1f}", "width": f"{width:.1f}", "height": f"{height:.1f}"}


def text(svg: Element, x: float, y: float, what: str, kind: str) -> None:
    """Add a text to a picture, in one of STYLE's classes."""
    SubElement(svg, "text", {"class": kind, "x": f"{x:.1f}", "y": f"{y:.1f}"}).text = what
