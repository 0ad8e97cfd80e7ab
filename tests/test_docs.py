"""The pages: every link leads to an existing file and heading, and every path they mention exists."""

import re
from pathlib import Path

import pytest

from support import screenshot

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
UPSTREAM = ROOT / "docs" / "maintainers" / "upstream.md"  # names files of the upstreams too
REFERENCE = {"architecture.md", "json.md", "performance.md", "promises.md"}  # to look up, not to read
MOST = 120
_GENERATED = re.compile(r"<!-- matrix: generated.*?<!-- matrix: end -->", re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_PATH = re.compile(
    r"(?<![\w/.-])(?:benchmarks|codemods|compat|docs|patches|src|tests|upstreams)/[\w./-]+\.(?:json|md|py|svg)\b"
)


def headings(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to a page's headings."""
    found = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in found}


def broken(page: Path) -> list[str]:
    """Return the relative links of a page that lead nowhere."""
    found = []
    for link in _LINK.findall(page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if "://" not in link and not (target.exists() and (not anchor or anchor in headings(target))):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    assert broken(page) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One `heading`\n[a](#one-heading) [b](page.md#one-heading) [c](#other)\n[d](gone.md) [e](https://x.org/)\n"
    )
    assert broken(page) == ["#other", "gone.md"]


@pytest.mark.parametrize("page", [page for page in PAGES if page != UPSTREAM], ids=lambda page: page.name)
def test_every_path_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8").partition("<!-- patches:")[0]  # whose table names the paths of others
    assert [path for path in _PATH.findall(text) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_a_page_for_users_is_short(page: Path) -> None:
    lines = _GENERATED.sub("", page.read_text(encoding="utf-8")).splitlines()
    assert len(lines) <= MOST or page.name in REFERENCE


def test_the_readme_has_the_doors_of_the_site() -> None:
    head = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## ")[0]
    start = (ROOT / "docs/sitemaker/start.txt").read_text(encoding="utf-8")
    doors = re.findall(r'<a href="([\w-]+)\.html"><strong>(.*?)</strong>', start)
    assert [
        (page, title) for title, page in re.findall(r"^- \*\*\[(.*?)\]\(docs/([\w-]+)\.md\)", head, re.MULTILINE)
    ] == doors


def test_each_page_is_in_the_navigation() -> None:
    listed = (ROOT / "docs/sitemaker/navigation.txt").read_text(encoding="utf-8").splitlines()
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} - {*listed} == {"architecture"}, (
        "that is for maintainers"
    )


def test_the_screenshot_shows_what_the_commands_print() -> None:
    picture = screenshot.PICTURE.read_text(encoding="utf-8")
    printed = re.sub(r"\x1b\[[\d;]*m", "", screenshot.shown())
    assert screenshot.words(picture) == printed.split(), "run nox -s screenshot"
    assert "url(http" not in picture, "it loads nothing"
