"""What the sweep reads: file contents, the releases that have them, and the decisions that people made."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parents[1]
"""The checkout's ``compat`` folder."""


class Content(NamedTuple):
    """The bytes of one file and their sha256, by which equal contents are examined only once."""

    sha256: str
    data: bytes


class Release(NamedTuple):
    """The target files of one release of one upstream, by path; None if it has no such file."""

    upstream: str
    version: str
    yanked: bool
    files: Mapping[str, Content | None]


def content(data: bytes) -> Content:
    """Return these bytes with their digest."""
    return Content(hashlib.sha256(data).hexdigest(), data)


def load(name: str) -> Any:
    """Return the rows of ``decisions.json`` or ``superseded.json``, given its name without the ending."""
    return json.loads((HERE / f"{name}.json").read_bytes())[name]


def reasons(compat: Path) -> dict[tuple[str, str], str]:
    """Return why a shape stays ``drifted``, by fix and shape: what a person wrote in ``decisions.json``."""
    rows = json.loads((compat / "decisions.json").read_bytes())["drifted"]
    return {(row["fix"], row["shape"]): row["why"] for row in rows}
