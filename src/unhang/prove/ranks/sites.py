"""Call sites in the source: path below the import path, line, function."""

from __future__ import annotations

import os
import sys

ROOTS: list[str] = []
"""Folders that paths are shown relative to, besides those of ``sys.path``: those of a variant's files."""


def site(file: str, line: int, function: str) -> str:
    """Return for example ``megatron/core/utils.py:7 in f``; with the whole path where the file is below no root."""
    roots = [root for root in (*sys.path, *ROOTS) if root and file.startswith(root.rstrip(os.sep) + os.sep)]
    shown = file[len(max(roots, key=len).rstrip(os.sep)) + 1 :] if roots else file
    return f"{shown}:{line} in {function}"
