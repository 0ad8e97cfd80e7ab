"""Checks for JSON that unhang reads back: receipts and journals, which a checkout may bring from anyone.

Each raises ValueError, which says what is wrong.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from typing import Any


def json_object(data: bytes) -> dict[str, Any]:
    """Return the JSON object that `data` is."""
    content: Any = None
    with suppress(ValueError, RecursionError):
        content = json.loads(data)
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object")
    return content


def field(value: Any, key: str, *types: type) -> Any:
    """Return `value[key]`, which must be of one of these types; a bool is no int."""
    found = value.get(key, ...) if isinstance(value, dict) else ...
    if type(found) not in types:
        raise ValueError(f"{key!r} is missing or of the wrong type")
    return found


def path(value: Any, key: str) -> str:
    """Return the path `value[key]`, which must be plain (`is_plain`)."""
    found: str = field(value, key, str)
    if not is_plain(found):
        raise ValueError(f"{key!r} is not a plain path below the root: {found!r}")
    return found


def is_plain(path: str) -> bool:
    """Return whether a path is relative, normalised, below its root, and one that the file system can hold."""
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError:  # a lone surrogate, which JSON can express
        return False
    is_below = not os.path.isabs(path) and path.split(os.sep)[0] not in (os.curdir, os.pardir)
    return is_below and os.path.normpath(path) == path and b"\0" not in encoded


def digest(value: Any, key: str) -> str:
    """Return the sha256 `value[key]`, in lowercase hex."""
    found: str = field(value, key, str)
    if not re.fullmatch("[0-9a-f]{64}", found):
        raise ValueError(f"{key!r} is not a sha256")
    return found
