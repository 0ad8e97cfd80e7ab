"""What the sweep reads: file contents, the releases that have them, and the decisions that people made."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from unhang.shapes import catalog

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


def decisions() -> list[dict[str, str]]:
    """Return what people decided of a shape: the rows of the manifests, each with its ``fix``."""
    return [{"fix": fix.id, **row} for fix in catalog.fixes().values() for row in fix.manifest.get("decisions", ())]
