"""Values of a document that somebody else wrote: each is of the kind that its format says, or the file is damaged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unhang.errors import UnhangError

Table = Mapping[str, Any]


LONGEST = 10_000
"""Characters of a requirement, without its hashes, or of a file's name: longer ones are no such thing."""
MOST = 100
"""Pins of upstreams in one file. A lock file has a few, also with a fork for each platform."""


class DamagedError(ValueError):
    """A file is not what its format says; the message says what is wrong with it."""


def no_reader(why: str) -> UnhangError:
    """Return the error of a format whose reader is not installed."""
    return UnhangError("no-lock-reader", why, hint="pip install 'unhang[lock]'")


def require(version: object, *majors: int) -> None:
    """Raise DamagedError unless a format's version begins with one of these: another may mean something else."""
    if str(version).partition(".")[0] not in map(str, majors):
        known = " or ".join(map(str, majors))
        raise DamagedError(f"its format has version {version}, and unhang knows version {known} of it")


def text(table: Table, key: str) -> str:
    """Return the text of a key; empty if it is not there. Raises DamagedError."""
    return _of(table, key, str) or ""


def table(table: Table, key: str) -> Table:
    """Return the table of a key; empty if it is not there. Raises DamagedError."""
    return _of(table, key, dict) or {}


def tables(table: Table, key: str) -> list[Table]:
    """Return the tables in the list of a key; none if it is not there. Raises DamagedError."""
    return _items(table, key, dict)


def texts(table: Table, key: str) -> list[str]:
    """Return the texts in the list of a key; none if it is not there. Raises DamagedError."""
    return _items(table, key, str)


def _items(table: Table, key: str, kind: type) -> list[Any]:
    items = _of(table, key, list) or []
    if wrong := [item for item in items if not isinstance(item, kind)]:
        raise DamagedError(f"{key!r} has an item of type {type(wrong[0]).__name__}")
    return items


def _of(table: Table, key: str, kind: type) -> Any:
    value = table.get(key)
    if value is not None and not isinstance(value, kind):
        raise DamagedError(f"{key!r} is of type {type(value).__name__}")
    return value
