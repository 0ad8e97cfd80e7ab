"""What the sweep works on: contents, the releases and commits that have them, and the lists of this folder."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Content(NamedTuple):
    """The bytes of one file, and their digest: the same content is looked at once, wherever it was found."""

    sha256: str
    data: bytes


class Release(NamedTuple):
    """The target files of one release of one upstream, by path; None where it has no such file."""

    upstream: str
    version: str
    yanked: bool
    files: Mapping[str, Content | None]


def content(data: bytes) -> Content:
    """These bytes, with their digest."""
    return Content(hashlib.sha256(data).hexdigest(), data)


def upstreams_of(project: str) -> list[str]:
    """The upstreams that a project's wheels and clone can hold: megatron-core's hold Megatron-LM, from 0.17 on."""
    return [project, "megatron-lm"] if project == "megatron-core" else [project]


def load(name: str) -> Any:
    """A JSON file of this folder: ``wheels.json``, ``upstreams.json``, ``decisions.json`` or ``superseded.json``."""
    with open(os.path.join(HERE, name), encoding="utf-8") as file:
        return json.load(file)


def pins() -> list[dict[str, Any]]:
    """The pinned wheels, each with ``project``, ``version``, ``file``, ``sha256``, ``python`` and ``yanked``."""
    return rows(load("wheels.json"))


def rows(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of a ``wheels.json``, each with its ``project``."""
    return [{"project": project, **row} for project, rows in document["wheels"].items() for row in rows]
