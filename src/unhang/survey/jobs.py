"""What each finding is to the job: whether its defect strikes it, and whether the fix would harm it."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from unhang.job import condition, lookup
from unhang.job.strikes import CANNOT, STRIKES, judged
from unhang.plugins import packs
from unhang.shapes import catalog

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from unhang.job.condition import Look
    from unhang.job.settings import Job
    from unhang.job.strikes import Struck
    from unhang.judge.findings import Finding
    from unhang.records import Installation


def told(findings: Iterable[Finding], job: Job, installations: Sequence[Installation]) -> list[Finding]:
    """Return the findings with what each fix is to a job. Raises UnhangError ``bad-pack`` for a condition of a pack."""
    looks = cache(lambda upstream: lookup.looks(job, installations, upstream))

    @cache
    def struck(name: str, upstream: str) -> tuple[Struck, tuple[str, ...]]:
        fix = catalog.fix(name)
        try:
            found = judged(fix, looks(upstream))
        except condition.BadConditionError as error:
            raise packs.bad(f"{fix.folder}/manifest.json", str(error)) from None
        holds = {STRIKES: True, CANNOT: False}.get(found.word)
        roles = looks(upstream) if found.names else ()
        role = next((it for it in roles if condition.answer(fix.strikes, it).holds is holds), None)
        return found, tuple(described(one, role) for one in found.names)

    def with_it(finding: Finding) -> Finding:
        found, decides = struck(finding.target.fix, finding.target.upstream)
        return finding._replace(struck=found, decides=decides, harms=found.harms)

    return list(map(with_it, findings))


def described(name: str, look: Look | None) -> str:
    """Return a setting with its value, and where it was set; or its name alone, if it is not known."""
    setting = look(name) if look else None
    if setting is None or (setting.value is True and " " in name):
        return name.removeprefix("version ")
    plain = name.removeprefix("version ")
    return f"{plain}{' ' if plain != name else '='}{setting.value} ({setting.source})"
