"""The upstreams as projects on the package index: ``compat/upstreams.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def load() -> Any:
    """Return the whole document; ``compat/schemas/upstreams.json`` describes it."""
    return json.loads(Path(__file__).with_name("upstreams.json").read_bytes())


def of_project(project: str, training: bool = True) -> list[str]:
    """Return the upstreams that a project's wheel or clone holds.

    megatron-core's repository holds Megatron-LM too, and so do its wheels from 0.17 on; ``training`` is False for a
    wheel that does not.
    """
    return [project, "megatron-lm"] if project == "megatron-core" and training else [project]
