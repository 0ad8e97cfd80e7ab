"""TOML, and the lines on which its tables begin, which no TOML parser gives."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

from unhang.pins import origin
from unhang.pins.values import DamagedError, Table, no_reader, tables
from unhang.records import Names, Pin

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


def pins(content: str, document: Table, names: Names, read: Callable[[Table], Pin]) -> Iterator[tuple[Table, Pin]]:
    """Yield each package that is one of these, with its pin on its line. Raises DamagedError."""
    every = tables(document, "package")
    for package, line in zip(every, lines(content, "package", len(every))):
        if (pin := origin.known(read(package), names)) is not None:
            yield package, pin._replace(line=line)


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
