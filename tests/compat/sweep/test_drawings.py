"""The pictures of the drawings: words for who cannot see them, no wider than a phone, readable in both themes."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from support.checkout import REPOSITORY
from unhang.compat.sweep import drawings, pages
from unhang.shapes import catalog

SVG = "{http://www.w3.org/2000/svg}"
DRAWN = pages.every_drawing(list(catalog.fixes().values()), REPOSITORY / "docs")


@pytest.mark.parametrize("name", DRAWN)
def test_a_picture_has_its_words_and_nothing_sticks_out(name: str) -> None:
    drawn = DRAWN[name]
    root = ElementTree.fromstring(drawings.svg(drawn, name))
    labels = str(root.get("aria-labelledby")).split()
    ids = {part.get("id"): part.text for part in root.iter() if part.get("id")}
    assert (root.get("role"), labels) == ("img", [f"{name}-title", f"{name}-words"])
    assert (ids[labels[0]], ids[labels[1]]) == (drawn.title, drawings.words(drawn))
    shown = " ".join(part.text or "" for part in root.iter(f"{SVG}text"))
    for panel in drawn.panels:
        assert panel.heading in shown
        assert panel.words in shown
        assert all(bar.shown in shown for bar in panel.bars)
    rects = [[float(part.get(key, "0")) for key in ("x", "y", "width", "height")] for part in root.iter(f"{SVG}rect")]
    assert all(x >= 0 and x + width <= drawings.WIDTH for x, _, width, _ in rects)
    for part in root.iter(f"{SVG}text"):  # tests/browser asks Chromium, with this font and with a narrower one
        x, y, kind = float(part.get("x", "")), float(part.get("y", "")) - 4, part.get("class", "")
        size = drawings.size(part.text or "", kind)
        left = x - size / 2 if "letter" in kind else x
        assert left >= 0, part.text
        assert left + size <= drawings.WIDTH - drawings._EDGE, part.text
        within = [at + width for at, top, width, height in rects if top < y < top + height and at <= x < at + width]
        assert left + size <= min(within), part.text
    assert not [part.tag for part in root.iter() if part.tag.rpartition("}")[2] in ("script", "image", "foreignObject")]


def test_a_picture_on_a_page_is_one_line_without_a_style_sheet() -> None:
    name, drawn = next(iter(DRAWN.items()))
    text = drawings.inline(drawings.svg(drawn, name))
    assert text.startswith('<div class="drawing"><svg class="unhang-drawing"')
    assert "\n" not in text
    assert "<style" not in text
    assert drawn.title in text


def brightness(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_text_can_be_read_in_light_and_dark() -> None:
    """WCAG's 4.5 to 1; the dark colours are there twice: for the system's choice, and for the site's button."""
    blocks = re.findall(r"\{([^{}]*--ink: [^{}]*)\}", drawings.STYLE.read_text(encoding="utf-8"))
    light, dark, button = (dict(re.findall(r"--([\w-]+): (#\w{6});", block)) for block in blocks)
    assert dark == button
    assert light.keys() == dark.keys()
    pairs = [(text, "ground") for text in ("ink", "dim", "bad", "good")] + [("bad", "bad-soft")]
    pairs += [("on", f"g{number}") for number in range(drawings._COLOURS)]
    for colours in light, dark:
        for text, ground in pairs:
            low, high = sorted((brightness(colours[text]), brightness(colours[ground])))
            assert (high + 0.05) / (low + 0.05) >= 4.5, (text, ground)
