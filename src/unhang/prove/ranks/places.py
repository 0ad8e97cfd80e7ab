"""How a place in the source is told: its path below the import path, its line, its function."""

from __future__ import annotations

import os
import sys

ROOTS: list[str] = []
"""Folders below which a path is told, beside those of ``sys.path``: where a variant's files lie."""


def place(file: str, line: int, function: str) -> str:
    """``megatron/core/utils.py:7 in f``; the whole path where it is below no root."""
    roots = [root for root in (*sys.path, *ROOTS) if root and file.startswith(root.rstrip(os.sep) + os.sep)]
    shown = file[len(max(roots, key=len).rstrip(os.sep)) + 1 :] if roots else file
    return f"{shown}:{line} in {function}"
