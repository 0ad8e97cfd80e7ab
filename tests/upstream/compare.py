"""Compares what tests came to before and after the fixes, test by test. Pure: no files, no processes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

PASSED, FAILED, SKIPPED, CUT, UNREACHED = "passed", "failed", "skipped", "cut", "unreached"
PASSED_BOTH, FAILED_BOTH, SKIPPED_BOTH = "passed both", "failed both", "skipped both"
FIXED, REGRESSION, DISPUTED, FLAKY, CHANGED = "fixed", "regression", "disputed", "flaky", "changed"
CUT_OFF, APPEARED, VANISHED = "cut", "appeared", "vanished"
CATEGORIES = (
    *(PASSED_BOTH, FAILED_BOTH, SKIPPED_BOTH, FIXED, REGRESSION, DISPUTED, FLAKY, CHANGED),
    *(CUT_OFF, APPEARED, VANISHED),
)
_WORST = (FAILED, CUT, UNREACHED, PASSED, SKIPPED)
_BOTH = {PASSED: PASSED_BOTH, FAILED: FAILED_BOTH, SKIPPED: SKIPPED_BOTH, CUT: CUT_OFF}


class Answer(NamedTuple):
    """What one test came to in one run."""

    outcome: str
    """``passed``, ``failed`` (also in its setup, or as its process died), ``skipped`` (also: failed, as expected),
    ``cut`` (it ran when the deadline of its file came), or ``unreached`` (it was collected, and never started)."""
    seconds: float = 0.0
    told: str = ""
    """The end of its traceback, or why it was skipped."""
    entered: tuple[str, ...] = ()
    """The fixes of which it has entered a function that they rewrite, on any rank."""


Run = Mapping[str, Answer]
"""One run of one file on one side, by test id."""


class Line(NamedTuple):
    """One test on both sides, over all runs."""

    id: str
    category: str
    before: tuple[Answer, ...]
    after: tuple[Answer, ...]
    reason: str = ""
    """Of a disputed test: why what it asserts is wrong. Of another: what our data says of it, if anything."""


def of_ranks(ranks: Sequence[Run]) -> dict[str, Answer]:
    """One answer for each test that all ranks ran together: the worst one counts, and says which rank gave it.

    A test that one rank alone has passed, and others skipped, has passed. Raises nothing.
    """
    found: dict[str, Answer] = {}
    for id in dict.fromkeys(id for rank in ranks for id in rank):
        answers = [(number, rank.get(id, Answer(UNREACHED))) for number, rank in enumerate(ranks)]
        number, worst = min(answers, key=lambda one: _WORST.index(one[1].outcome))
        told = f"rank {number}: {worst.told}" if worst.told and len(ranks) > 1 else worst.told
        entered = tuple(sorted({fix for _, answer in answers for fix in answer.entered}))
        found[id] = Answer(worst.outcome, max(answer.seconds for _, answer in answers), told, entered)
    return found


def differs(before: Run, after: Run) -> bool:
    """Whether a file has to be run again, for a test whose answers are not the same on both sides.

    Where the deadline cut both, which tests it left unreached is no answer.
    """
    cut = all(any(one.outcome == CUT for one in run.values()) for run in (before, after))
    for id in {*before, *after}:
        pair = {run[id].outcome if id in run else None for run in (before, after)}
        if len(pair) > 1 and not (cut and UNREACHED in pair):
            return True
    return False


def compare(before: Sequence[Run], after: Sequence[Run], disputed: Mapping[str, str] | None = None) -> list[Line]:
    """A line for each test of one file, in the order in which they were collected.

    ``before`` and ``after`` are the runs of each side, the first ones and those that were made since they differed.
    ``disputed`` gives a reason by the start of a test's id: such a test is no regression. Raises nothing.
    """
    lines = []
    for id in dict.fromkeys(id for run in (*before, *after) for id in run):
        sides = [tuple(run[id] for run in runs if id in run) for runs in (before, after)]
        category = _category(*sides)
        reason = next((why for start, why in (disputed or {}).items() if id.startswith(start)), "")
        if category in (REGRESSION, FLAKY) and reason:
            category = DISPUTED
        lines.append(Line(id, category, *sides, reason=reason if category == DISPUTED else ""))
    return lines


def failed_differently(line: Line) -> bool:
    """Whether a test that fails both ways fails for another reason after, as far as its last line tells."""
    return line.category == FAILED_BOTH and cause(line.before[-1].told) != cause(line.after[-1].told)


def cause(told: str) -> str:
    """The last line of a failure that says what was wrong, without what changes from run to run."""
    errors = [line for line in told.splitlines() if line.startswith("E  ")] or told.strip().splitlines()[-1:]
    # of an assertion, pytest tells the values in the lines that follow
    line = re.sub(r"^E\s+", "", errors[0]) if errors else ""
    line = re.sub(r"0x[0-9a-f]+", "0x..", line)
    line = re.sub(r"/\S*/(before|after)/", "", line)
    return re.sub(r"\b(port|pid|localhost:|127\.0\.0\.1:|\]:)\s*\d+", r"\1..", line).strip()[:160]


def explained(told: str, causes: Mapping[str, str]) -> str:
    """Why a test failed, in our own words: of the first phrase here that its cause has; empty if it has none."""
    line = cause(told)
    return next((why for phrase, why in causes.items() if phrase in line), "")


def _category(before: Sequence[Answer], after: Sequence[Answer]) -> str:
    if not before:
        return APPEARED
    if not after:
        return REGRESSION if any(one.outcome == PASSED for one in before) else VANISHED
    first, second = ({one.outcome for one in side} - {UNREACHED} for side in (before, after))
    if not first or not second:
        return CUT_OFF
    if len(first) > 1 or len(second) > 1:
        return FLAKY
    (was,), (is_now,) = first, second
    if was == is_now:
        return _BOTH[was]
    if is_now == CUT and any(one.outcome == UNREACHED for one in after):
        return CUT_OFF  # the deadline has come at other tests too: a slow machine, and not a hang in this one
    if was == PASSED or (was == SKIPPED and is_now in (FAILED, CUT)):
        return REGRESSION
    return FIXED if is_now == PASSED else CHANGED
