"""What a diagnosis says."""

from __future__ import annotations

from typing import NamedTuple

ANSWERS = ("known", "possible", "desync", "slow", "not-enough")
"""The best first."""


class Place(NamedTuple):
    """Some ranks that do the same, and the lines that say so."""

    ranks: tuple[int, ...]
    """Ascending."""
    doing: str
    """`wait in all_reduce number 12 of DATA_PARALLEL_GROUP_WITH_CP, [2] Float`, `are in no dump`, ..."""
    evidence: tuple[str, ...]
    """Frames, entries or lines, with their file; a few of them."""


class Answer(NamedTuple):
    """One answer. A diagnosis has several, the best first."""

    answer: str
    """One of ANSWERS."""
    fix: str
    """Of `known` and `possible`; else empty."""
    summary: str
    """One sentence."""
    places: tuple[Place, ...] = ()
    missing: tuple[str, ...] = ()
    """Of `possible`: what the evidence does not show; of `not-enough`: what to capture."""
    elsewhere: tuple[str, ...] = ()
    """Of a fix: the shapes of its function in which its defect hangs in other ways."""
