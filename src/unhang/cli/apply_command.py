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


def run(options: argparse.Namespace) -> int:
    """Run ``unhang apply``: return 0 if the end state is reached, changed or not; 1 if a fix is blocked or missing."""
    wanted = request(options)
    search = find_some(wanted)
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
    unmet = console.unmet(wanted.required, seen.findings, done.plan.blocked)
    console.blocked(done.plan.blocked)
    console.failed(done.failed)
    console.required(unmet)
    return 1 if done.plan.blocked or unmet or done.failed else 0
