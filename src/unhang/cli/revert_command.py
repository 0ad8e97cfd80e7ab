"""``unhang revert``: restore the original bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.cli.ending import Ending, clause, look_again
from unhang.cli.requests import request
from unhang.find.bytecode import caches
from unhang.shapes import catalog
from unhang.store import revert as store
from unhang.store.roots import journal_left, tidy
from unhang.survey.search import find, nothing_found
from unhang.survey.verdicts import Survey, again, unlisted
from unhang.tell import console
from unhang.tell.report import Report

if TYPE_CHECKING:
    import argparse

    from unhang.records import Request, Search
    from unhang.store.revert import Reverted


def run(options: argparse.Namespace) -> int:
    """Run ``unhang revert``: return 0 if the original bytes are back; 1 if an edit prevents it, or without receipt."""
    known = catalog.fixes()
    options.fix, options.gone = ([name for name in options.fix if (name in known) is there] for there in (True, False))
    wanted = request(options)
    search = find(wanted)
    for name in {*options.gone} - store.listed(search):
        catalog.fix(name)  # raises: no pack has it, and no receipt either
    if not search.installations and not wanted.allow_none and not store.has_state(search):
        raise nothing_found(search, wanted)
    recovered = tidy(search.roots, caches(search))
    console.say_each(recovered)
    if not store.has_state(search):
        if recovered:  # there was only an interrupted run, which is now taken back
            return _end(search, store.Reverted((), {}, (), {}), wanted, options.output_format)
        seen = again(search, wanted)
        if options.output_format == "text" and not options.verbose:  # what `check` would say tells nothing of it
            console.warnings(search)
        else:
            console.results(options.output_format, Report(search, wanted, seen.findings, frozenset(), False))
        where = f"there is no receipt in {', '.join(search.roots)}" if search.roots else "no installation was found"
        console.say(f"nothing to revert: {where}")
        console.without_receipt(unlisted(seen), search.environment)
        console.unlisted(search.roots)
        return 1
    return _end(search, store.revert(search, wanted, force=options.force), wanted, options.output_format)


def _end(search: Search, done: Reverted, wanted: Request, output_format: str) -> int:
    """Report what was done, and return the exit code; raise nothing but KeyboardInterrupt."""
    changes = [entry for one in done.done for entry, before, after in one.files if before != after]
    changed = frozenset(entry.path for entry in changes)
    taken = frozenset((entry.path, fixed.fix) for entry in changes for fixed in entry.fixes)
    ending = Ending(clause(len(changed), "file", "reverted"))
    interrupted = journal_left(done.left)
    with ending:
        console.say_each(done.recovered)
    seen = look_again(ending, Survey(search, (), (), interrupted), wanted)
    asleep = {path for one in done.done for path in one.asleep}
    left = [finding for finding in unlisted(seen, asleep) if finding.installation.real_root not in done.failed]
    with ending:
        what = Report(seen.search, wanted, seen.findings, changed, interrupted, failed=done.failed, taken_back=taken)
        console.results(output_format, what)
    with ending:
        for one in done.done:
            console.reverted(one)
        console.failed(done.failed)
        console.left(done.left)
        console.without_receipt(left, seen.environment)
        console.unlisted(search.roots)
    return 1 if done.failed or interrupted or left or any(one.refused for one in done.done) else 0
