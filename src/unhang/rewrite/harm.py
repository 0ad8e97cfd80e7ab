"""What is not written because of the job: fixes that would harm it, and those whose defect cannot strike it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from unhang.judge.findings import Finding
from unhang.records import Request
from unhang.rewrite.plan import Blocked, is_to_rewrite
from unhang.suggest import Command, Hint, complete


def weighed(findings: Sequence[Finding], request: Request) -> tuple[list[Finding], list[Blocked]]:
    """Return the findings to plan with, and those of their fixes that are blocked because they would harm the job."""
    kept = _concerning(findings, request)
    blocked = []
    for it in filter(is_to_rewrite, kept):
        harms = [each for each in it.harms if each.holds and not any(map(each.is_meant, request.even_if))]
        if harms:
            fix, condition = it.target.fix, harms[0].condition
            anyway = Hint("to write it anyway: ", Command("apply", ("--fix", fix, "--even-if", condition)))
            blocked.append(Blocked(it.installation, fix, it.target, harms[0].sentence, complete(anyway, request)))
    return kept, blocked


def _concerning(findings: Sequence[Finding], request: Request) -> list[Finding]:
    """Return the findings without those that are open, although their defects cannot strike the job.

    What is required stays, and what another fix needs beside it, and what a person has accepted.
    """
    stays, before = {*request.required}, -1
    kept = [*findings]
    while len(stays) > before:
        before = len(stays)
        kept = [
            it for it in findings
            if it.settled or it.accepted or not it.cannot_strike or it.target.fix in stays
        ]  # fmt: skip
        stays.update(name for it in kept if not it.settled for name in it.needs)
    there = {it.target.fix for it in kept}
    return [it for it in kept if it.settled or not it.not_chosen or not there.isdisjoint(it.along)]
