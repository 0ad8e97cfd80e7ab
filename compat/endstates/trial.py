"""What the end state shows of a function that nobody has verified, untouched and rewritten.

``no-defect`` is said only where the run can tell: each statement that no known shape has must run, and each condition
in it must be true in one setting and false in another.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from unhang.compat.endstates.compare import GAP, fingerprint, tried
from unhang.compat.endstates.endstate import EndState, Outcome, Source, described
from unhang.compat.endstates.watched import WATCH, Unlike, Watched, moved

DEFECT, NO_DEFECT, NOT_RUN = "defect", "no-defect", "not-run"
_GAPS = (GAP, *(f"raises {name}" for name in ("AttributeError", "NameError", "TypeError", "KeyError")))
_GAPS += ("raises ImportError", "raises ModuleNotFoundError", "raises MemoryError", "raises RecursionError")
"""How the faults begin that may be the stand-ins', or the child's limits."""


class Record(NamedTuple):
    """The end state of that known shape."""

    settings: int
    failed: int
    """In how many it fails, rewritten or not: upstream refuses some."""
    failing: str
    """Which these are: ``compare.fingerprint``."""
    has_feature: bool


class Trial(NamedTuple):
    """What is shown of a function."""

    shows: str
    after: str
    """The same of its rewrite."""
    settings: int
    """In how many settings the untouched function ran."""
    why: str


def tell(
    endstate: EndState,
    before: Source,
    after: Source | None,
    unlike: Unlike,
    record: Record | None,
    beside_right: bool = False,
    begin: Callable[[], object] = lambda: None,
) -> Trial:
    """Run the function, and its rewrite if there is one, in every setting.

    ``beside_right``: what it depends on is right, so that the settings with a wrong one do not count. ``begin`` is
    called before each run.
    """
    settings = [it for it in endstate.configurations(before.function) if not (beside_right and endstate.concerned(it))]
    first = _Runs(endstate, before, unlike, begin)
    shows, why = _said(endstate, first, settings, record)
    ran = sum(not _is_gap(first.outcome(setting)) for setting in settings)
    lacks = record is None or record.has_feature
    if shows == NO_DEFECT and lacks and not endstate.has_feature(before):
        shows, why = (
            NOT_RUN,
            "the feature that the fix is about is not in it, or not in a form that the end state knows",
        )
    if after is None:
        return Trial(shows, NOT_RUN, ran, why or f"nothing is wrong in {ran} settings")
    then = _Runs(endstate, after, moved(unlike, before, after), begin)
    said, reason = _worse(endstate, first, then, settings) or _said(endstate, then, settings, record)
    if said == NO_DEFECT and shows == NOT_RUN:  # what holds for the one may hold for the other
        said, reason = NOT_RUN, why
    return Trial(
        shows, said, ran, "; rewritten: ".join(it or f"nothing is wrong in {ran} settings" for it in (why, reason))
    )


def is_right(
    endstate: EndState, source: Source, unlike: Unlike, begin: Callable[[], object]
) -> tuple[bool | None, str]:
    """Return whether a function on which targets depend is right; None if nothing is shown, and then why."""
    runs, settings = _Runs(endstate, source, unlike, begin), list(endstate.configurations(source.function))
    concerned = [setting for setting in settings if endstate.concerned(setting)]
    word, why = _said(endstate, runs, [it for it in settings if it not in concerned], None)
    gap = next((outcome for outcome in map(runs.outcome, concerned) if _is_gap(outcome)), None)
    if word != NO_DEFECT or gap:
        return None, why or ", ".join(gap.faults if gap else ())
    return not any(runs.outcome(setting).faults for setting in concerned), ""


def _said(endstate: EndState, runs: _Runs, settings: Sequence[Any], record: Record | None) -> tuple[str, str]:
    """Return what is shown of one function, and why. ``record`` is of the closest known one."""
    wrong: list[str] = []
    gaps: list[str] = []
    failing = [(setting, outcome) for setting in settings if (outcome := runs.outcome(setting)).faults]
    same = record is not None and fingerprint(failing) == record.failing
    for setting, outcome in [] if same else failing:
        control, concerned = endstate.control(setting), endstate.concerned(setting)
        why = f"{described(setting)}: {', '.join(sorted(outcome.faults))}"
        if _is_gap(outcome):
            gaps.append(why)
        elif control is not None and not runs.outcome(control).faults:
            return DEFECT, why
        elif control is not None or not concerned or record is not None:
            wrong.append(why)
    failed = 0 if record is None else record.failed
    if len(wrong) > failed and (not failed or record is None or record.settings == len(settings)):
        return DEFECT, wrong[0]
    if wrong or gaps:
        return NOT_RUN, gaps[0] if gaps else f"it fails where known shapes may fail too: {wrong[0]}"
    doubt = next(runs.doubts(settings), "")
    return (NOT_RUN, doubt) if doubt else (NO_DEFECT, "")


def _worse(endstate: EndState, first: _Runs, then: _Runs, settings: Sequence[Any]) -> tuple[str, str] | None:
    """Return what is shown of a rewrite that breaks what worked; None if it breaks nothing."""
    for setting in settings:
        before, after = first.outcome(setting), then.outcome(setting)
        if before.faults or _is_gap(after):
            continue
        if after.faults:
            return DEFECT, f"worse with {described(setting)}: {', '.join(sorted(after.faults))}"
        if not endstate.concerned(setting) and not endstate.same(before.seen, after.seen):
            return DEFECT, f"something else is seen with {described(setting)}, where the fix plays no part"
    return None


def _is_gap(outcome: Outcome) -> bool:
    return any(fault.startswith(_GAPS) for fault in outcome.faults)


class _Runs:
    """A function, and what it did in each setting."""

    def __init__(self, endstate: EndState, source: Source, unlike: Unlike, begin: Callable[[], object]) -> None:
        self.endstate, self.begin = endstate, begin
        self.watched = Watched(source, unlike, endstate.held)
        self.outcomes: dict[Any, Outcome] = {}

    def outcome(self, setting: Any) -> Outcome:
        if setting not in self.outcomes:
            self.begin()
            setattr(builtins, WATCH, self.watched.watch)
            self.outcomes[setting] = tried(self.endstate, self.watched.source, setting)
        return self.outcomes[setting]

    def doubts(self, settings: Sequence[Any]) -> Iterator[str]:
        """Yield why the runs do not tell what the function does."""
        yield from self.watched.doubts()
        for line, source in self.watched.without():
            for setting in settings:
                self.begin()
                if tried(self.endstate, source, setting).faults and not self.outcome(setting).faults:
                    break
            else:
                yield f"line {line} is in no known shape, and the end state does not show what it is for"
