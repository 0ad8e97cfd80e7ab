"""The commands: find, judge, plan, write, tell. Each gives its exit code."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from unhang.cli.scope import Scope, find, originals
from unhang.cli.scope import findings as judge
from unhang.errors import UnhangError
from unhang.rewrite.plan import Finding, Plan, plan
from unhang.shapes import catalog
from unhang.store import receipt
from unhang.store.state import interrupted, littered
from unhang.tell import console, report
from unhang.tell.report import Told

if TYPE_CHECKING:
    import argparse


def check(options: argparse.Namespace) -> int:
    """``unhang check``: 0 if nothing is left to do, 1 if something is, or a run was interrupted."""
    scope = find(options)
    findings = judge(scope)
    halfway = interrupted(scope.environment.state_dir)
    console.results(options, Told(scope.search, findings, None, halfway, expected=options.expect_digest))
    unmet = console.unmet(scope, findings)
    other = report.differs(options.expect_digest, findings)
    left = [finding for finding in findings if not finding.settled]
    if options.output_format == "text":
        print(f"\n{console.summary(findings, scope)}")
    console.required(unmet)
    console.unexpected(other)
    return 1 if left or unmet or other or halfway else 0


def diff(options: argparse.Namespace) -> int:
    """``unhang diff``: the diff on stdout alone; 0 if ``apply`` would change nothing, 1 if something."""
    scope = find(options)
    console.say(report.environment_line(scope.environment))
    console.warnings(scope.search)
    if interrupted(scope.environment.state_dir):  # what `apply` will find once that is settled, nobody knows yet
        console.say("interrupted: an earlier run was killed halfway; run `unhang apply` or `unhang revert` first")
        return 1
    planned = plan(judge(scope), originals(scope.environment), unverified=options.unverified)
    if planned.files:
        from unhang.rewrite.diff import render

        sys.stdout.flush()
        sys.stdout.buffer.write(render(scope.environment, planned.files))
        sys.stdout.flush()
    console.blocked(planned.blocked)
    return 1 if planned.files or planned.blocked else 0


def apply(options: argparse.Namespace) -> int:
    """``unhang apply``: 0 if the end state is reached, changed or not; 1 if a fix is blocked or missing."""
    scope = find(options)
    findings = judge(scope)
    planned = _plan_early(scope, findings, options.unverified)
    changed: frozenset[str] = frozenset()
    if planned is None or planned.files or interrupted(scope.environment.state_dir):
        try:
            planned, changed, findings = _apply_alone(scope, findings, planned, options.unverified)
        except UnhangError as error:
            console.refused(error, planned)
            raise
    _tidy(scope.environment.state_dir)
    console.results(options, Told(scope.search, findings, changed, False))
    console.applied(scope.environment, planned, changed)
    unmet = console.unmet(scope, findings, planned.blocked)
    console.blocked(planned.blocked)
    console.required(unmet)
    return 1 if planned.blocked or unmet else 0


def revert(options: argparse.Namespace) -> int:
    """``unhang revert``: 0 if the original bytes are back; 1 if an edit stands in the way, or there is no receipt."""
    from unhang.store import revert
    from unhang.store.lock import exclusive
    from unhang.store.recovery import recover

    scope = find(options)
    state_dir = scope.environment.state_dir
    _tidy(state_dir)
    if receipt.load(state_dir) is None and not interrupted(state_dir):
        console.results(options, Told(scope.search, judge(scope), frozenset(), False))
        console.say(f"nothing to revert: there is no receipt in {state_dir}")
        console.made_by_wheel(scope.search.installations)
        return 1
    with exclusive(state_dir):
        console.say_if(recover(state_dir))
        found = receipt.load(state_dir)
        names = {fix.id for fix in scope.fixes}
        planned = None
        if found is not None:
            where = scope.environment, scope.search, found
            planned = revert.plan_revert(*where, names, scope.upstreams, force=options.force)
        if planned is not None and planned.remaining != found:
            revert.carry_out(scope.environment, planned)
    changed = frozenset(entry.path for entry, _, _ in planned.files) if planned else frozenset()
    console.results(options, Told(scope.search, judge(scope), changed, False))
    if planned is None:  # an interrupted run was all there was, and it is taken back
        return 0
    console.reverted(planned, len(changed))
    return 1 if planned.refused else 0


def overlay(options: argparse.Namespace) -> int:
    """``unhang overlay DIR``: the rewritten modules in a folder of their own."""
    from unhang.cli import overlay_command

    return overlay_command.run(options)


def wheel(options: argparse.Namespace) -> int:
    """``unhang wheel REQ... -o DIR``: wheels with the fixes in them."""
    from unhang.cli import wheel_command

    return wheel_command.run(options)


def list_fixes(options: argparse.Namespace) -> int:
    """``unhang list``: the fixes, a line each."""
    for fix in catalog.fixes().values():
        affects = ", ".join(f"{upstream} {versions}" for upstream, versions in fix.manifest["affects"].items())
        print(f"{fix.id:<25} {fix.title}\n{'':<25} affects {affects}")
    return 0


def explain(options: argparse.Namespace) -> int:
    """``unhang explain FIX``: its page, and what the matrix says of it."""
    from unhang.cli import catalog_commands

    return catalog_commands.explain(options)


def matrix(options: argparse.Namespace) -> int:
    """``unhang matrix``: which release needs which fix."""
    from unhang.cli import catalog_commands

    return catalog_commands.matrix(options)


def prove(options: argparse.Namespace) -> int:
    """``unhang prove``: the hangs shown on what is installed."""
    from unhang.cli import prove_command

    return prove_command.prove(options)


def _plan_early(scope: Scope, findings: list[Finding], unverified: bool) -> Plan | None:
    """The plan, made before anybody has to wait for it; None where the receipt's parts do not fit together."""
    try:
        return plan(findings, originals(scope.environment), unverified=unverified)
    except UnhangError as error:
        if error.code != "bad-receipt":
            raise
        return None  # a run was killed between them, or is at work on them: whoever is alone sees the truth


def _apply_alone(
    scope: Scope, findings: list[Finding], planned: Plan | None, unverified: bool
) -> tuple[Plan, frozenset[str], list[Finding]]:
    """Write as the environment's only writer; planned again if what was found before the lock is not there any more.

    Gives the plan, the files written, and the verdicts after it, before anybody else may write again.
    """
    from unhang.store import apply
    from unhang.store.lock import exclusive
    from unhang.store.recovery import recover

    with exclusive(scope.environment.state_dir):
        console.say_if(recover(scope.environment.state_dir))
        now = judge(scope)
        if planned is None or now != findings:
            planned = plan(now, originals(scope.environment), unverified=unverified)
        if planned.files:
            apply.apply(scope.environment, planned.files)
            now = judge(scope)
    return planned, frozenset(file.path for file in planned.files), now


def _tidy(state_dir: str) -> None:
    """Take away the lock of a run that was killed with no journal to tell of it; harmless where we may not write."""
    if littered(state_dir):
        from unhang.store.lock import exclusive
        from unhang.store.recovery import recover

        with suppress(UnhangError), exclusive(state_dir):
            console.say_if(recover(state_dir))
