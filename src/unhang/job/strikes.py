"""Whether the defect of a fix strikes a job, and whether the fix would harm it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from unhang.shapes.catalog import Fix, LeaveOut

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unhang.job.condition import Answer, Look

STRIKES, CANNOT, UNKNOWN = "strikes", "cannot-strike", "unknown"


_DOES = {
    "aborts": "abort {}",
    "hangs": "hang {}",
    "worse-values": "make the values of {} worse",
    "slower": "make {} slower",
}


class Harm(NamedTuple):
    """What a fix would do to a job, or may."""

    leave_out: LeaveOut
    holds: bool | None
    """Whether the job is such a one; None if that is not known."""
    names: tuple[str, ...]
    """The settings and facts that decide it, or would."""

    @property
    def condition(self) -> str:
        """The condition, as it is printed: one that is a fact alone has no quotes."""
        text = self.leave_out.condition.strip()
        return text[1:-1] if text[0] == text[-1] == '"' and '"' not in text[1:-1] else text

    @property
    def words(self) -> str:
        """What it does, and to which job."""
        if self.holds:
            return f"would {_DOES[self.leave_out.effect].format('this job')} ({self.condition})"
        return f"may {_DOES[self.leave_out.effect].format('a job')} ({self.condition})"

    @property
    def sentence(self) -> str:
        """The same, and why."""
        return f"{self.words}: {self.leave_out.why}"

    def is_meant(self, text: str) -> bool:
        """Return whether a user has written this condition; quotes and spaces may differ, as a shell takes some."""
        one, other = ("".join(it.replace('"', "").replace("'", "").split()) for it in (text, self.condition))
        return one == other


class Struck(NamedTuple):
    """What a fix is to a job."""

    word: str
    """``strikes``, ``cannot-strike`` or ``unknown``."""
    names: tuple[str, ...] = ()
    """The settings and facts that decide it; or, if it is unknown, those that would."""
    harms: tuple[Harm, ...] = ()
    """The entries of ``leave-out`` that hold, or may."""


def unasked(fix: Fix) -> tuple[Harm, ...]:
    """Return what a fix may do to a job of which nothing was said: no condition is read."""
    return tuple(Harm(each, None, ()) for each in fix.leave_out)


def judged(fix: Fix, roles: Sequence[Look] = (lambda name: None,)) -> Struck:
    """Return what a fix is to a job, given what is known of each of its roles, such as verl's actor and critic.

    A job is struck where one role is, and harmed where one is. Raises ``condition.BadConditionError``.
    """
    from unhang.job import condition  # it imports ast
    from unhang.job.condition import Answer

    found = _any([condition.answer(fix.strikes, look) for look in roles]) if fix.strikes else Answer(None, ())
    word = {True: STRIKES, False: CANNOT, None: UNKNOWN}[found.holds]
    told = [(each, _any([condition.answer(each.condition, look) for look in roles])) for each in fix.leave_out]
    return Struck(word, found.names, tuple(Harm(each, *it) for each, it in told if it.holds is not False))


def _any(answers: Sequence[Answer]) -> Answer:
    """Return the answer of all roles together: true where one is, false where all are."""
    for wanted in (True, None):
        if found := [it for it in answers if it.holds is wanted]:
            return found[0] if wanted else found[0]._replace(names=_joined(found))
    return answers[0]._replace(names=_joined(answers))


def _joined(answers: Sequence[Answer]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for it in answers for name in it.names))
