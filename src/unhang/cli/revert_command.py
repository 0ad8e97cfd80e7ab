"""``unhang revert``: restore the original bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.cli.requests import request
from unhang.store import revert as store
from unhang.store.bytecode import caches
from unhang.store.roots import tidy
from unhang.store.survey import again, find, nothing_found
from unhang.tell import console
from unhang.tell.report import Report

if TYPE_CHECKING:
    import argparse

    from unhang.judge.findings import Finding
    from unhang.store.survey import Survey


def run(options: argparse.Namespace) -> int:
    """Run ``unhang revert``: return 0 if the original bytes are back; 1 if an edit prevents it, or without receipt."""
    wanted = request(options)
    search = find(wanted)
    if not search.installations and not wanted.allow_none and not store.has_state(search):
        raise nothing_found(search, wanted)
    recovered = tidy(search.roots, caches(search))
    console.say_each(recovered)
    if not store.has_state(search):
        changed: frozenset[str] = frozenset()
        seen = again(search, wanted)
        console.results(options.output_format, Report(search, seen.findings, changed, False))
        if recovered:  # there was only an interrupted run, which is now taken back
            return 0
        console.say(f"nothing to revert: there is no receipt in {', '.join(search.roots)}")
        console.without_receipt(_unlisted(seen), search.environment)
        return 1
    done = store.revert(search, wanted, force=options.force)
    console.say_each(done.recovered)
    changed = frozenset(entry.path for one in done.done for entry, _, _ in one.files)
    seen = again(search, wanted)
    what = Report(seen.search, seen.findings, changed, False, failed=done.failed, reverts=True)
    console.results(options.output_format, what)
    for one in done.done:
        console.reverted(one)
    console.failed(done.failed)
    left = [finding for finding in _unlisted(seen) if finding.installation.real_root not in done.failed]
    console.without_receipt(left, seen.environment)
    return 1 if done.failed or left or any(one.refused for one in done.done) else 0


def _unlisted(seen: Survey) -> list[Finding]:
    """Return the rewritten functions whose file no receipt lists."""
    listed = {entry.path for receipt in seen.receipts for entry in receipt.files}
    return [finding for finding in seen.findings if finding.rewritten and finding.seen.real not in listed]
