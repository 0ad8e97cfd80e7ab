"""RECORD, the list of a wheel's files with hash and size: rewritten row by row, every other byte kept."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

_BOM = b"\xef\xbb\xbf"
_FIELD = rb'"[^"]*(?:""[^"]*)*"[^,\r\n]*|[^,\r\n]*'
# The line end stands apart: each row keeps its own. A quoted path may hold commas and line ends.
_ROW = re.compile(rb"(?P<body>(?:%b)(?:,(?:%b))*)(?P<end>\r\n|\n|\r|\Z)" % (_FIELD, _FIELD))
_FIELDS = re.compile(rb"(?:\A|,)(%b)" % _FIELD)


def update(record: bytes, changed: Mapping[str, bytes]) -> bytes:
    """Give the rows of `changed` (posix path relative to site-packages -> the file's new bytes) their hash and size.

    Rows of other files, unlisted files, rows without a hash, line ends and quoting stay as they are.
    Raises ValueError for a path that is absolute or climbs with `..`.
    """
    for path in changed:
        if path.startswith("/") or ".." in path.split("/"):
            raise ValueError(f"not a path inside site-packages: {path}")
    wanted = {_encode(path): data for path, data in changed.items()}
    pieces = [_lead(record)]
    for name, body, end in _rows(record):
        pieces += [_rewritten(body, wanted[name]) if name in wanted else body, end]
    return b"".join(pieces)


def row(record: bytes, path: str) -> str | None:
    """Return the text of the row of `path` without its line end (several rows: joined by a newline); None if unlisted.

    Bytes that are not UTF-8 come as surrogates, which JSON carries.
    """
    found = [body for name, body, _ in _rows(record) if name == _encode(path)]
    return b"\n".join(found).decode("utf-8", "surrogateescape") if found else None


def restore(record: bytes, path: str, original: str) -> bytes:
    """Put back what `row` returned for `path`; unchanged where the file is not listed (any more).

    Raises ValueError where `original` holds a row of any other file, as one that was tampered with may.
    """
    rows = [(name, body) for name, body, _ in _rows(_encode(original))]
    if any(name != _encode(path) for name, _ in rows):
        raise ValueError(f"not a row of {path}: {original!r}")
    originals = iter(rows)
    pieces = [_lead(record)]
    for name, body, end in _rows(record):
        pieces += [next(originals, (name, body))[1] if name == _encode(path) else body, end]
    return b"".join(pieces)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _lead(record: bytes) -> bytes:
    return _BOM if record.startswith(_BOM) else b""


@lru_cache(maxsize=4)  # several files of a run are in one RECORD of thousands of rows
def _rows(record: bytes) -> Sequence[tuple[bytes, bytes, bytes]]:
    """Path, text and line end of each row; the rows, one after the other, are the file."""
    rows, position = [], len(_lead(record))
    while position < len(record):
        match = _ROW.match(record, position)
        assert match is not None  # any bytes match: a field may be empty
        body, end = match["body"], match["end"]
        name = _plain(_FIELDS.findall(body)[0]) if body[:1] == b'"' else body.partition(b",")[0]
        rows.append((name, body, end))
        position = match.end()
    return rows


def _plain(field: bytes) -> bytes:
    return field[1:-1].replace(b'""', b'"') if len(field) > 1 and field[:1] == field[-1:] == b'"' else field


def _rewritten(body: bytes, data: bytes) -> bytes:
    fields = _FIELDS.findall(body)
    for index, value in ((1, _hash), (2, _size)):
        if index < len(fields) and _plain(fields[index]):
            quote = b'"' if fields[index][:1] == b'"' else b""
            fields[index] = quote + value(_plain(fields[index]), data) + quote
    return b",".join(fields)


def _hash(old: bytes, data: bytes) -> bytes:
    name = old.partition(b"=")[0].decode("ascii", "replace")
    # As the installer chose it; what we cannot compute becomes what every installer writes.
    name = name if name in hashlib.algorithms_guaranteed and not name.startswith("shake") else "sha256"
    digest = base64.urlsafe_b64encode(hashlib.new(name, data).digest()).rstrip(b"=")
    return name.encode() + b"=" + digest


def _size(old: bytes, data: bytes) -> bytes:
    return str(len(data)).encode()
