"""The verdicts that a plan's rewritten files would get, without writing them into the installation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from unhang.errors import joined
from unhang.judge.decide import ACCEPTED, APPLIED, DRIFTED, Verdict, by_a_person
from unhang.judge.findings import Finding
from unhang.judge.observe import Observation, observe_target
from unhang.rewrite.plan import FilePlan
from unhang.shapes import catalog
from unhang.shapes.catalog import Target


def with_rewrites(findings: Iterable[Finding], files: Sequence[FilePlan], detail: str) -> list[Finding]:
    """Return the findings with these files in place of the originals.

    The verdict on a rewritten function is ``applied``, with ``detail`` saying where the rewrite is; on an accepted one
    it is as of a run that names its token. Where only stale bytecode is in the way, it is that on the source. Other
    verdicts stay, also on other functions of a rewritten file.
    """
    by_path = {file.path: file for file in files}
    steps = {(file.path, target) for file in files for target, *_ in file.steps}
    previewed = []
    for finding in findings:
        places = {seen.path: seen.place for seen in (finding.seen, finding.depends) if seen is not None}
        stale = tuple(code for code in finding.stale if places.get(code.source) not in by_path)
        if finding.source is not None and not stale:
            verdict = finding.source._replace(detail=joined(detail, finding.source.detail))
            finding = finding._replace(verdict=verdict, source=None, accepted=verdict.code == ACCEPTED)
        elif (finding.seen.place, finding.target) in steps:
            verdict = Verdict(APPLIED, None, detail, "")
            if finding.accepted:
                verdict = Verdict(DRIFTED, ACCEPTED, joined(detail, by_a_person(finding.seen_right)))
            finding = finding._replace(verdict=verdict, result=None)
        finding = finding._replace(stale=stale)
        seen, depends, other = finding.seen, finding.depends, finding.target.depends_on
        if depends is not None and other is not None:
            finding = finding._replace(depends=_after(depends, other, by_path))
        previewed.append(finding._replace(seen=_after(seen, finding.target, by_path)))
    return previewed


def _after(seen: Observation, target: Target, rewritten: Mapping[str, FilePlan]) -> Observation:
    """Return what the target's file contains when these files, by real path, are in place."""
    file = rewritten.get(seen.place)
    if file is None or seen.data != file.before:  # what is `outside` was not read
        return seen
    again = observe_target(seen.path, file.after, target, catalog.shape_table())
    return again._replace(real=seen.real, link=seen.link)
