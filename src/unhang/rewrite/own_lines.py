"""The lines of single functions in a file: named by a digest, and put back, with every other byte as it is."""

from __future__ import annotations

import codecs
import hashlib
import io
import tokenize
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from unhang.shapes import excerpt, shape

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
    found = {name: shape.find(tree, name) for name in functions}
    return {name: _place(rows, nodes[0]) for name, nodes in found.items() if len(nodes) == 1}


def expected(data: bytes, shapes: Mapping[str, str]) -> Mapping[str, Lines]:
    """Return what `of` does for functions that a file is known to define once, each in this shape; raise what it does.

    Where that is so, the file is not parsed as a whole, which costs more than all else.
    """
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    rows = _rows(data)
    text = [row.decode(encoding.removesuffix("-sig")) for row in rows]
    found = {name: excerpt.find(text, name, wanted) for name, wanted in shapes.items()}
    places = {name: _place(rows, node) for name, node in found.items() if node is not None}
    return places if len(places) == len(shapes) else of(data, shapes)


def _place(rows: Sequence[bytes], node: shape.Function) -> Lines:
    first, end = min(part.lineno for part in (node, *node.decorator_list)) - 1, node.end_lineno or 0
    return Lines(first, end, b"".join(rows[first:end]).rstrip(_ENDS), node)


def put_back(data: bytes, plain: bytes, functions: Collection[str]) -> bytes:
    """Return a file with these functions as `plain` has them. Raises ValueError if either lacks one, and as `of`."""
    now, then = of(data, functions), of(plain, functions)
    if not now.keys() == then.keys() == set(functions):
        raise ValueError("a function is not defined exactly once")
    return replaced(data, now, then)


def replaced(data: bytes, now: Mapping[str, Lines], then: Mapping[str, Lines]) -> bytes:
    """Return a file that has the functions ``now`` with the lines that they have ``then``."""
    rows = _rows(data)
    for name, place in sorted(now.items(), key=lambda item: item[1].first, reverse=True):
        last = rows[place.end - 1]
        rows[place.first : place.end] = [then[name].text + last[len(last.rstrip(_ENDS)) :]]
    return data[: _bom(data)] + b"".join(rows)


_parsed = lru_cache(maxsize=2)(shape.parse)  # who puts functions back reads the same two files before or after


def _rows(data: bytes) -> list[bytes]:
    return data[_bom(data) :].splitlines(keepends=True)  # as Python counts them; no encoding of sources has other ones


def _bom(data: bytes) -> int:
    return len(codecs.BOM_UTF8) if data.startswith(codecs.BOM_UTF8) else 0
