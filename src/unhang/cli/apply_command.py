"""``unhang apply``: bring every needed fix into place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.cli.requests import request
from unhang.errors import UnhangError
from unhang.store.survey import Survey, again, planned, survey
from unhang.store.tidy import tidy
from unhang.tell import console
from unhang.tell.report import Report

if TYPE_CHECKING:
    import argparse

    from unhang.records import Request
    from unhang.rewrite.plan import Plan


def run(options: argparse.Namespace) -> int:
    """Run ``unhang apply``: return 0 if the end state is reached, changed or not; 1 if a fix is blocked or missing."""
    wanted = request(options)
    seen = survey(wanted)
    plan = _plan_early(seen, options.unverified)
    changed: frozenset[str] = frozenset()
    if plan is None or plan.files or seen.interrupted:
        try:
            plan, seen = _write(wanted, seen, plan, options.unverified)
        except UnhangError as error:
            console.refused(error, plan)
            raise
        changed = frozenset(file.path for file in plan.files)
    console.say_if(tidy(seen.environment.state_dir))
    console.results(options.output_format, Report(seen.search, seen.findings, changed, False))
    console.applied(seen.environment, plan, changed)
    unmet = console.unmet(wanted.required, seen.findings, plan.blocked)
    console.blocked(plan.blocked)
    console.required(unmet)
    return 1 if plan.blocked or unmet else 0


def _plan_early(seen: Survey, unverified: bool) -> Plan | None:
    """Return the plan, made without the lock; None if the receipt is inconsistent."""
    try:
        return planned(seen, unverified=unverified)
    except UnhangError as error:
        if error.code != "bad-receipt":
            raise
        return None  # a run was killed while it wrote the receipt, or is writing it: whoever has the lock can tell


def _write(request: Request, seen: Survey, plan: Plan | None, unverified: bool) -> tuple[Plan, Survey]:
    """Write as the environment's only writer; plan again if what was found before the lock has changed.

    Return the plan, and the survey after it, made before anybody else can write.
    """
    from unhang.store import apply as store
    from unhang.store.lock import exclusive
    from unhang.store.transaction import recover

    with exclusive(seen.environment.state_dir):
        console.say_if(recover(seen.environment.state_dir))
        now = again(seen.search, request)
        if plan is None or now.findings != seen.findings:
            plan = planned(now, unverified=unverified)
        if plan.files:
            store.apply(now.environment, plan.files)
            now = again(seen.search, request)
    return plan, now
