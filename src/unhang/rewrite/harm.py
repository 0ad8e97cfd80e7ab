"""Which needed fixes are not written because they would harm the job. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from unhang.judge.findings import Finding
from unhang.records import Request
from unhang.rewrite.plan import Blocked, is_to_rewrite
from unhang.suggest import Command, Hint, complete


def weighed(findings: Sequence[Finding], request: Request) -> tuple[list[Finding], list[Blocked]]:
    """Return the findings to plan with, and those of their fixes that are blocked because they would harm the job.

    A fix that would harm a job which its defect cannot strike is left out without a word, unless it is required.
    """
    beside = {*request.required, *(name for it in findings for name in it.needs)}
    kept, blocked = [], []
    for it in findings:
        harms = [each for each in it.harms if each.holds and not any(map(each.is_meant, request.even_if))]
        if harms and is_to_rewrite(it):
            if it.cannot_strike and it.target.fix not in beside:
                continue
            fix, condition = it.target.fix, harms[0].condition
            anyway = Hint("to write it all the same: ", Command("apply", ("--fix", fix, "--even-if", condition)))
            blocked.append(Blocked(it.installation, fix, it.target, harms[0].sentence, complete(anyway, request)))
        kept.append(it)
    return kept, blocked
