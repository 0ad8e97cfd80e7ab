"""The pictures of docs/ with two fonts: no text leaves its picture or its box, or meets another."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sitemaker.diagram import with_diagrams
from support.checkout import REPOSITORY
from unhang.compat.sweep import letters

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

DOCS = REPOSITORY / "docs"
PICTURES = sorted([*DOCS.glob("drawings/*.svg"), DOCS / "matrix.svg", DOCS / "performance.svg"])
FONTS = "DejaVu Sans", "Liberation Sans"  # of each width: Arial has that of the second
# By the boxes that the browser gives: of a line of text, its height is the font's and not the letters'.
OUTSIDE = """svg => {
  const view = svg.viewBox.baseVal, slack = 0.5, wrong = [];
  const box = it => { const b = it.getBBox(); return {left: b.x, right: b.x + b.width, middle: b.y + b.height / 2,
    top: b.y, bottom: b.y + b.height}; };
  const texts = [...svg.querySelectorAll("text")].map(it => [it.textContent, box(it)]);
  const boxes = [...svg.querySelectorAll("rect:not(.ground)")].map(box);
  texts.forEach(([text, own], at) => {
    if (own.left < 0 || own.right > view.width || own.top < 0 || own.bottom > view.height) wrong.push(`${text}: out`);
    for (const [other, b] of texts.slice(at + 1))
      if (own.left < b.right - slack && b.left < own.right - slack && Math.abs(own.middle - b.middle) < 6)
        wrong.push(`${text}: on ${other}`);
    for (const b of boxes)
      if (b.top < own.middle && own.middle < b.bottom && own.left < b.right - slack && b.left < own.right - slack
          && (own.left < b.left - slack || b.right < own.right - slack))
        wrong.push(`${text}: through the edge of a box`);
  });
  return wrong;
}"""


def file_of(font: str) -> Path:
    """Return the file of an installed font."""
    ran = subprocess.run(["fc-match", "-f", "%{family[0]}\\n%{file}", font], check=True, capture_output=True, text=True)
    family, file = ran.stdout.split("\n")
    assert family == font.partition(":")[0], "this needs two fonts: apt-get install fonts-dejavu-core fonts-liberation"
    return Path(file)


@pytest.fixture(scope="module", params=FONTS)
def page(request: pytest.FixtureRequest, browser: Browser) -> Iterator[Page]:
    """An empty page whose pictures all have one font."""
    assert file_of(request.param).is_file()
    with browser.new_page() as page:
        page.set_content(f"<style>svg text {{ font-family: '{request.param}' !important }}</style><main></main>")
        yield page


def outside(page: Page, picture: str) -> list[str]:
    page.evaluate("svg => document.querySelector('main').innerHTML = svg", picture)
    found: list[str] = page.locator("main svg").evaluate(OUTSIDE)
    return found


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.name)
def test_no_text_of_a_picture_is_outside_of_its_box(page: Page, path: Path) -> None:
    assert outside(page, path.read_text(encoding="utf-8")) == []


def test_no_text_of_the_diagram_is_outside_of_its_box(page: Page) -> None:
    text = with_diagrams((DOCS / "architecture.md").read_text(encoding="utf-8"))
    style = (REPOSITORY / "compat" / "sweep" / "drawings.css").read_text(encoding="utf-8")
    assert outside(page, f"<style>{style}</style>{text[text.index('<svg') : text.index('</svg>')]}</svg>") == []


@pytest.mark.parametrize(
    ("left", "found"),
    [(0, []), (95, ["A: out"]), (46, ["A: on B"]), (30, ["A: through the edge of a box"])],
)
def test_what_is_outside_is_found(page: Page, left: int, found: list[str]) -> None:
    svg = '<svg viewBox="0 0 100 40" style="font-size: 12px"><rect x="34" y="5" width="40" height="30"/>'
    svg += f'<text x="{left}" y="25">A</text><text x="50" y="25">B</text></svg>'
    assert outside(page, svg) == found


def test_the_widths_are_those_of_the_font() -> None:
    regular, bold = file_of("DejaVu Sans"), file_of("DejaVu Sans:bold")
    assert letters.measured(regular, bold) == letters.TABLE.read_text(encoding="utf-8")
