"""The answer of ``unhang prove`` for one fix on one installation, for one case: a record."""

from __future__ import annotations

from typing import NamedTuple

from unhang.judge.decide import APPLIED
from unhang.prove.cases import Outcome

PROVEN, UNAFFECTED, PATCHED_PASSES = "proven", "unaffected", "patched-passes"
SAFEGUARD = "safeguard"
NOTHING, UNKNOWN, FAILED = "nothing-to-prove", "unknown", "failed"


class Line(NamedTuple):
    """The answer for one fix on one installation, for one case."""

    upstream: str
    version: str | None
    location: str
    fix: str
    verdict: str
    """The verdict of ``check``."""
    answer: str
    """``proven`` (untouched it hangs, crashes or differs; patched it does not), ``unaffected`` (both pass),
    ``patched-passes`` (the untouched source is missing), ``nothing-to-prove``, ``unknown`` (it cannot be shown here),
    or ``failed`` (the patched source does not pass)."""
    detail: str
    """The reason, where the outcomes do not show it, and remarks."""
    case: str = ""
    topology: str = ""
    untouched: Outcome | None = None
    patched: Outcome | None = None
    seconds: float = 0.0
    """Of both sides."""
    grade: str = ""
    """The fix's. The proof of a ``safeguard`` shows only the cause, or stand-ins take the place of what fails."""

    @property
    def would_fail(self) -> bool:
        """Whether the installed source is untouched and does not pass."""
        return self.answer == PROVEN and self.verdict != APPLIED
