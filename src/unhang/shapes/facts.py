"""The JSON files of fixes and of the matrix."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from unhang.errors import UnhangError
from unhang.plugins import packs

_CURE = (
    "settle it. In compat/, take either side with `git checkout --theirs PATH`; then `nox -s sweep -- --fix ID` writes "
    "compat/data/ID.json anew, and `nox -s sweep` the files of all fixes"
)


def known(path: str) -> Any:
    """Return the document of a JSON file; an empty one if it is missing, as of a fix that was never swept.

    Raises as ``read``.
    """
    try:
        return read(path)
    except (FileNotFoundError, NotADirectoryError):
        return {}


def read(path: str) -> Any:
    """Return the document of a JSON file. Raises OSError, and as ``parsed``."""
    return parsed(path, packs.read(path).decode())


def lacking(document: Mapping[str, Any]) -> str:
    """Return the first statement or upstream that the facts of a fix name and do not have; empty if there is none."""
    named = [it["outline"] for it in document["shapes"].values() if "outline" in it]
    named += [name for block in document["blocks"].values() for name in block.split()]
    lost = [name for name in named if name not in document["kinds"] and name not in document["blocks"]]
    lost += [upstream for name in document["releases"] if (upstream := name.split(" ")[0]) not in document["targets"]]
    return lost[0] if lost else ""


def parsed(path: str, text: str, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """Return the document in the text of a file; ``pairs`` makes its objects.

    Raises UnhangError ``conflict-markers`` if git left some in it, else ValueError.
    """
    try:
        return json.loads(text, object_pairs_hook=pairs)
    except ValueError:
        if "\n<<<<<<< " in f"\n{text}":
            raise UnhangError("conflict-markers", "git left conflict markers in it", path=path, hint=_CURE) from None
        raise
