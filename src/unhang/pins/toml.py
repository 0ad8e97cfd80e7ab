"""TOML, and the lines on which its tables begin, which no parser of it tells."""

from __future__ import annotations

import re
import sys
from typing import Any

from unhang.errors import UnhangError
from unhang.pins.values import DamagedError

_DOTS = 1000
"""In one line. The parser's time grows with the square of a dotted key's length; lock files have none of those."""


def parsed(text: str) -> dict[str, Any]:
    """Return the document. Raises ValueError if it is no TOML, UnhangError ``no-lock-reader`` without a parser."""
    if any(line.count(".") > _DOTS for line in text.split("\n")):
        raise DamagedError("a line of it is no lock file's")
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        try:
            import tomli as tomllib
        except ImportError as error:
            what = "Python 3.10 cannot read TOML without tomli"
            raise UnhangError("no-lock-reader", what, hint="pip install 'unhang[lock]'") from error
    document: dict[str, Any] = tomllib.loads(text)
    return document


def lines(text: str, name: str, number: int) -> list[int]:
    """Return the line below each header ``[[name]]``, of which the document has this ``number``.

    If it has another number of such lines, as in a text of several lines, each is 1: nobody can tell which is which.
    """
    found, line, end = [], 1, 0
    for header in re.finditer(rf"^[ \t]*\[\[[ \t]*{name}[ \t]*\]\]", text, re.MULTILINE):
        line += text.count("\n", end, header.start())
        end = header.start()
        found.append(line + 1)
    return found if len(found) == number else [1] * number
