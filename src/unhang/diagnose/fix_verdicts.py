"""Where a fix stands in the environment at hand, and so what to do next."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from unhang.judge.decide import APPLIED, FIXED_UPSTREAM, NO_REWRITE, NOT_AFFECTED, SETTLED
from unhang.shapes import catalog
from unhang.suggest import command
from unhang.tell import report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unhang.judge.findings import Finding
    from unhang.records import Request


class Standing(NamedTuple):
    """A fix on one installation."""

    upstream: str
    version: str | None
    location: str
    verdict: str
    detail: str
    """Why, in one sentence; often empty."""
    hint: str
    """What to do, with the command."""
    shape: str | None = None
    """That of the function."""
    code: str | None = None
    """As the verdict has it."""


def standings(findings: Sequence[Finding], request: Request) -> tuple[Standing, ...]:
    """Return where a fix stands on each installation that has, or had, its defect; if there is none, on the others.

    ``findings`` are those of this fix alone; ``request`` names the environment, and no fix. Empty without findings.
    """
    found = []
    for place, (finding,) in report.by_installation(findings):
        verdict = finding.verdict
        hint = _hint(finding, report.digest(findings), request)
        found.append(
            Standing(
                place.upstream,
                place.version,
                place.root,
                verdict.verdict,
                verdict.detail,
                hint,
                finding.seen.shape,
                verdict.code,
            )
        )
    return tuple(one for one in found if one.verdict not in (FIXED_UPSTREAM, NOT_AFFECTED)) or tuple(found)


def cure(fix: str, request: Request) -> str:
    """Return the command that brings a fix into place."""
    if request.writer[0] == "overlay":  # written again with one fix, it would lose the others
        return command("apply", request)
    return command("apply", request, "--fix", fix)


def is_curable(found: Sequence[Standing]) -> bool:
    """Return whether there is a rewrite where a fix stands; so there is where that is not known."""
    return not found or any(one.code != NO_REWRITE for one in found)


def upstreams(fix: str) -> str:
    """Return the names of the upstreams that have a target of a fix."""
    return " or ".join(dict.fromkeys(target.upstream for target in catalog.fix(fix).targets))


def _hint(finding: Finding, digest: str, request: Request) -> str:
    fix, verdict = finding.target.fix, finding.verdict.verdict
    if finding.verdict.to_rewrite:
        return f"on every node of the job, run: {cure(fix, request)}"
    if verdict == APPLIED:
        check = command("check", request, "--fix", fix, "--expect-digest", digest)
        return f"a job that started before that needs a restart; else look at the other nodes: `{check}` on each"
    if verdict in SETTLED:
        return (
            "this copy does not have the defect; if the job runs another, name it with --python, --target or --source"
        )
    return finding.verdict.hint
