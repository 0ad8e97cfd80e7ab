"""``unhang apply``: bring every needed fix into place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.cli.requests import request
from unhang.errors import UnhangError
from unhang.store import apply as store
from unhang.store.bytecode import caches
from unhang.store.roots import tidy
from unhang.store.survey import again, find_some
from unhang.tell import console
from unhang.tell.report import Report

if TYPE_CHECKING:
    import argparse

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
        done = store.apply(seen, wanted, unverified=options.unverified)
    except UnhangError as error:
        console.refused(error, seen.findings)
        raise
    console.say_each(done.recovered)
    if done.files:
        seen = again(search, wanted)
    changed = frozenset(file.path for file in done.files)
    console.results(options.output_format, Report(seen.search, seen.findings, changed, False, failed=done.failed))
    console.applied(wanted, done, seen.receipts)
    return _end(seen, done, wanted)


def _dry_run(seen: Survey, wanted: Request, options: argparse.Namespace) -> int:
    """Report what ``apply`` would do, and return its exit code; write nothing, and take no lock.

    Raises UnhangError ``interrupted``, and as ``apply`` would where it may not write.
    """
    from unhang.deliver.preview import with_rewrites

    if seen.interrupted:  # `apply` finishes that run, or rolls it back, before it plans
        hint = "run `unhang apply` or `unhang revert` first"
        raise UnhangError("interrupted", "an earlier run was killed halfway", path=seen.environment.prefix, hint=hint)
    done = store.rehearse(seen, unverified=options.unverified)
    after = with_rewrites(seen.findings, done.files, "")
    changed = frozenset(file.path for file in done.files)
    what = Report(seen.search, after, changed, False, failed=done.failed, dry_run=True)
    console.results(options.output_format, what)
    console.would_apply(done.files)
    return _end(seen._replace(findings=tuple(after)), done, wanted)


def _end(seen: Survey, done: Applied, wanted: Request) -> int:
    """Name what is not in place, and return the exit code."""
    unmet = console.unmet(wanted.required, seen.findings, done.plan.blocked)
    console.blocked(done.plan.blocked)
    console.failed(done.failed)
    console.required(unmet)
    return 1 if done.plan.blocked or unmet or done.failed else 0
