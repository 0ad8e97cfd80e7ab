"""The page of `unhang diagnose --html`: a click or a key shows a stack, in both themes, and nothing is asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from axe_playwright_python.sync_playwright import Axe

from support import pictured

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.mark.parametrize(("ranks", "limit"), [(8, 50_000), (1024, 1_500_000)])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_picture_of_a_hang(tmp_path: Path, browser: Browser, ranks: int, limit: int, theme: str) -> None:
    folder, file = pictured.write(tmp_path / "job", ranks, late=3), tmp_path / "hang.html"
    command = [sys.executable, "-m", "unhang", "diagnose", str(folder), "--html", str(file), "-q"]
    assert subprocess.run(command, check=False, capture_output=True).returncode == 1
    assert file.stat().st_size < limit
    context = browser.new_context(color_scheme="dark" if theme == "dark" else "light", bypass_csp=True)  # for axe
    page, wrong = context.new_page(), list[str]()
    page.on("console", lambda message: wrong.append(message.text))
    page.on("request", lambda request: wrong.append(request.url) if request.url != file.as_uri() else None)
    page.goto(file.as_uri())
    assert Axe().run(page).violations_count == 0
    shown = page.locator("section:has(:target)")
    assert shown.count() == 0
    page.get_by_role("link", name="suspect rank 3", exact=True).click()
    assert "train.py:12" in shown.inner_text()
    page.get_by_role("link").last.focus()
    page.keyboard.press("Enter")
    assert page.url.rpartition("-")[2] in shown.locator(":target").inner_text()
    assert page.locator("script").count() == 0, "the text of a frame is text"
    assert wrong == []
    context.close()
