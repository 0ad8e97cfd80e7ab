"""``unhang overlay DIR``: for installations that cannot be written, the rewritten modules in a folder of their own."""

from __future__ import annotations

import argparse
import os
import sys

from unhang import overlay, overlay_write, tell
from unhang.errors import UnhangError
from unhang.plan import plan
from unhang.report import Told
from unhang.scope import find, findings, originals
from unhang.state import interrupted


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
    planned = plan(found, originals(scope.environment), unverified=options.unverified)
    made = overlay.compose(planned.files)
    folder = os.path.abspath(options.folder)
    written = overlay_write.bring(folder, made)
    if written:
        overlay_write.compile_hook(folder, scope.environment.python or sys.executable)
    through = overlay.seen_through(found, planned.files, "in the overlay")
    tell.results(options, Told(scope.search, through, None, False))
    tell.overlay(folder, made.modules, planned, written)
    unmet = tell.unmet(scope, through, planned.blocked)
    tell.blocked(planned.blocked)
    tell.required(unmet)
    return 1 if planned.blocked or unmet else 0
