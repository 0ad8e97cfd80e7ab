"""``unhang apply``: bring every needed fix into place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.cli.ending import Ending, clause, look_again
from unhang.cli.requests import request
from unhang.errors import UnhangError
from unhang.store import apply as store
from unhang.store.bytecode import caches
from unhang.store.roots import journal_left, tidy
from unhang.store.survey import again, find_some
from unhang.tell import console
from unhang.tell.report import Report

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from unhang.records import Request
    from unhang.store.apply import Applied
    from unhang.store.survey import Survey


def run(options: argparse.Namespace) -> int:
    """Run ``unhang apply``: return 0 if the end state is reached, changed or not; 1 if a fix is blocked or missing."""
    wanted = request(options)
    search = find_some(wanted)
    if options.dry_run:
        return _dry_run(again(search, wanted), wanted, options)
    console.say_each(tidy(search.roots, caches(search)))
    seen = again(search, wanted)
    try:
        done = store.apply(seen, wanted)
    except UnhangError as error:
        console.refused(error, seen.findings)
        raise
    return _end(seen, done, wanted, options.output_format)


def _dry_run(seen: Survey, wanted: Request, options: argparse.Namespace) -> int:
    """Report what ``apply`` would do, and return its exit code; write nothing, and take no lock.

    Raises UnhangError ``interrupted``, and as ``apply`` would where it may not write.
    """
    from unhang.deliver.preview import with_rewrites

    if seen.interrupted:  # `apply` finishes that run, or rolls it back, before it plans
        hint = "run `unhang apply` or `unhang revert` first"
        raise UnhangError("interrupted", "an earlier run was killed halfway", path=seen.environment.prefix, hint=hint)
    done = store.rehearse(seen)
    after = with_rewrites(seen.findings, done.files, "")
    unmet = console.unmet(wanted.required, after, done.plan.blocked)
    changed = frozenset(file.path for file in done.files)
    what = Report(seen.search, wanted, after, changed, False, failed=done.failed, dry_run=True)
    console.results(options.output_format, what)
    console.would_apply(done.files)
    _not_in_place(done, unmet)
    return 1 if done.plan.blocked or done.failed or unmet else 0


def _end(seen: Survey, done: Applied, wanted: Request, output_format: str) -> int:
    """Report what was done, and return the exit code; raise nothing but KeyboardInterrupt."""
    ending = Ending(clause(len(done.files), "file", "patched"))
    interrupted = journal_left(done.left)
    code = 1 if done.plan.blocked or done.failed or interrupted else 0
    unmet = [f"{fix} could not be judged" for fix in wanted.required]
    with ending:
        console.say_each(done.recovered)
        if done.files:
            seen = look_again(ending, seen, wanted, done.files)
        unmet = console.unmet(wanted.required, seen.findings, done.plan.blocked)
    with ending:
        changed = frozenset(file.path for file in done.files)
        what = Report(seen.search, wanted, seen.findings, changed, interrupted, failed=done.failed)
        console.results(output_format, what)
    with ending:
        console.applied(wanted, done, seen.receipts)
        console.left(done.left)
        _not_in_place(done, unmet)
    return 1 if unmet else code


def _not_in_place(done: Applied, unmet: Sequence[str]) -> None:
    """Name what is not in place, and why."""
    console.blocked(done.plan.blocked)
    console.failed(done.failed)
    console.required(unmet)
