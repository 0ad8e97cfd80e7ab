"""The lines of single functions and of a diff's edits in a file: named, and put back, to the byte."""

from __future__ import annotations

import ast
import codecs
import hashlib
import io
import tokenize
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from unhang.codemods.exact import Swap, Text
from unhang.shapes import excerpt, shape

_ENDS = b"\r\n"
_MARK = b"# unhang "
UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError)
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


def of(data: bytes, names: Collection[str]) -> Mapping[str, Lines]:
    """Return the lines of those functions that a file has exactly once.

    Raises one of UNREADABLE if the file does not parse.
    """
    tree, rows = _parsed(data), _rows(data)
    found = {name: shape.find(tree, name) for name in names}
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
    first = min(part.lineno for part in (node, *node.decorator_list)) - 1
    above = first
    while above and rows[above - 1].lstrip().startswith(b"#"):  # the comments that a fix brings are below its mark
        above -= 1
        first = above if rows[above].lstrip().startswith(_MARK) else first
    end = node.end_lineno or 0
    return Lines(first, end, b"".join(rows[first:end]).rstrip(_ENDS), node)


def put_back(data: bytes, plain: bytes, names: Collection[str]) -> bytes:
    """Return a file with these functions as `plain` has them.

    Raises ValueError if one of the two has one in several places, or in none, and as `of`.
    """
    if not names:
        return data
    now, then = of(data, names), of(plain, names)
    if not (now.keys() == set(names) == then.keys()):
        raise ValueError("a function is not defined exactly once")
    return replaced(data, now, then)


def is_edited(data: bytes, file: str, swaps: Sequence[Swap], fix: str) -> bool | None:
    """Return whether the edits of a diff are in a file in part alone; None if all of them are. Raises ValueError."""
    text = Text(shape.text(data, file)[1])
    there = [len(text.marked(it.undone, f"# unhang {fix}: ")) == 1 for it in swaps]
    return None if all(there) else any(there)


def undone(data: bytes, file: str, swaps: Sequence[Swap], fix: str) -> bytes:
    """Return a file without these edits of a fix, and its marks. Raises AnchorError; ValueError if it is no text."""
    encoding, text = shape.text(data, file)
    return Text(text).edited([it.undone for it in swaps], without=f"# unhang {fix}: ").encode(encoding)


def is_tidied(data: bytes, plain: bytes, name: str, ours: Collection[str]) -> bool:
    """Return whether a function of ours was only laid out anew, so that its lines can be put back alone.

    Nobody has written a comment or a docstring into it that is neither in ``plain`` nor one of ``ours``, and put back,
    it has the shape that it has in ``plain``. Raises as `put_back`.
    """
    back = of(put_back(data, plain, {name}), {name})
    now, then = of(data, {name})[name], of(plain, {name})[name]
    is_same = name in back and shape.digest(back[name].function) == shape.digest(then.function)
    return is_same and words(now) <= {*words(then), *ours}


def words(place: Lines | None) -> set[str]:
    """Return the comments and docstrings of a function, whatever their layout, but for our own marks."""
    if place is None:
        return set()
    text = io.StringIO(place.text.decode("utf-8", "replace"))
    comments = [it.string for it in tokenize.generate_tokens(text.readline) if it.type == tokenize.COMMENT]
    found = [text.lstrip("#") for text in comments if not text.startswith(_MARK.decode())]
    for node in ast.walk(place.function):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.append(ast.get_docstring(node) or "")
    return {" ".join(text.split()) for text in found} - {""}


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
