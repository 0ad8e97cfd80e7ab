"""Puts the scripts of .ci on the path."""

import sys
from pathlib import Path

import support.checkout  # noqa: F401 - makes unhang.compat.sweep importable

sys.path.insert(0, str(Path(__file__).parents[2] / ".ci"))
