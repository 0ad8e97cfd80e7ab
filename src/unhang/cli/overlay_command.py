"""``unhang overlay DIR``: the rewritten modules in a folder of their own, for installations that cannot be written."""

from __future__ import annotations

import argparse
import os

from unhang.cli.check_command import check
from unhang.cli.ending import Ending
from unhang.cli.requests import request
from unhang.deliver import overlay, overlay_folder
from unhang.errors import UnhangError
from unhang.find.bytecode import compiler
from unhang.suggest import RECOVERY, Hint
from unhang.survey.others import left_out
from unhang.survey.preview import with_rewrites
from unhang.survey.unlocked import planned_without_lock
from unhang.tell import console, report
from unhang.tell.report import Report


def run(options: argparse.Namespace) -> int:
    """Return 0 if a job with ``PYTHONPATH=DIR`` has every needed fix, 1 if one is blocked or missing.

    With ``--check`` nothing is written. Raises UnhangError ``interrupted``, and as
    ``survey.planned_without_lock`` and ``overlay_folder.write`` do.
    """
    wanted = request(options)._replace(writer=("overlay", options.folder))
    if options.check:
        return check(options, wanted._replace(as_imported=True, overlay=options.folder))
    seen, plan = planned_without_lock(wanted)
    if plan is None:  # some of the originals may be about to change
        hint = Hint(*RECOVERY, " where it can be written, then this again")
        message = "an earlier run on this environment was interrupted"
        raise UnhangError("interrupted", message, path=seen.environment.prefix, hint=hint)
    files = (*plan.files, *plan.stale)  # its loader runs no stale bytecode
    composed = overlay.compose(files)
    after = with_rewrites(seen.findings, files, "in the overlay")
    unmet = console.unmet(wanted.required, after, plan.blocked)
    folder = os.path.abspath(options.folder)
    written = overlay_folder.write(folder, composed)
    written |= overlay_folder.clear(folder, composed, seen.search)
    ending, shown = Ending("the overlay is in place"), frozenset[str]()
    with ending:
        if written and (python := compiler(seen.search)):
            overlay_folder.compile_hook(folder, python)
    with ending:
        shown = console.results(options.output_format, Report(seen.search, wanted, after, None, False))
    with ending:
        console.overlay(folder, composed.modules, plan, written, wanted, after)
        if others := report.left_out(left_out(seen, wanted), wanted):
            console.note(others)
        if written:
            console.say_each(f"note: {path} could not be removed" for path in overlay_folder.left(folder, composed))
        console.blocked(plan.blocked, shown)
        console.required(console.unmet(wanted.required, after, plan.blocked, shown))
    return 1 if plan.blocked or unmet else 0
