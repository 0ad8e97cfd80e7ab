"""TOML, and the lines on which its tables begin, which no parser of it tells."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection
from itertools import islice
from typing import Any

from unhang.pins.values import MOST, DamagedError, Table, no_reader, tables, text
from unhang.records import normal

_DOTS = 1000
"""In one line. The parser's time grows with the square of a dotted key's length; lock files have none of those."""


def parsed(content: str) -> dict[str, Any]:
    """Return the document. Raises ValueError if it is no TOML, UnhangError ``no-lock-reader`` without a parser."""
    if any(line.count(".") > _DOTS for line in content.split("\n")):
        raise DamagedError("a line of it is no lock file's")
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        try:
            import tomli as tomllib
        except ImportError as error:
            raise no_reader("Python 3.10 cannot read TOML without tomli") from error
    document: dict[str, Any] = tomllib.loads(content)
    return document


def packages(content: str, document: Table, names: Collection[str]) -> list[tuple[Table, int]]:
    """Return the packages that have one of these normal names, with their lines: one more than `MOST` at most.

    Raises DamagedError.
    """
    every = tables(document, "package")
    at = lines(content, "package", len(every))
    return list(islice((it for it in zip(every, at) if normal(text(it[0], "name")) in names), MOST + 1))


def lines(content: str, name: str, number: int) -> list[int]:
    """Return the line below each header ``[[name]]``, of which the document has this ``number``.

    If it has another number of such lines, as in a text of several lines, each is 1: nobody can tell which is which.
    """
    found, line, end = [], 1, 0
    for header in re.finditer(rf"^[ \t]*\[\[[ \t]*{name}[ \t]*\]\]", content, re.MULTILINE):
        line += content.count("\n", end, header.start())
        end = header.start()
        found.append(line + 1)
    return found if len(found) == number else [1] * number
