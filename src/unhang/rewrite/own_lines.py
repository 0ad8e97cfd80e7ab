"""The lines of single functions and other statements in a file: named by a digest, and put back, to the byte."""

from __future__ import annotations

import ast
import codecs
import hashlib
import io
import re
import tokenize
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from unhang.shapes import binding, excerpt, shape

_ENDS = b"\r\n"
_MARK = b"# unhang "
_ADDED = re.compile(rb"[ \t]*# unhang [\w-]+: added (after|before) ")
"""The comment above what a fix adds: see ``codemods.exact``."""
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
    function: ast.stmt

    @property
    def digest(self) -> str:
        """The sha256 by which a receipt names them."""
        return hashlib.sha256(self.text).hexdigest()


def of(data: bytes, names: Collection[str]) -> Mapping[str, Lines]:
    """Return the lines of those functions, imports, assignments or classes that a file has exactly once.

    Raises one of UNREADABLE if the file does not parse.
    """
    tree, rows = _parsed(data), _rows(data)
    found = {name: shape.find(tree, name) or binding.statements(tree, name) or () for name in names}
    return {name: _place(rows, nodes[0], name) for name, nodes in found.items() if len(nodes) == 1}


def expected(data: bytes, shapes: Mapping[str, str]) -> Mapping[str, Lines]:
    """Return what `of` does for functions that a file is known to define once, each in this shape; raise what it does.

    Where that is so, the file is not parsed as a whole, which costs more than all else.
    """
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    rows = _rows(data)
    text = [row.decode(encoding.removesuffix("-sig")) for row in rows]
    found = {name: excerpt.find(text, name, wanted) for name, wanted in shapes.items()}
    places = {name: _place(rows, node, name) for name, node in found.items() if node is not None}
    return places if len(places) == len(shapes) else of(data, shapes)


def _place(rows: Sequence[bytes], node: ast.stmt, name: str) -> Lines:
    first = min(part.lineno for part in (node, *getattr(node, "decorator_list", ()))) - 1
    end = node.end_lineno or 0
    above = first
    while above and rows[above - 1].lstrip().startswith(b"#"):  # the comments that a fix brings are below its mark
        above -= 1
        first = above if rows[above].lstrip().startswith(_MARK) else first
    only = binding.reduced(node, name.rpartition(".")[2])
    return Lines(first, end, b"".join(rows[first:end]).rstrip(_ENDS), only)


def put_back(data: bytes, plain: bytes, names: Collection[str]) -> bytes:
    """Return a file with these functions, or other statements, as `plain` has them: without those that it lacks.

    Raises ValueError if the file lacks one, or if `plain` has it in several places, and as `of`.
    """
    now, then = of(data, names), of(plain, names)
    ours = (name for name, place in now.items() if _ADDED.match(place.text))
    added = {name for name in ours if name not in then and not binding.statements(_parsed(plain), name)}
    if not (now.keys() == set(names) == then.keys() | added):
        raise ValueError("a function is not defined exactly once")
    now = {name: _documented(data, place, name) if name in added else place for name, place in now.items()}
    return replaced(data, now, {name: _with_comments(data, now[name], plain, it) for name, it in then.items()})


def is_tidied(data: bytes, plain: bytes, name: str, ours: Collection[str]) -> bool:
    """Return whether a function of ours was only laid out anew, so that its lines can be put back alone.

    Nobody has written a comment or a docstring into it that is neither in ``plain`` nor one of ``ours``, and put back,
    it has the shape that it has in ``plain``. Raises as `put_back`.
    """
    back = of(put_back(data, plain, {name}), {name})
    now, then = of(data, {name})[name], of(plain, {name}).get(name)
    if then is None:
        return name not in back and words(now) <= {*ours}
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


def _documented(data: bytes, place: Lines, name: str) -> Lines:
    """Return a statement's lines with the strings after it that document it."""
    for block in binding.blocks(binding.scope(_parsed(data), name) or []):
        for at, node in enumerate(block):
            if node.end_lineno == place.end:
                return place._replace(end=block[binding.documented(block, at) - 1].end_lineno or place.end)
    return place


def _with_comments(data: bytes, now: Lines, plain: bytes, then: Lines) -> Lines:
    """Return lines with the comments above them in whose place an edit has brought others."""
    rows, first = _rows(plain), then.first
    if now.text.lstrip().startswith(_MARK):
        above = _commented(rows, first), now.first - _commented(_rows(data), now.first)
        first = min(first, above[0] + above[1])
    return then._replace(first=first, text=b"".join(rows[first : then.end]).rstrip(_ENDS))


def _commented(rows: Sequence[bytes], first: int) -> int:
    """Return the index of the first comment of those right above a line."""
    while first and rows[first - 1].lstrip().startswith(b"#"):
        first -= 1
    return first


def replaced(data: bytes, now: Mapping[str, Lines], then: Mapping[str, Lines]) -> bytes:
    """Return a file that has the functions ``now`` with the lines that they have ``then``, if it has them then."""
    rows = _rows(data)
    for name, place in sorted(now.items(), key=lambda item: item[1].first, reverse=True):
        if name not in then:
            first, end = _with_space(rows, place)
            del rows[first:end]
        else:
            last = rows[place.end - 1]
            rows[place.first : place.end] = [then[name].text + last[len(last.rstrip(_ENDS)) :]]
    return data[: _bom(data)] + b"".join(rows)


def _with_space(rows: Sequence[bytes], place: Lines) -> tuple[int, int]:
    """Return the lines of a statement that we added, with the blank ones that set it apart from its neighbour."""
    first, end = place.first, place.end
    if b" after " in rows[first]:
        while first and not rows[first - 1].strip():
            first -= 1
    else:
        while end < len(rows) and not rows[end].strip():
            end += 1
    return first, end


_parsed = lru_cache(maxsize=2)(shape.parse)  # who puts functions back reads the same two files before or after


def _rows(data: bytes) -> list[bytes]:
    return data[_bom(data) :].splitlines(keepends=True)  # as Python counts them; no encoding of sources has other ones


def _bom(data: bytes) -> int:
    return len(codecs.BOM_UTF8) if data.startswith(codecs.BOM_UTF8) else 0
