"""One function of a file on record: its lines are found by indentation, parsed alone, and checked against its shape.

Parsing a large module for one function costs more than everything else that a rewrite does with `ast`. Indentation does
not always find the right lines, but the shape shows whether it did.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from unhang.shapes import shape

_CLOSING = tuple(")]}#")  # a line inside a definition can start at its margin with these: end of the header, comment


def find(rows: Sequence[str], qualified: str, expected: str) -> shape.Function | None:
    """Return the function with the shape ``expected``, line numbers as in the file; None if its lines are not found.

    ``rows`` are the lines of a file that is known to define it exactly once.
    """
    first, last = 0, len(rows)
    for name in qualified.split("."):
        definition = re.compile(rf"[ \t]*(?:(?:async[ \t]+)?def|class)[ \t]+{name}\b")
        found = [index for index in range(first, last) if name in rows[index] and definition.match(rows[index])]
        if len(found) != 1:
            return None
        first = found[0]
        last = _end(rows, first, last)
    while first and rows[first - 1].lstrip().startswith("@"):
        first -= 1
    try:
        function, its_shape = parsed("".join(rows[first:last]), first + 1)
    except (SyntaxError, ValueError, TypeError, RecursionError):
        return None
    return function if its_shape == expected else None


@lru_cache(maxsize=128)  # what is rewritten is looked at again when its lines are signed
def parsed(text: str, first: int) -> tuple[shape.Function, str]:
    """Return the function that these lines of a file define, and its shape. Raises what `shape.parse_lines` does."""
    function = shape.parse_lines(text, first)
    return function, shape.digest(function)


def _end(rows: Sequence[str], first: int, last: int) -> int:
    """Return the index after a definition's last line, judging by indentation."""
    depth = _indentation(rows[first])
    for index in range(first + 1, last):
        rest = rows[index].lstrip()
        if rest and not rest.startswith(_CLOSING) and _indentation(rows[index]) <= depth:
            return index
    return last


def _indentation(row: str) -> int:
    return len(row) - len(row.lstrip())
