"""One edit of a function: which statements change, and how."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import libcst as cst

    Statements = list[cst.BaseStatement]


class Edit(NamedTuple):
    """A change of the statements from line ``first`` to line ``last`` of the file (counted from 1, inclusive)."""

    first: int
    last: int
    change: Callable[[Statements], Statements]
    """Takes the LibCST nodes of exactly these statements and returns the nodes that replace them."""
