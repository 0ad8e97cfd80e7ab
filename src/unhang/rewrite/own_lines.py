"""The lines of single functions in a file: named by a digest, and put back, with every other byte as it is."""

from __future__ import annotations

import codecs
import hashlib
import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import NamedTuple

from unhang.shapes import shape

_LINE = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")  # as Python counts them; no encoding of sources has other ones
_ENDS = b"\r\n"
UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
"""What a file raises that does not parse, or lacks a function."""


class Lines(NamedTuple):
    """A function's lines, decorators included."""

    first: int
    """The index of the first one in the file."""
    end: int
    """The index after the last one."""
    text: bytes
    """Without the end of the last line: what follows the function may come or go."""
    function: shape.Function

    @property
    def digest(self) -> str:
        """The sha256 by which a receipt names them."""
        return hashlib.sha256(self.text).hexdigest()


def of(data: bytes, functions: Collection[str]) -> Mapping[str, Lines]:
    """Return the lines of those functions that a file defines exactly once.

    Raises one of UNREADABLE if the file does not parse.
    """
    tree, rows = _parsed(data), _rows(data)
    places = {}
    for name in functions:
        definitions = shape.find(tree, name)
        if len(definitions) == 1:
            (node,) = definitions
            first = min(part.lineno for part in (node, *node.decorator_list)) - 1
            end = node.end_lineno or 0
            places[name] = Lines(first, end, b"".join(rows[first:end]).rstrip(_ENDS), node)
    return places


def put_back(data: bytes, plain: bytes, functions: Collection[str]) -> bytes:
    """Return a file with these functions as `plain` has them. Raises ValueError if either lacks one, and as `of`."""
    now, then = of(data, functions), of(plain, functions)
    if not now.keys() == then.keys() == set(functions):
        raise ValueError("a function is not defined exactly once")
    rows = _rows(data)
    for name, place in sorted(now.items(), key=lambda item: item[1].first, reverse=True):
        last = rows[place.end - 1]
        rows[place.first : place.end] = [then[name].text + last[len(last.rstrip(_ENDS)) :]]
    return data[: _bom(data)] + b"".join(rows)


_parsed = lru_cache(maxsize=2)(shape.parse)  # who puts functions back reads the same two files before or after


def _rows(data: bytes) -> list[bytes]:
    return _LINE.findall(data, _bom(data))


def _bom(data: bytes) -> int:
    return len(codecs.BOM_UTF8) if data.startswith(codecs.BOM_UTF8) else 0
