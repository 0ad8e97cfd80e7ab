"""The verdicts that a plan's rewritten files would get, without writing them into the installation."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from unhang.errors import joined
from unhang.judge.decide import ACCEPTED, APPLIED, DRIFTED, Verdict
from unhang.judge.findings import Finding
from unhang.judge.observe import Observation, observe_bytes
from unhang.rewrite.plan import FilePlan
from unhang.shapes import catalog
from unhang.shapes.catalog import Target


def with_rewrites(findings: Iterable[Finding], files: Sequence[FilePlan], detail: str) -> list[Finding]:
    """Return the findings with these files in place of the originals.

    The verdict on a rewritten function is ``applied``, with ``detail`` saying where the rewrite is; on an accepted one
    it is as of a run that names its token. Other verdicts stay, also on other functions of a rewritten file.
    """
    rewritten = {file.path: file for file in files}
    steps = {(file.path, target) for file in files for target, *_ in file.steps}
    previewed = []
    for finding in findings:
        if (os.path.realpath(finding.seen.path), finding.target) in steps:
            verdict = Verdict(APPLIED, None, detail, "")
            if finding.accepted:
                verdict = Verdict(DRIFTED, ACCEPTED, joined(detail, "accepted by a person"))
            finding = finding._replace(verdict=verdict, result=None)
        seen, depends, other = finding.seen, finding.depends, finding.target.depends_on
        if depends is not None and other is not None:
            finding = finding._replace(depends=_after(depends, other, rewritten))
        previewed.append(finding._replace(seen=_after(seen, finding.target, rewritten)))
    return previewed


def _after(seen: Observation, target: Target, rewritten: Mapping[str, FilePlan]) -> Observation:
    """Return what the target's file contains when these files, by real path, are in place."""
    file = rewritten.get(os.path.realpath(seen.path))
    if file is None or seen.data != file.before:  # a link that leads out of its package is not read
        return seen
    return observe_bytes(seen.path, file.after, target.function, catalog.shape_table().files)._replace(real=seen.real)
