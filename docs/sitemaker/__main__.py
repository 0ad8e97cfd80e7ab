"""``python -m sitemaker FOLDER``: write the site's source into an empty folder."""

from __future__ import annotations

import posixpath
import sys
from collections.abc import Iterable
from pathlib import Path

from sitemaker import fixes, matrix, reference
from sitemaker.diagram import with_diagrams
from sitemaker.links import relinked, with_fixes
from sitemaker.pictures import with_pictures
from unhang.shapes import catalog

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MOVED = {
    **{"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"},
    "src/unhang/cli/error_codes.md": "reference/errors.md",
}
"""The pages outside of docs/, and their places on the site."""

MAINTAINERS = """# For maintainers

{pages}

## Reports to upstream

{reports}
"""
"""The page that leads to those that the side bar does not list: `ALONE`, to Sphinx."""
ALONE = "---\norphan: true\n---\n\n"


def main(folder: Path) -> None:
    """Write all pages into a folder. Raises OSError, and UnhangError if the data of the fixes cannot be read."""
    docs = ROOT / "docs"
    found = [*docs.rglob("*.md"), *docs.rglob("*.svg")]
    own = [path for path in found if docs / "packs" not in path.parents]  # an example pack, which is no page
    files = MOVED | {path.relative_to(ROOT).as_posix(): path.relative_to(docs).as_posix() for path in own}
    ids = list(catalog.fixes())
    places = files | {f"patches/{name}/page.md": f"fixes/{name}.md" for name in ids}
    proved = [path.stem for path in docs.glob("maintainers/proofs/*.md")]
    written = {**fixes.pages(proved), **matrix.pages(), **reference.pages(ROOT / "compat" / "schemas")}
    for path, place in files.items():
        text = (ROOT / path).read_text(encoding="utf-8")
        written[place] = with_fixes(relinked(text, path, places), place, ids) if place.endswith(".md") else text
    start, navigation = ((HERE / name).read_text(encoding="utf-8") for name in ("start.txt", "navigation.txt"))
    _, mark, readme = written["index.md"].partition("## ")  # the site has a beginning of its own
    written["index.md"] = start + mark + fixes.as_list(readme) + navigation
    theirs, reports = (
        sorted(place for place in written if place.startswith(it)) for it in ("maintainers/", "reports/")
    )
    theirs = ["contributing.md", "architecture.md", *(place for place in theirs if place.endswith(".md"))]
    for place in *theirs, *reports:
        written[place] = ALONE + written[place]
    listed = [posixpath.relpath(place, "maintainers") for place in theirs if "/proofs/" not in place]
    written["maintainers/index.md"] = MAINTAINERS.format(
        pages=_links(listed), reports=_links(f"../{it}" for it in reports)
    )
    pictures = {path.name: path.read_text(encoding="utf-8") for path in docs.glob("drawings/*.svg")}
    for place, text in written.items():
        if place.endswith(".md"):
            text = with_diagrams(with_pictures(text, pictures))
        target = folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


def _links(places: Iterable[str]) -> str:
    return "\n".join(f"- []({place})" for place in places)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
