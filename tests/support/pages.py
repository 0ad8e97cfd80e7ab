"""Markdown: tables and marked parts of generated pages, and the examples that a page shows."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path


def example(page: Path, name: str) -> str:
    """Return the code block below the marker ``<!-- name -->``. Raises ValueError unless there is exactly one."""
    text = page.read_text(encoding="utf-8")
    (block,) = re.findall(rf"<!-- {re.escape(name)} -->\n```\w+\n(.*?)```", text, flags=re.DOTALL)
    return str(block)


def fill(page: Path, start: str, end: str, text: str) -> None:
    """Replace what a page has between two markers. Raises OSError, and ValueError where a marker is missing."""
    before, found, rest = page.read_text(encoding="utf-8").partition(start)
    _, found_end, after = rest.partition(end)
    if not (found and found_end):
        raise ValueError(f"{page} does not contain {start} and then {end}")
    page.write_text(f"{before}{start}\n{text}\n{end}{after}", encoding="utf-8")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table without the columns that are empty in every row."""
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    kept = [column for column in range(len(head)) if any(row[column] for row in cells)]
    lines = [head, ["---"] * len(head), *cells]
    return "\n".join(f"| {' | '.join(line[column] for column in kept)} |" for line in lines)
