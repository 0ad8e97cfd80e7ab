"""``unhang overlay DIR``: the rewritten modules in a folder of their own, for installations that cannot be written."""

from __future__ import annotations

import argparse
import os
import sys

from unhang.cli.scope import Scope, find, findings, originals
from unhang.deliver import overlay, overlay_folder
from unhang.deliver.preview import with_rewrites
from unhang.errors import UnhangError
from unhang.rewrite.plan import Finding, Plan, plan
from unhang.store.state import interrupted
from unhang.tell import console
from unhang.tell.report import Told


def run(options: argparse.Namespace) -> int:
    """Return 0 if a job with ``PYTHONPATH=DIR`` has every needed fix, 1 if one is blocked or missing.

    Raises UnhangError ``interrupted``, and as ``_plan`` and ``overlay_folder.write`` do.
    """
    scope, found, planned = _plan(options)
    composed = overlay.compose(planned.files)
    folder = os.path.abspath(options.folder)
    written = overlay_folder.write(folder, composed)
    if written:
        overlay_folder.compile_hook(folder, scope.environment.python or sys.executable)
    after = with_rewrites(found, planned.files, "in the overlay")
    console.results(options, Told(scope.search, after, None, False))
    console.overlay(folder, composed.modules, planned, written)
    unmet = console.unmet(scope, after, planned.blocked)
    console.blocked(planned.blocked)
    console.required(unmet)
    return 1 if planned.blocked or unmet else 0


def _plan(options: argparse.Namespace) -> tuple[Scope, list[Finding], Plan]:
    """Find, judge and plan. Raises UnhangError ``interrupted``, and as ``scope.find`` and ``plan.plan`` do."""
    scope = find(options)
    state_dir = scope.environment.state_dir
    if interrupted(state_dir):  # some of the originals may be about to change
        hint = "run unhang apply or unhang revert where it can be written, then this again"
        message = "an earlier run on this environment was interrupted"
        raise UnhangError("interrupted", message, path=state_dir, hint=hint)
    found = findings(scope)
    return scope, found, plan(found, originals(scope.environment), unverified=options.unverified)
