"""``unhang diff``: what ``apply`` would change."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from unhang.cli.requests import request
from unhang.records import Token
from unhang.store.survey import planned_without_lock
from unhang.suggest import command, complete
from unhang.tell import console, report

if TYPE_CHECKING:
    import argparse

    from unhang.records import Request
    from unhang.rewrite.plan import Plan


def run(options: argparse.Namespace) -> int:
    """Run ``unhang diff``: print only the diff on stdout; return 0 if ``apply`` would change nothing, else 1.

    With ``--unknown``: 0 if no fix is held back by an unknown shape, else 1.
    """
    wanted = request(options)
    seen, plan = planned_without_lock(wanted, unknown=options.unknown)
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
        sys.stdout.buffer.write(render(seen.environment, plan.files, _tokens(plan, wanted)))
        sys.stdout.flush()
    console.blocked(plan.blocked)
    return 1 if plan.files or plan.blocked else 0


def _tokens(plan: Plan, wanted: Request) -> dict[str, list[str]]:
    """Return, for each file with a function in an unknown shape, how to accept what the diff does to it."""
    from unhang.shapes import catalog

    generation = catalog.generation()
    accepted = [
        (file.path, step.target, Token(step.before, generation, step.after))
        for file in plan.files
        for step in file.steps
        if not step.listed
    ]
    lines: dict[str, list[str]] = {}
    for path, target, token in accepted:
        # all of the fix's tokens: it goes into an installation whole or not at all
        needed = dict.fromkeys(other for _, (fix, *_), other in accepted if fix == target.fix)
        words = [word for other in needed if other not in wanted.accepted for word in ("--accept", str(other))]
        lines.setdefault(path, []).extend(
            (
                f"{target.fix}: nobody has verified this shape of {target.function}; to accept what follows: {token}",
                f"to write it, run: {command('apply', wanted, '--fix', target.fix, *words)}",
            )
        )
    return lines
