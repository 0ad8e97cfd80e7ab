"""``unhang apply``: bring every needed fix into place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.cli.ending import Ending, clause, look_again
from unhang.cli.requests import request
from unhang.errors import UnhangError
from unhang.find.bytecode import caches
from unhang.store.revert import forget
from unhang.store.roots import journal_left, tidy
from unhang.suggest import RECOVERY, Hint
from unhang.survey import apply as application
from unhang.survey.others import left_out
from unhang.survey.search import find_some
from unhang.survey.verdicts import again
from unhang.tell import console, report
from unhang.tell.report import Report

if TYPE_CHECKING:
    import argparse
    from collections.abc import Collection, Sequence

    from unhang.records import Request
    from unhang.survey.apply import Applied
    from unhang.survey.verdicts import Survey


def run(options: argparse.Namespace) -> int:
    """Run ``unhang apply``: return 0 if all is in place that is needed; 1 if a fix is blocked or missing."""
    wanted = request(options)
    search = find_some(wanted)
    if not options.dry_run:
        console.say_each(tidy(search.roots, caches(search)))
        for sentence in forget(search, wanted):
            console.note(f"note: {sentence}")
    seen = again(search, wanted)
    try:
        if options.dry_run:
            return _dry_run(seen, wanted, options)
        done = application.apply(seen, wanted)
    except UnhangError as error:
        console.refused(error, seen.findings)
        raise
    return _end(seen, done, wanted, options.output_format)


def _dry_run(seen: Survey, wanted: Request, options: argparse.Namespace) -> int:
    """Report what ``apply`` would do, and return its exit code; write nothing, and take no lock.

    Raises UnhangError ``interrupted``, and as ``apply`` would where it may not write.
    """
    from unhang.survey.preview import with_rewrites

    if seen.interrupted:  # `apply` finishes that run, or rolls it back, before it plans
        hint = Hint(*RECOVERY, " first")
        raise UnhangError("interrupted", "an earlier run was killed halfway", path=seen.environment.prefix, hint=hint)
    done = application.rehearse(seen, wanted)
    after = with_rewrites(seen.findings, (*done.files, *done.cleared), "")
    changed = _changed(done)
    what = Report(seen.search, wanted, after, changed, False, failed=done.failed, dry_run=True)
    shown = console.results(options.output_format, what)
    console.would_clear(done.cleared)
    console.would_apply(done.files, wanted, after, report.left_out(left_out(seen, wanted), wanted))
    unmet = console.unmet(wanted.required, after, done.plan.blocked, shown)
    _not_in_place(done, unmet, shown)
    return 1 if done.plan.blocked or done.failed or unmet else 0


def _end(seen: Survey, done: Applied, wanted: Request, output_format: str) -> int:
    """Report what was done, and return the exit code; raise nothing but KeyboardInterrupt."""
    rid = clause(len(done.cleared), "file", "rid of stale bytecode")
    ending = Ending(rid if done.cleared and not done.files else clause(len(done.files), "file", "patched"))
    interrupted = journal_left(done.left)
    code = 1 if done.plan.blocked or done.failed or interrupted else 0
    unmet, shown = [f"{fix} could not be judged" for fix in wanted.required], frozenset[str]()
    with ending:
        console.say_each(done.recovered)
        if done.files or done.cleared:
            seen = look_again(ending, seen, wanted, (*done.files, *done.cleared))
        unmet = console.unmet(wanted.required, seen.findings, done.plan.blocked)
    with ending:
        changed = _changed(done)
        what = Report(seen.search, wanted, seen.findings, changed, interrupted, failed=done.failed)
        shown = console.results(output_format, what)
        unmet = console.unmet(wanted.required, seen.findings, done.plan.blocked, shown)
    with ending:
        console.accepted(wanted, seen.findings)
        others = report.left_out(left_out(seen, wanted), wanted)
        console.applied(wanted, done, seen.receipts, seen.findings, others)
        console.left(done.left)
        _not_in_place(done, unmet, shown)
    return 1 if unmet else code


def _changed(done: Applied) -> frozenset[str]:
    """Return the files that were written or deleted."""
    return frozenset((*(file.path for file in done.files), *(path for file in done.cleared for path in file.bytecode)))


def _not_in_place(done: Applied, unmet: Sequence[str], shown: Collection[str]) -> None:
    """Name what is not in place, and why, unless that was shown."""
    console.blocked(done.plan.blocked, shown)
    console.failed(done.failed)
    console.required(unmet)
