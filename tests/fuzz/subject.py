"""What the fuzz needs of a fix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Fuzz(NamedTuple):
    """What is mutated of a fix. A fix's test module has one of these: ``FUZZ``."""

    cases: Sequence[Any]
    """The real functions, as the fix's own tests have them."""
    share: int
    """The fix's share of the mutations of `nox -s fuzz`. Shorter code has fewer different mutants."""
    focus: str
    """What the fix is about, as a regular expression: every second mutation is made there."""
    examples: int
    """How many mutations the bounded part tries."""
    every: int = 1
    """One in so many of the functions is mutated there, each of which takes some time before its first mutant."""
