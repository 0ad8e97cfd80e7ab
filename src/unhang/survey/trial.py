"""The plan that follows from verdicts and receipts, and what a rewrite of each unknown shape would give."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.errors import UnhangError
from unhang.judge.decide import refused
from unhang.judge.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from unhang.records import Installation
    from unhang.rewrite.plan import Blocked, Original, Plan
    from unhang.shapes.catalog import Target
    from unhang.store.receipt import Receipt


def planned(findings: Sequence[Finding], receipts: Iterable[Receipt], held: Iterable[Blocked] = ()) -> Plan:
    """Return the plan for these findings; ``held`` are fixes that are blocked from the start.

    Raises UnhangError ``bad-receipt``, and as ``rewrite.plan.plan`` does.
    """
    from unhang.rewrite.plan import plan  # `check` plans nothing

    return plan(findings, originals(findings, receipts), held)


def originals(findings: Iterable[Finding], receipts: Iterable[Receipt]) -> Mapping[str, Original]:
    """Return what the receipts keep of the files that a plan would rewrite. Raises UnhangError ``bad-receipt``."""
    from unhang.rewrite.plan import paths_to_rewrite
    from unhang.survey import history

    return history.originals(receipts, paths_to_rewrite(findings))


def tried(findings: Iterable[Finding], receipts: Sequence[Receipt]) -> list[Finding]:
    """Return the findings, each triable one with the result of its rewrite, or with the reason why there is none.

    `diff --unknown` shows exactly those with a result, so its hint and what it does are one decision. Trying costs
    more than all else in `check`, but only an unknown shape needs it.
    """
    findings = [finding._replace(result="") if finding.verdict.triable else finding for finding in findings]
    triable = dict.fromkeys((finding.installation, finding.target.fix) for finding in findings if finding.result == "")
    results: dict[tuple[str, Target], str] = {}
    why: dict[tuple[Installation, Target], str] = {}
    for place, fix in triable:  # a fix goes in whole or not at all
        group = [finding for finding in findings if (finding.installation, finding.target.fix) == (place, fix)]
        group = [finding._replace(accepted=finding.accepted or finding.result is not None) for finding in group]
        try:
            plan = planned(group, receipts)
        except UnhangError as error:
            why.update({(place, finding.target): error.message for finding in group})
            continue
        results.update({(file.path, step.target): step.after for file in plan.files for step in file.steps})
        for item in plan.blocked:  # one at the most
            other = f"the fix goes in whole or not at all, and {item.target.file} is in the way: {item.reason}"
            why.update({(place, finding.target): other for finding in group})
            why[place, item.target] = item.reason

    def decided(finding: Finding) -> Finding:
        if finding.result != "":
            return finding
        reason = why.get((finding.installation, finding.target))
        if reason is None:
            return finding._replace(result=results[finding.seen.place, finding.target])
        return finding._replace(result=None, verdict=refused(finding.verdict, finding.target.fix, reason))

    return [decided(finding) for finding in findings]
