"""How a reader uses the site: search, the matrix and its filter, the keyboard, and all of it without JavaScript."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import ElementHandle, Page, expect

PATCHES = Path(__file__).parents[2] / "patches"
FIXES = sorted(path.parent.name for path in PATCHES.glob("*/manifest.json"))
FOCUSED = "document.activeElement"
ROWS = "table.matrix tbody tr"


def manifest(fix: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((PATCHES / fix / "manifest.json").read_text(encoding="utf-8"))
    return found


def frames(fix: str) -> list[str]:
    """Return the functions that a hung job shows in its stacks, by the manifest of a fix."""
    hangs = manifest(fix).get("signature", {}).get("hangs", ())
    places = {place for hang in hangs for group in hang.get("waits", []) for place in group}
    return sorted({place.rpartition("::")[2] for place in places})


def errors(fix: str) -> list[str]:
    """Return the texts of errors that a job's log shows, by the manifest of a fix."""
    about = manifest(fix)
    texts = {error["text"] for hang in about.get("signature", {}).get("hangs", ()) for error in hang.get("errors", ())}
    return sorted(texts.union(re.findall('"(.*?)"', about["symptom"] + about.get("no-hang", ""))))


def results(page: Page) -> list[str]:
    """Return the addresses that the page of results lists, once the search is done."""
    expect(page.locator(".search-summary")).to_contain_text("found")
    links = page.locator("#search-results li a").all()
    return [str(link.get_attribute("href")).partition("?")[0].partition("#")[0] for link in links]


def tab(page: Page, selector: str) -> ElementHandle:
    """Press Tab until an element that matches has the focus, and return it. Fails after a round of the page."""
    for _ in range(300):
        page.keyboard.press("Tab")
        if page.evaluate(f"{FOCUSED}.matches({json.dumps(selector)})"):
            return focused(page)
    raise AssertionError(f"the keyboard does not reach {selector}")


def focused(page: Page) -> ElementHandle:
    """Return the element that has the focus."""
    element = page.evaluate_handle(FOCUSED).as_element()
    assert element is not None
    return element


@pytest.mark.parametrize("fix", FIXES)
def test_search_finds_the_fix_by_a_stack_frame(fix: str, show: Callable[..., Page]) -> None:
    for function in frames(fix):
        assert f"fixes/{fix}.html" in results(show(f"search.html?q={function}")), function


@pytest.mark.parametrize("fix", FIXES)
def test_search_finds_the_fix_by_its_id_and_by_an_error(fix: str, show: Callable[..., Page]) -> None:
    for words in (fix, *errors(fix)):
        assert f"fixes/{fix}.html" in results(show(f"search.html?q={quote(words)}")), words


@pytest.mark.parametrize("door", ["My job hangs", "My numbers are wrong", "I pin and build"])
def test_a_door_and_a_button_lead_to_a_command(door: str, show: Callable[..., Page]) -> None:
    page = show("index.html")
    page.get_by_label("Where to begin").get_by_role("link", name=door).click()
    page.wait_for_load_state()
    box = page.locator("div.highlight").first
    box.get_by_role("button", name="Copy").click()
    expect(box.get_by_role("button")).to_have_text("Copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert "unhang" in copied
    assert copied == box.locator("pre").inner_text().rstrip("\n")


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("path", ["docker", "packs", "fixes/mtp-cp-deadlock", "reference/commands"])
def test_no_button_covers_a_command(path: str, width: int, show: Callable[..., Page]) -> None:
    page = show(f"{path}.html", width=width)
    met = """all => all.map(one => [one.querySelector("pre"), one.querySelector(".copy")]).filter(([pre, button]) => {
      const a = pre.getBoundingClientRect(), b = button.getBoundingClientRect();
      return a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
    }).length"""
    boxes = page.locator("[role=main] div.highlight")
    assert boxes.count()
    assert boxes.evaluate_all(met) == 0


def test_the_side_bar_is_for_users(show: Callable[..., Page]) -> None:
    page = show("index.html")
    listed = page.locator(".sidebar-tree a").evaluate_all("all => all.map(one => one.getAttribute('href'))")
    assert [link for link in listed if re.match("maintainers|reports|contributing|arch", link)] == [
        "maintainers/index.html"
    ]
    page.locator(".sidebar-tree a[href='maintainers/index.html']").click()
    page.locator("[role=main]").get_by_role("link", name="Contributing", exact=True).click()
    expect(page.locator("h1")).to_contain_text("Contributing")


@pytest.mark.parametrize("path", ["index.html", "fixes/index.html"])
def test_a_phone_shows_the_fixes_as_a_list(path: str, show: Callable[..., Page]) -> None:
    page = show(path, width=390)
    rows = page.locator("table.fixes tbody tr")
    expect(rows).to_have_count(len(FIXES))
    sizes = rows.locator("td").evaluate_all("all => all.map(one => one.clientWidth)")
    assert min(sizes) > 300, "a cell has a line of its own"
    row = rows.filter(has_text="mtp-cp-deadlock").locator("td")
    name, what = row.nth(0).bounding_box(), row.nth(4).bounding_box()
    assert name is not None
    assert what is not None
    assert what["y"] == name["y"] + name["height"], "what is wrong comes right below the name"
    assert "needed by" in row.nth(5).evaluate("it => getComputedStyle(it, '::before').content")


def test_a_box_of_code_scrolls_and_the_page_does_not(show: Callable[..., Page]) -> None:
    page = show("reference/commands.html", width=390)
    wide = [
        box for box in page.locator("div.highlight pre").all() if box.evaluate("it => it.scrollWidth > it.clientWidth")
    ]
    assert wide
    assert {box.evaluate("it => getComputedStyle(it).overflowX") for box in wide} == {"auto"}
    assert all(box.get_attribute("tabindex") == "0" for box in wide), "the keyboard scrolls it"


@pytest.mark.parametrize("fix", FIXES)
def test_the_drawing_of_a_fix_can_be_read_on_a_phone(fix: str, show: Callable[..., Page]) -> None:
    page = show(f"fixes/{fix}.html", width=390)
    picture = page.locator("svg.unhang-drawing")
    expect(picture).to_have_count(1)
    expect(picture).to_have_attribute("role", "img")
    sizes = picture.evaluate("it => [...it.querySelectorAll('text')].map(text => text.getBoundingClientRect().height)")
    assert min(sizes) >= 10, "small print"
    inside = "it => [...it.querySelectorAll('text')].every(text => text.getBBox().x + text.getBBox().width <= 360)"
    assert picture.evaluate(inside)


def test_a_drawing_follows_the_button_of_the_theme(show: Callable[..., Page]) -> None:
    page = show("fixes/mtp-cp-deadlock.html", theme="light")
    ink = "getComputedStyle(document.querySelector('svg.unhang-drawing .title')).fill"
    seen = {}
    for _ in range(3):
        tab(page, "button.theme-toggle")
        page.keyboard.press("Enter")
        seen[page.evaluate("document.body.dataset.theme")] = page.evaluate(ink)
    assert seen["light"] == seen["auto"] != seen["dark"]


def test_the_diagram_of_the_architecture_is_drawn(show: Callable[..., Page]) -> None:
    page = show("architecture.html", javascript=False)
    expect(page.locator("svg.unhang-drawing rect.box")).not_to_have_count(0)
    assert "flowchart" not in page.locator("[role=main]").inner_text()


def test_the_matrix_is_not_shrunk_on_a_phone(show: Callable[..., Page]) -> None:
    page = show("matrix.html", width=390)
    expect(page.locator("img[src*='matrix.svg']")).to_be_hidden()
    for fix in FIXES:
        expect(page.locator(".by-fix h3", has_text=fix)).to_be_visible()
    small = "it => [...it].filter(one => parseFloat(getComputedStyle(one).fontSize) < 13).length"
    assert page.locator(f"{ROWS}, .by-fix li").evaluate_all(small) == 0
    row = page.locator(ROWS).filter(has_text="verl 0.7.1").first
    expect(row.locator("td").nth(2)).to_be_hidden()  # nothing is fixed upstream there
    assert "needs" in row.locator("td").nth(1).evaluate("it => getComputedStyle(it, '::before').content")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_search_takes_a_frame_as_py_spy_prints_it(theme: str, show: Callable[..., Page]) -> None:
    page = show("index.html", theme=theme)
    tab(page, "input[name=q]")
    page.keyboard.type("reduce_loss_in_tracker (megatron/core/transformer/multi_token_prediction.py:359)")
    page.keyboard.press("Enter")
    assert "fixes/mtp-cp-deadlock.html" in results(page)[0]
    found = Axe().run(page, context={"exclude": [[".sidebar-toggle"]]}, options={})
    assert found.violations_count == 0, found.generate_report()
    page.locator("#search-results li a[href*=mtp-cp-deadlock]").first.click()
    expect(page.locator("[role=main]")).to_contain_text("reduce_loss_in_tracker")


def test_the_keys_filter_the_matrix(show: Callable[..., Page]) -> None:
    page = show("matrix.html")
    shown, said = page.locator(ROWS).locator("visible=true"), page.locator("#filter output")
    total = page.locator(ROWS).count()
    expect(said).to_have_text(f"{total} of {total} rows")
    tab(page, "#filter input")
    page.keyboard.type("verl 0.7.1")
    texts = shown.all_inner_texts()
    assert 0 < len(texts) < total
    assert all("verl" in text and "0.7.1" in text for text in texts)
    expect(said).to_have_text(f"{len(texts)} of {total} rows")
    page.keyboard.press("Control+A")
    page.keyboard.press("Backspace")
    expect(shown).to_have_count(total)
    for column, value in enumerate(["megatron-core", "allgather-empty-expert"]):  # a release's upstream, what it needs
        select = tab(page, f"#filter label:nth-child({column + 2}) select")
        page.keyboard.type(value)
        assert select.input_value() == value
        cells = [row.locator("td").nth(column).inner_text() for row in shown.all()]
        assert cells
        assert all(value in cell for cell in cells)
        expect(said).to_have_text(f"{len(cells)} of {total} rows")


def test_the_matrix_reads_without_javascript(show: Callable[..., Page]) -> None:
    page = show("matrix.html", javascript=False)
    expect(page.locator("#filter")).to_be_hidden()  # it would do nothing
    expect(page.locator(ROWS).locator("visible=true")).to_have_count(page.locator(ROWS).count())
    expect(page.locator(ROWS).filter(has_text="verl").filter(has_text="mtp-cp-deadlock").first).to_be_visible()


def test_the_first_key_skips_to_the_content(show: Callable[..., Page]) -> None:
    page = show("my-job-hangs.html")
    page.keyboard.press("Tab")
    link = page.locator("a:focus")
    expect(link).to_contain_text("Skip to content")
    expect(link).to_be_in_viewport(ratio=1)
    page.keyboard.press("Enter")
    page.wait_for_url("**/my-job-hangs.html#*")
    page.keyboard.press("Tab")
    assert page.evaluate(f"{FOCUSED}.closest('[role=main]') !== null")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("path", ["index.html", "matrix.html"])
def test_the_focus_can_be_seen(path: str, theme: str, show: Callable[..., Page]) -> None:
    page = show(path, theme=theme)
    for _ in range(40):
        page.keyboard.press("Tab")
        shown = f"{FOCUSED}.checkVisibility() && getComputedStyle({FOCUSED}).outlineStyle !== 'none'"
        assert page.evaluate(shown), focused(page).evaluate("element => element.outerHTML")


def test_the_keys_change_the_theme(show: Callable[..., Page]) -> None:
    page = show("index.html")
    tab(page, "button.theme-toggle")
    seen = set()
    for _ in range(3):
        page.keyboard.press("Enter")
        seen.add(page.evaluate("document.body.dataset.theme"))
    assert seen == {"light", "dark", "auto"}


def test_the_keys_open_the_navigation_of_a_phone(show: Callable[..., Page]) -> None:
    page = show("index.html", width=320)  # as wide as a desktop at 400 %, where there are keys
    link = page.locator(".sidebar-tree a[href='matrix.html']")
    expect(link).not_to_be_in_viewport()
    tab(page, "#__navigation")
    page.keyboard.press("Space")
    expect(link).to_be_in_viewport()
