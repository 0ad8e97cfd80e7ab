"""Whether the defect of a fix strikes a job, and whether the fix would harm it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from unhang.job import condition
from unhang.job.condition import Answer, Look
from unhang.shapes.catalog import Fix, LeaveOut

STRIKES, CANNOT, UNKNOWN = "strikes", "cannot-strike", "unknown"


class Harm(NamedTuple):
    """What a fix would do to a job, or may."""

    leave_out: LeaveOut
    holds: bool | None
    """Whether the job is such a one; None if that is not known."""
    names: tuple[str, ...]
    """The settings and facts that decide it, or would."""


class Struck(NamedTuple):
    """What a fix is to a job."""

    word: str
    """``strikes``, ``cannot-strike`` or ``unknown``."""
    names: tuple[str, ...] = ()
    """The settings and facts that decide it; or, if it is unknown, those that would."""
    harms: tuple[Harm, ...] = ()
    """The entries of ``leave-out`` that hold, or may."""


NO_JOB = (lambda name: None,)
"""What is known of a job of which nothing was said."""


def judged(fix: Fix, roles: Sequence[Look] = NO_JOB) -> Struck:
    """Return what a fix is to a job, given what is known of each of its roles, such as verl's actor and critic.

    A job is struck where one role is, and harmed where one is. Raises ``condition.BadConditionError``.
    """
    found = _any([condition.answer(fix.strikes, look) for look in roles]) if fix.strikes else Answer(None, ())
    word = {True: STRIKES, False: CANNOT, None: UNKNOWN}[found.holds]
    told = [(each, _any([condition.answer(each.condition, look) for look in roles])) for each in fix.leave_out]
    return Struck(word, found.names, tuple(Harm(each, *it) for each, it in told if it.holds is not False))


def _any(answers: Sequence[Answer]) -> Answer:
    """Return the answer of all roles together: true where one is, false where all are."""
    for wanted in (True, None):
        if found := [it for it in answers if it.holds is wanted]:
            return found[0] if wanted else Answer(None, _joined(found))
    return Answer(False, _joined(answers))


def _joined(answers: Sequence[Answer]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for it in answers for name in it.names))
