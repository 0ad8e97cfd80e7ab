"""What each finding is to the job: whether its defect strikes it, and whether the fix would harm it."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from unhang.errors import misspelt
from unhang.job import condition, lookup
from unhang.job.strikes import CANNOT, STRIKES, judged
from unhang.judge.decide import APPLIED
from unhang.plugins import packs
from unhang.shapes import catalog

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from unhang.job.settings import Job
    from unhang.job.strikes import Struck
    from unhang.judge.findings import Finding
    from unhang.records import Installation


def told(findings: Iterable[Finding], job: Job, installations: Sequence[Installation]) -> list[Finding]:
    """Return the findings with what each fix is to a job, without what would come along with what cannot strike it.

    Raises UnhangError ``bad-pack`` for a condition of a pack.
    """
    looks = cache(lambda upstream: lookup.looks(job, installations, upstream))

    @cache
    def struck(name: str, upstream: str) -> tuple[Struck, tuple[str, ...]]:
        fix = catalog.fix(name)
        try:
            found = judged(fix, looks(upstream))
        except condition.BadConditionError as error:
            raise packs.bad(f"{fix.folder}/manifest.json", str(error)) from None
        holds = {STRIKES: True, CANNOT: False}.get(found.word)
        if not (roles := looks(upstream)):
            return found, (f"it does not run {upstream}",)
        likely = [it for it in roles if found.names and condition.answer(fix.strikes, it).holds is holds]
        return found, tuple(lookup.told(likely[0], one) for one in found.names)

    def with_it(finding: Finding) -> Finding:
        found, decides = struck(finding.target.fix, finding.target.upstream)
        return finding._replace(struck=found, decides=decides, harms=found.harms)

    found = list(map(with_it, findings))
    # what cannot strike is not written, so nothing comes along with it
    there = {it.target.fix for it in found if it.verdict.verdict == APPLIED or not (it.settled or it.cannot_strike)}
    found = [it._replace(along=tuple(name for name in it.along if name in there)) for it in found]
    return [it for it in found if it.along or not it.not_chosen]


def slips(job: Job) -> tuple[str, ...]:
    """Return a note for each ``--setting`` that no fix asks for, if its name is nearly one that a fix does ask for."""
    conditions = [
        it for fix in catalog.fixes().values() for it in (fix.strikes, *(one.condition for one in fix.leave_out))
    ]
    asked = {name for text in conditions if text for name in condition.names(text)}
    given = {name for part in job.parts or (job,) for name, it in part.settings.items() if it.source == "--setting"}
    near = {name: misspelt(name, asked) for name in sorted(given - asked)}
    return tuple(f"--setting: no fix asks for {name}; did you mean {it}?" for name, it in near.items() if it)
