"""What ``unhang explain`` prints of an error code, a cause, and a word of a report: the files beside this module."""

from __future__ import annotations

import os
from functools import cache
from typing import NamedTuple


class Explained(NamedTuple):
    """Why an error comes, and what to do. Both are Markdown."""

    cause: str
    cure: str


@cache
def codes() -> dict[str, Explained]:
    """Return what there is to say of each code, in alphabetical order. Raises OSError."""
    found = {}
    for code, text in _sections("error_codes.md"):
        cause, _, cure = text.partition(" **Cure.** ")
        found[code] = Explained(cause, cure)
    return found


@cache
def words() -> dict[str, str]:
    """Return what there is to say of each word of a report, in alphabetical order, as Markdown. Raises OSError."""
    return dict(_sections("words.md"))


@cache
def causes() -> dict[str, str]:
    """Return the page of each cause that `diagnose` names, as Markdown. Raises OSError."""
    return {name: text.strip() for name, text in _parts("causes.md")}


def _sections(name: str) -> list[tuple[str, str]]:
    """Return the heading and the text of each section of a file beside this module, on one line."""
    return [(heading, " ".join(text.split())) for heading, text in _parts(name)]


def _parts(name: str) -> list[tuple[str, str]]:
    """Return the heading and the text of each section of a file beside this module, as it is."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), name), encoding="utf-8") as file:
        _, *sections = file.read().split("\n## ")
    parts = (section.partition("\n\n") for section in sections)
    return [(heading, text) for heading, _, text in parts]
