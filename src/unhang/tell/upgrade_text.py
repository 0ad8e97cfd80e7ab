"""What an upgrade changes, as a table for people, as Markdown and as JSON. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, zip_longest
from typing import Any, NamedTuple

from unhang import gate
from unhang.judge.upgrade import Step

_HEAD = ("release", "needs", "no longer needed", "new")
_LEAST = 24  # the columns of a cell with names of fixes


class Upgrades(NamedTuple):
    """A release that somebody has, and what each newer one changes."""

    distribution: str
    version: str
    needs: tuple[str, ...]
    """The fixes that it needs."""
    unknown: tuple[str, ...]
    """The fixes of which nobody knows whether it needs them."""
    steps: tuple[Step, ...]

    @property
    def title(self) -> str:
        """What is upgraded, and what it needs now."""
        needs = f"needs {len(self.needs)}: {', '.join(self.needs)}" if self.needs else "needs none of these fixes"
        unknown = f"; nobody knows of {', '.join(self.unknown)}" if self.unknown else ""
        newest = "" if self.steps else "; the matrix has no newer release"
        return gate.line(f"{self.distribution} {self.version} {needs}{unknown}{newest}")


def json_upgrades(found: Iterable[Upgrades]) -> str:
    """Return the JSON document of ``matrix --upgrade``; docs/json.md documents its stable form."""
    return gate.document({"schema": 1, "upgrades": [_document(one) for one in found]})


def text(found: Iterable[Upgrades], width: int) -> str:
    """Return the table for people: for each release that somebody has, a line for each range of newer ones."""
    return "\n\n".join("\n".join(_text(one, width)) for one in found)


def markdown(found: Iterable[Upgrades]) -> str:
    """Return the same as Markdown."""
    return "\n\n".join("\n".join(_markdown(one)) for one in found)


def _document(one: Upgrades) -> dict[str, Any]:
    return {**one._asdict(), "steps": [step._asdict() for step in one.steps]}


def _rows(steps: Sequence[Step]) -> list[tuple[str, str, str, str]]:
    """Return the cells of each range of neighbours that change the same."""
    rows = []
    for _, group in groupby(steps, key=lambda step: step[1:]):
        alike = list(group)
        ends = dict.fromkeys((alike[0].version, alike[-1].version))
        step = alike[0]
        unknown = [f"{fix} (unknown)" for fix in step.unknown]
        brings = ", ".join((*step.brings, *unknown)) or "-"
        rows.append((" to ".join(ends), str(len(step.needs)), ", ".join(step.drops) or "-", brings))
    return rows


def _text(one: Upgrades, width: int) -> Iterator[str]:
    yield from textwrap.wrap(one.title, width, subsequent_indent="  ", break_on_hyphens=False)
    rows = [_HEAD, *_rows(one.steps)] if one.steps else []
    first = max((len(row[0]) for row in rows), default=0)
    room = width - first - len("needs") - 8  # the indent, and two spaces between the columns
    new = min(max((len(row[3]) for row in rows), default=0), max(room // 2, _LEAST))
    widths = (first, len("needs"), max(room - new, _LEAST), new)
    for row in rows:
        cells = [textwrap.wrap(cell, size, break_on_hyphens=False) for cell, size in zip(row, widths)]
        for parts in zip_longest(*cells, fillvalue=""):
            yield "  ".join(("", *(f"{part:<{size}}" for part, size in zip(parts, widths)))).rstrip()


def _markdown(one: Upgrades) -> Iterator[str]:
    yield f"### {one.title}"
    if one.steps:
        yield ""
        for row in _HEAD, ("---",) * len(_HEAD), *_rows(one.steps):
            yield f"| {' | '.join(row)} |"
