"""The cause and the cure of each error code, from ``error_codes.md``: what ``unhang explain CODE`` prints."""

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
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "error_codes.md"), encoding="utf-8") as file:
        _, *sections = file.read().split("\n## ")
    found = {}
    for code, _, text in (section.partition("\n\n") for section in sections):
        cause, _, cure = " ".join(text.split()).partition(" **Cure.** ")
        found[code] = Explained(cause, cure)
    return found
