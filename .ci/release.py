"""A release: what the tag, the version, the changelog and CITATION.cff say must agree.

    python3 .ci/release.py prepare 0.2.0    write the version and today's date where they belong
    python3 .ci/release.py check v0.2.0     compare them with the tag, and print the release's notes

docs/maintainers/release.md has the steps around them. Exits with 1 if they do not agree, and names each that does not.
"""

from __future__ import annotations

import argparse
import re
import sys
from datetime import datetime, timezone
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
# Marks each line of a page that is true only before the first release; `prepare` drops these lines.
FIRST = "<!-- until the first release -->"
VERSION, CHANGELOG, CITATION = "src/unhang/__init__.py", "CHANGELOG.md", "CITATION.cff"
# A pre-release would have to be told to pip, to the action's v1 and to the reader: there is none.
_RELEASE = re.compile(r"\d+\.\d+\.\d+")
_VERSION = re.compile(r'^__version__ = "(.*)"$', re.MULTILINE)
_HEADING = re.compile(r"^## (\S+) \((\S+)\)$", re.MULTILINE)
_CITED = re.compile(r"^version: (.*)$(?:\ndate-released: (.*)$)?", re.MULTILINE)
Texts = dict[str, str]
"""The content of the three files and of each page with a line for the time before, by their path in the repository."""


def read(repository: Path) -> Texts:
    """Return the files that say which release this is."""
    pages = [*repository.glob("*.md"), *repository.glob("docs/*.md")]
    texts = {path.relative_to(repository).as_posix(): path.read_text(encoding="utf-8") for path in pages}
    marked = {name: text for name, text in texts.items() if FIRST in text}
    return marked | {name: (repository / name).read_text(encoding="utf-8") for name in (VERSION, CHANGELOG, CITATION)}


def complaints(tag: str, texts: Texts) -> list[str]:
    """Return what does not agree with a tag, such as `v0.2.0`; nothing if all of it does."""
    version = tag.removeprefix("v")
    if tag == version or not _RELEASE.fullmatch(version):
        return [f"{tag} is not a tag of a release: v1.2.3"]
    wrong = []
    found = _VERSION.findall(texts[VERSION])
    if found != [version]:
        wrong.append(f"{VERSION} has version {', '.join(found) or 'none'}, not {version}")
    heading = _HEADING.search(texts[CHANGELOG])
    titled, date = heading.groups() if heading else ("none", "")
    if titled != version or not _is_date(date):
        wrong.append(f"{CHANGELOG} begins with {titled} ({date}), not with {version} (YYYY-MM-DD)")
    elif not notes(version, texts[CHANGELOG]):
        wrong.append(f"{CHANGELOG} says nothing of {version}")
    if _CITED.findall(texts[CITATION]) != [(version, date)]:
        wrong.append(f"{CITATION} does not have version: {version} and date-released: {date}")
    return wrong + [f"{name} has a line that ends with {FIRST}" for name, text in texts.items() if FIRST in text]


def notes(version: str, changelog: str) -> str:
    """Return what the changelog says of a version, without its heading; empty if it says nothing."""
    sections = _HEADING.split(changelog)[1:]
    return next((text.strip() for found, text in zip(sections[::3], sections[2::3]) if found == version), "")


def prepare(version: str, date: str, texts: Texts) -> Texts:
    """Return the files with a version and its date.

    Raises ValueError if the version is no release's, or if the changelog does not begin with an unreleased section.
    """
    if not _RELEASE.fullmatch(version):
        raise ValueError(f"{version} is not the version of a release: 1.2.3")
    heading = _HEADING.search(texts[CHANGELOG])
    if not heading or heading[2] != "unreleased":
        raise ValueError(f"{CHANGELOG} does not begin with a section that is (unreleased)")
    titled = f"## {version} ({date})"
    return {name: re.sub(f".*{FIRST}\n", "", text) for name, text in texts.items()} | {
        VERSION: _VERSION.sub(f'__version__ = "{version}"', texts[VERSION]),
        CHANGELOG: texts[CHANGELOG].replace(heading[0], titled, 1),
        CITATION: _CITED.sub(f"version: {version}\ndate-released: {date}", texts[CITATION]),
    }


def _is_date(text: str) -> bool:
    try:
        return datetime.strptime(text, "%Y-%m-%d").strftime("%Y-%m-%d") == text
    except ValueError:
        return False


def main(arguments: list[str] | None = None, repository: Path = REPOSITORY) -> int:
    """Prepare or check a release; return 1 if something does not agree."""
    parser = argparse.ArgumentParser(description="Prepare a release, or check one against its tag.")
    parser.add_argument("command", choices=["prepare", "check"])
    parser.add_argument("name", help="the version to prepare, such as 0.2.0, or the tag to check, such as v0.2.0")
    asked = parser.parse_args(arguments)
    texts = read(repository)
    if asked.command == "check":
        wrong = complaints(asked.name, texts)
        print("\n".join(wrong), file=sys.stderr) if wrong else print(notes(asked.name[1:], texts[CHANGELOG]))
        return bool(wrong)
    try:
        prepared = prepare(asked.name, datetime.now(timezone.utc).strftime("%Y-%m-%d"), texts)
    except ValueError as error:
        parser.error(str(error))
    for name, text in prepared.items():
        (repository / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
