"""The commits that the sweep reads, by id: ``compat/swept.json``. What a clone has beyond them is not read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from unhang.compat.sweep.clones import Clone

NAME = "swept.json"


def read(compat: Path) -> dict[str, dict[str, str]]:
    """Return the commit of each branch, tag and pull request, by upstream and ref; nothing if there is no list yet."""
    path = compat / NAME
    found: dict[str, dict[str, str]] = json.loads(path.read_bytes())["swept"] if path.exists() else {}
    return found


def moved(before: Mapping[str, Mapping[str, str]], opened: Mapping[str, Clone]) -> dict[str, Mapping[str, str]]:
    """Return the list with what these clones have now. Pure."""
    return {**before, **{name: {**clone.refs, **clone.pulls} for name, clone in opened.items()}}
