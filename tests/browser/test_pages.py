"""Every page of the site: its links, its width on a phone, and what axe finds in both themes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from bs4 import BeautifulSoup
from playwright.sync_api import Page

from sitemaker.links import BLOB

REPOSITORY = Path(__file__).parents[2]
SITE = Path(os.environ["UNHANG_SITE"])
PAGES = sorted(path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html"))
DESKTOP, PHONE = 1280, 320  # 320 is what WCAG asks for: 1.4.10, reflow


@cache
def read(page: str) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the anchors of a page, and where its links lead, as it is without JavaScript."""
    soup = BeautifulSoup((SITE / page).read_bytes(), "html.parser")
    return frozenset(str(tag["id"]) for tag in soup.select("[id]")), tuple(str(tag["href"]) for tag in soup.select("a"))


def dead(page: str) -> list[str]:
    """Return the links of a page that lead nowhere, in the site or in this repository. Others are not followed."""
    found = []
    for link in read(page)[1]:
        if link.startswith(BLOB):
            alive = (REPOSITORY / urldefrag(link.removeprefix(BLOB)).url).exists()
        elif urlsplit(link).scheme:
            alive = True
        else:
            place, anchor = urldefrag(urljoin(page, link))
            to = unquote(place) or "index.html"
            anchors = read(to)[0] if to in PAGES else frozenset()
            alive = (SITE / to).is_file() and (not anchor or unquote(anchor) in anchors)
        if not alive:
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    assert dead(page) == []


def test_a_dead_link_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    links = ["#here", "b.html#there", BLOB + "LICENSE", "https://x.org/"]
    gone = ["#there", "b.html#here", "c.html", BLOB + "GONE"]
    (tmp_path / "a.html").write_text("<p id=here>" + "".join(f"<a href='{link}'>x</a>" for link in links + gone))
    (tmp_path / "b.html").write_text("<p id=there>")
    monkeypatch.setattr(f"{__name__}.SITE", tmp_path)
    monkeypatch.setattr(f"{__name__}.PAGES", ["a.html", "b.html"])
    read.cache_clear()
    assert dead("a.html") == gone
    read.cache_clear()


@pytest.mark.parametrize("page", PAGES)
def test_a_phone_shows_a_page_without_sideways_scroll(page: str, show: Callable[..., Page]) -> None:
    opened = show(page, width=PHONE)
    assert opened.locator("meta[name=viewport]").count(), "else a phone shows it in small print"
    opened.evaluate("scrollTo(10000, 0)")
    assert opened.evaluate("scrollX") == 0


@pytest.mark.parametrize(("theme", "width"), [("light", DESKTOP), ("dark", DESKTOP), ("light", PHONE)])
@pytest.mark.parametrize("page", PAGES)
def test_axe_finds_nothing(page: str, theme: str, width: int, show: Callable[..., Page]) -> None:
    opened = show(page, theme=theme, width=width)
    background = opened.evaluate("getComputedStyle(document.body).backgroundColor")
    brightness = sum(map(int, re.findall(r"\d+", background)[:3])) / 3
    assert (brightness < 64) if theme == "dark" else (brightness > 192), background
    found = Axe().run(opened, context={"exclude": [[".sidebar-toggle"]]}, options={})  # they stand above the landmarks
    assert "color-contrast" in {rule["id"] for rule in found.response["passes"]}, "axe has looked at the colours"
    assert found.violations_count == 0, found.generate_report()
