"""``unhang overlay DIR``: the rewritten modules in a folder of their own, for installations that cannot be written."""

from __future__ import annotations

import argparse
import os
import sys

from unhang.cli.check_command import check
from unhang.cli.requests import request
from unhang.deliver import overlay, overlay_folder
from unhang.deliver.preview import with_rewrites
from unhang.errors import UnhangError
from unhang.store.survey import planned, survey
from unhang.tell import console
from unhang.tell.report import Report


def run(options: argparse.Namespace) -> int:
    """Return 0 if a job with ``PYTHONPATH=DIR`` has every needed fix, 1 if one is blocked or missing.

    With ``--check`` nothing is written. Raises UnhangError ``interrupted``, and as ``survey.survey``,
    ``survey.planned`` and ``overlay_folder.write`` do.
    """
    wanted = request(options)
    if options.check:
        return check(options, wanted._replace(as_imported=True, overlay=options.folder))
    seen = survey(wanted)
    if seen.interrupted:  # some of the originals may be about to change
        hint = "run unhang apply or unhang revert where it can be written, then this again"
        message = "an earlier run on this environment was interrupted"
        raise UnhangError("interrupted", message, path=seen.environment.prefix, hint=hint)
    plan = planned(seen, unverified=options.unverified)
    composed = overlay.compose(plan.files)
    folder = os.path.abspath(options.folder)
    written = overlay_folder.write(folder, composed)
    if written:
        overlay_folder.compile_hook(folder, seen.environment.python or sys.executable)
    after = with_rewrites(seen.findings, plan.files, "in the overlay")
    console.results(options.output_format, Report(seen.search, after, None, False))
    console.overlay(folder, composed.modules, plan, written)
    unmet = console.unmet(wanted.required, after, plan.blocked)
    console.blocked(plan.blocked)
    console.required(unmet)
    return 1 if plan.blocked or unmet else 0
