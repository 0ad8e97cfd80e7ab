"""What the options of a run have left out although it is needed here."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from unhang.errors import UnhangError
from unhang.judge.decide import NEEDED
from unhang.shapes import catalog
from unhang.survey.verdicts import Survey, again

if TYPE_CHECKING:
    from unhang.records import Request


def left_out(seen: Survey, request: Request) -> tuple[str, ...]:
    """Return the fixes that are needed where a survey looked, may strike the job, and were left out by an option."""
    if request.image or not any(name in ("--fix", "--skip", "--kind") for name, _ in request.chosen):
        return ()
    known = {it.target.fix for it in seen.findings}.union(request.fixes)
    rest = tuple(name for name in catalog.fixes() if name not in known)
    found: set[str] = set()
    with suppress(UnhangError):  # it is no part of what was asked for
        others = again(seen.search, request._replace(fixes=rest, companions=(), accepted=())) if rest else seen
        found = {it.target.fix for it in others.findings if it.verdict.verdict == NEEDED and it.left}
    return tuple(name for name in rest if name in found)
