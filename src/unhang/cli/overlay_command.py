"""``unhang overlay DIR``: for installations that cannot be written, the rewritten modules in a folder of their own."""

from __future__ import annotations

import argparse
import os
import sys

from unhang.cli.scope import find, findings, originals
from unhang.deliver import overlay, overlay_folder
from unhang.errors import UnhangError
from unhang.rewrite.plan import plan
from unhang.store.state import interrupted
from unhang.tell import console
from unhang.tell.report import Report


def run(options: argparse.Namespace) -> int:
    """``unhang overlay DIR``: 0 if a job with ``PYTHONPATH=DIR`` has every needed fix; 1 if one is blocked or missing.

    Raises UnhangError ``interrupted``, and as ``scope.find``, ``plan.plan`` and ``overlay_write.bring`` do.
    """
    scope = find(options)
    state_dir = scope.environment.state_dir
    if interrupted(state_dir):  # half of the originals may be about to change
        hint = "run unhang apply or unhang revert where it can be written, then this again"
        message = "an earlier run on this environment was interrupted"
        raise UnhangError("interrupted", message, path=state_dir, hint=hint)
    found = findings(scope)
    planned = plan(found, originals(scope, found, options.unverified), unverified=options.unverified)
    made = overlay.compose(planned.files)
    folder = os.path.abspath(options.folder)
    written = overlay_folder.bring(folder, made)
    if written:
        overlay_folder.compile_hook(folder, scope.environment.python or sys.executable)
    through = overlay.seen_through(found, planned.files, "in the overlay")
    console.results(options.output_format, Report(scope.search, through, None, False))
    console.overlay(folder, made.modules, planned, written)
    unmet = console.unmet([fix.id for fix in scope.required], through, planned.blocked)
    console.blocked(planned.blocked)
    console.required(unmet)
    return 1 if planned.blocked or unmet else 0
