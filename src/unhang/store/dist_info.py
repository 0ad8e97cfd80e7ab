"""RECORD, the list of a wheel's files with hash and size: update single rows, and keep every other byte."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

_BOM = b"\xef\xbb\xbf"
_FIELD = rb'"[^"]*(?:""[^"]*)*"[^,\r\n]*|[^,\r\n]*'
# Each row keeps its own line end. A quoted path may contain commas and line ends.
_ROW = re.compile(rb"(?P<body>(?:%b)(?:,(?:%b))*)(?P<end>\r\n|\n|\r|\Z)" % (_FIELD, _FIELD))
_FIELDS = re.compile(rb"(?:\A|,)(%b)" % _FIELD)


def update(record: bytes, changed: Mapping[str, bytes]) -> bytes:
    """Return the RECORD with new hashes and sizes for `changed` (posix path below site-packages -> new bytes).

    Rows of other files, unlisted files, rows without a hash, line ends and quoting stay as they are.
    Raises ValueError for a path that is absolute or contains `..`.
    """
    for path in changed:
        if path.startswith("/") or ".." in path.split("/"):
            raise ValueError(f"not a path inside site-packages: {path}")
    wanted = {_encode(path): data for path, data in changed.items()}
    pieces = [_lead(record)]
    for name, body, end in _rows(record):
        pieces += [_rewritten(body, wanted[name]) if name in wanted else body, end]
    return b"".join(pieces)


def listing(files: Mapping[str, bytes], own: str) -> bytes:
    """Return the RECORD of a new wheel with these files; ``own`` is its own path, whose row has no hash."""
    blank = hashlib.sha256().hexdigest()  # `update` fills in no row without a hash
    rows = b"".join(_encode(f"{path},sha256={blank},0\n") for path in files)
    return update(rows, files) + _encode(f"{own},,\n")


def without(record: bytes, paths: Iterable[str]) -> bytes:
    """Return the RECORD without the rows of these files."""
    gone = set(map(_encode, paths))
    return _lead(record) + b"".join(body + end for name, body, end in _rows(record) if name not in gone)


def unhashed(record: bytes, path: str) -> bytes:
    """Return the RECORD with no hash and size in the row of `path`, as pip lists what it compiles."""
    wanted, pieces = _encode(path), [_lead(record)]
    for name, body, end in _rows(record):
        first, *others = _FIELDS.findall(body) if name == wanted else [body]
        pieces += [first, b"," * len(others), end]
    return b"".join(pieces)


def quoted(record: bytes, path: str) -> bytes:
    """Return the RECORD with the path of `path`'s row in quotes, which every reader takes, and no installer writes.

    So a row of ours over somebody's edit is told from the installer's own, whatever becomes of the receipt.
    """
    pieces = [_lead(record)]
    for name, body, end in _rows(record):
        if name == _encode(path) and body[:1] != b'"':
            body = b'"%b"%b' % (name, body[len(name) :])
        pieces += [body, end]
    return b"".join(pieces)


def row(record: bytes, path: str) -> str | None:
    """Return the row of `path` without its line end (several rows: joined by a newline), None if it is not listed.

    Bytes that are not UTF-8 become surrogates, which JSON can express.
    """
    found = [body for name, body, _ in _rows(record) if name == _encode(path)]
    return b"\n".join(found).decode("utf-8", "surrogateescape") if found else None


def lists(record: bytes, path: str, data: bytes) -> bool:
    """Return whether an installer's row has the hash and size of a file's bytes: a row of ours is `quoted`."""
    wanted = f"{path},sha256={_base64(hashlib.sha256(data).digest())},{len(data)}"
    return row(record, path) == wanted


def has_digest(row: str, sha256: str) -> bool:
    """Return whether a row has this hash, which is in hex."""
    return f"sha256={_base64(bytes.fromhex(sha256))}" in row


def restore(record: bytes, path: str, original: str) -> bytes:
    """Return the RECORD with the row that `row` returned for `path`; unchanged if the file is no longer listed.

    Raises ValueError if `original` contains the row of another file, as a forged receipt may.
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


@lru_cache(maxsize=4)  # one RECORD of thousands of rows lists several files of a run
def _rows(record: bytes) -> Sequence[tuple[bytes, bytes, bytes]]:
    """Return path, text and line end of each row; joined, the rows are the file."""
    rows, position = [], len(_lead(record))
    while position < len(record):
        match = _ROW.match(record, position)
        assert match is not None  # always matches: a field may be empty
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
    # Keep the installer's algorithm if Python has it; otherwise use the one that every installer writes.
    name = name if name in hashlib.algorithms_guaranteed and not name.startswith("shake") else "sha256"
    return f"{name}={_base64(hashlib.new(name, data).digest())}".encode()


def _base64(digest: bytes) -> str:
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _size(old: bytes, data: bytes) -> bytes:
    return str(len(data)).encode()
