"""``unhang diff``: what ``apply`` would change."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from unhang.cli.requests import request
from unhang.store.survey import planned_without_lock
from unhang.suggest import complete
from unhang.tell import console, report

if TYPE_CHECKING:
    import argparse


def run(options: argparse.Namespace) -> int:
    """Run ``unhang diff``: print only the diff on stdout; return 0 if ``apply`` would change nothing, else 1."""
    wanted = request(options)
    seen, plan = planned_without_lock(wanted)
    console.note(report.environment_line(seen.environment))
    console.warnings(seen.search)
    console.searched(seen.search)
    if plan is None:  # what `apply` will find after recovery is not known yet
        line = "interrupted: an earlier run was killed halfway; run `unhang apply` or `unhang revert` first"
        console.say(complete(line, wanted))
        return 1
    if plan.files:
        from unhang.rewrite.diff import render

        sys.stdout.flush()
        sys.stdout.buffer.write(render(seen.environment, plan.files))
        sys.stdout.flush()
    console.blocked(plan.blocked)
    return 1 if plan.files or plan.blocked else 0
