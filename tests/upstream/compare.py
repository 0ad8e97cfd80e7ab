"""Compares the outcomes of tests before and after the fixes, test by test. Pure."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

PASSED, FAILED, SKIPPED, CUT, UNREACHED = "passed", "failed", "skipped", "cut", "unreached"
PASSED_BOTH, FAILED_BOTH, SKIPPED_BOTH = "passed both", "failed both", "skipped both"
FIXED, REGRESSION, DISPUTED, FLAKY, CHANGED = "fixed", "regression", "disputed", "flaky", "changed"
CUT_OFF, APPEARED, VANISHED = "cut", "appeared", "vanished"
CATEGORIES: tuple[str, ...] = (PASSED_BOTH, FAILED_BOTH, SKIPPED_BOTH, FIXED, REGRESSION, DISPUTED, FLAKY, CHANGED)
CATEGORIES += (CUT_OFF, APPEARED, VANISHED)
_WORST = (FAILED, CUT, UNREACHED, PASSED, SKIPPED)
_BOTH = {PASSED: PASSED_BOTH, FAILED: FAILED_BOTH, SKIPPED: SKIPPED_BOTH, CUT: CUT_OFF}


class Answer(NamedTuple):
    """The outcome of one test in one run."""

    outcome: str
    """``passed``, ``failed`` (also in its setup, or because its process died), ``skipped`` (also an expected failure),
    ``cut`` (it was running at the deadline of its file), or ``unreached`` (it was collected but never started)."""
    output: str = ""
    """The end of its traceback, or why it was skipped."""
    executed: tuple[str, ...] = ()
    """The rewritten lines that it executed on any rank, as ``FILE:LINE``."""


Run = Mapping[str, Answer]
"""One run of one file on one side, by test id."""


class Line(NamedTuple):
    """One test on both sides, over all runs."""

    id: str
    category: str
    before: tuple[Answer, ...]
    after: tuple[Answer, ...]
    reason: str = ""
    """Why the assertion of a disputed test is wrong."""


def of_ranks(ranks: Sequence[Run]) -> dict[str, Answer]:
    """Return the worst answer of all ranks for each test, with the rank that gave it.

    A test that one rank passed and others skipped has passed.
    """
    found: dict[str, Answer] = {}
    for id in dict.fromkeys(id for rank in ranks for id in rank):
        answers = [(number, rank.get(id, Answer(UNREACHED))) for number, rank in enumerate(ranks)]
        number, worst = min(answers, key=lambda one: _WORST.index(one[1].outcome))
        output = f"rank {number}: {worst.output}" if worst.output and len(ranks) > 1 else worst.output
        executed = tuple(sorted({line for _, answer in answers for line in answer.executed}))
        found[id] = Answer(worst.outcome, output, executed)
    return found


def differs(before: Run, after: Run) -> bool:
    """Return whether a file must run again, because the answers of a test differ between the sides.

    Where the deadline cut both sides, unreached tests do not count.
    """
    cut = all(any(one.outcome == CUT for one in run.values()) for run in (before, after))
    for id in {*before, *after}:
        pair = {run[id].outcome if id in run else None for run in (before, after)}
        if len(pair) > 1 and not (cut and UNREACHED in pair):
            return True
    return False


def compare(before: Sequence[Run], after: Sequence[Run], disputed: Mapping[str, str] | None = None) -> list[Line]:
    """Return a line for each test of one file, in the order of collection.

    ``before`` and ``after`` are the runs of each side: the first ones, and repeats where they differed. ``disputed``
    maps the start of a test's id to the reason why it cannot be a regression.
    """
    lines = []
    for id in dict.fromkeys(id for run in (*before, *after) for id in run):
        was, is_now = (tuple(run[id] for run in runs if id in run) for runs in (before, after))
        category = _category(was, is_now)
        reason = next((why for start, why in (disputed or {}).items() if id.startswith(start)), "")
        if category in (REGRESSION, FLAKY) and reason:
            category = DISPUTED
        lines.append(Line(id, category, was, is_now, reason if category == DISPUTED else ""))
    return lines


def failed_differently(line: Line) -> bool:
    """Return whether a test fails on both sides for different reasons, by the last lines of its tracebacks."""
    return line.category == FAILED_BOTH and cause(line.before[-1].output) != cause(line.after[-1].output)


def cause(output: str) -> str:
    """Return the line that names the cause of a failure, without what changes from run to run."""
    errors = [line for line in output.splitlines() if line.startswith("E  ")] or output.strip().splitlines()[-1:]
    # pytest prints the values of an assertion in the lines that follow
    line = re.sub(r"^E\s+", "", errors[0]) if errors else ""
    line = re.sub(r"0x[0-9a-f]+", "0x..", line)
    line = re.sub(r"/\S*/(before|after)/", "", line)
    return re.sub(r"\b(port|pid|localhost:|127\.0\.0\.1:|\]:)\s*\d+", r"\1..", line).strip()[:160]


def explained(output: str, causes: Mapping[str, str]) -> str:
    """Return the explanation of the first phrase in ``causes`` that the cause of a failure contains, else empty."""
    line = cause(output)
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
        return CUT_OFF  # the deadline also came at other tests: a slow machine, not a hang of this test
    if was == PASSED or (was == SKIPPED and is_now in (FAILED, CUT)):
        return REGRESSION
    return FIXED if is_now == PASSED else CHANGED
