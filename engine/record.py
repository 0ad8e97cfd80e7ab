"""RECORD, the list of a wheel's files with hash and size: rewritten row by row, every other byte kept."""

from __future__ import annotations

from collections.abc import Mapping


def update(record: bytes, changed: Mapping[str, bytes]) -> bytes:
    """Give the rows of `changed` (posix path relative to site-packages -> the file's new bytes) their new hash and size.

    Rows of other files, unlisted files, rows without a hash, line ends and quoting stay as they are.
    Raises ValueError for a path that is absolute or climbs with `..`.
    """
    raise NotImplementedError


def row(record: bytes, path: str) -> str | None:
    """Return the text of the row of `path` without its line end (several rows: joined by a newline); None if unlisted.

    Bytes that are not UTF-8 come as surrogates, which JSON carries.
    """
    raise NotImplementedError


def restore(record: bytes, path: str, original: str) -> bytes:
    """Put back what `row` returned for `path`; unchanged where the file is not listed (any more)."""
    raise NotImplementedError
