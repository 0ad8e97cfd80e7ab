"""``python -m sitemaker FOLDER``: write the site's source into an empty folder."""

from __future__ import annotations

import sys
from pathlib import Path

from sitemaker import fixes, matrix, reference
from sitemaker.links import relinked

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TOP = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""The pages at the top of the repository, and what they are on the site."""


def places() -> dict[str, str]:
    """Return the place on the site of each page and picture of the repository, by its path there."""
    files = [path for suffix in ("md", "svg") for path in (ROOT / "docs").rglob(f"*.{suffix}")]
    found = {path.relative_to(ROOT).as_posix(): path.relative_to(ROOT / "docs").as_posix() for path in files}
    del found[(HERE / "navigation.md").relative_to(ROOT).as_posix()]
    pages = {
        path.relative_to(ROOT).as_posix(): f"fixes/{path.parent.name}.md" for path in ROOT.glob("patches/*/page.md")
    }
    return {**TOP, **found, **pages}


def main(folder: Path) -> None:
    """Write all pages into a folder. Raises OSError, and UnhangError if the data of the fixes cannot be read."""
    there = places()
    made = {**fixes.pages(), **matrix.pages(), **reference.pages(ROOT / "compat" / "schemas")}
    for path, place in there.items():
        if place not in made:
            made[place] = (ROOT / path).read_text(encoding="utf-8")
    made["index.md"] += (HERE / "navigation.md").read_text(encoding="utf-8")
    origins = {place: path for path, place in there.items()}
    for place, text in made.items():
        target = folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        linked = relinked(text, origins[place], there) if place in origins and place.endswith(".md") else text
        target.write_text(linked, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
