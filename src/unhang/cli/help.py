"""What `--help` says about each command, from ``help.md``. The options are in arguments.py."""

from __future__ import annotations

import os
from typing import NamedTuple

EXITS = (
    "exit codes: 0 every needed fix is in place, 1 a fix is blocked, or one of --require is not in place, 2 wrong "
    "usage or failure (nothing was changed), 130 Ctrl-C"
)


class Page(NamedTuple):
    """The help of one command."""

    summary: str
    """Its line in the list of commands."""
    description: str
    """One paragraph."""
    examples: tuple[str, ...]
    """Command lines, which a comment may end."""
    exits: str


def _page(section: str) -> tuple[str, Page]:
    """Return a command and its page: heading, paragraph, examples, and its exit codes where they are other ones."""
    heading, *paragraphs = (part.split("\n") for part in section.strip().split("\n\n"))
    command, _, summary = heading[0].partition(": ")
    description, examples, exits = [*paragraphs, [EXITS]][:3]
    return command, Page(summary, " ".join(description), tuple(map(str.strip, examples)), " ".join(exits))


with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "help.md"), encoding="utf-8") as _file:
    PAGES = dict(map(_page, _file.read().removeprefix("# ").split("\n# ")))
TOP = PAGES.pop("unhang")
COMMANDS = ("check", "apply", "revert", "diff", "diagnose", "explain", "list")
MORE = ("prove", "wheel", "overlay", "matrix", "pack", "completion")
"""The commands that `--help` lists below those."""
PACK = ("pack new", "pack sweep", "pack build")
"""What follows `pack`: to the parser, each is one word."""
