"""The verdicts that a plan's rewritten files would get, without writing them into the installation."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from unhang.errors import joined
from unhang.judge.decide import ACCEPTED, APPLIED, DRIFTED, Verdict
from unhang.judge.findings import Finding
from unhang.judge.observe import observe_bytes
from unhang.rewrite.plan import FilePlan
from unhang.shapes import catalog


def with_rewrites(findings: Iterable[Finding], files: Sequence[FilePlan], detail: str) -> list[Finding]:
    """Return the findings with these files in place of the originals.

    The verdict on a rewritten function is ``applied``, with ``detail`` saying where the rewrite is; on an accepted one
    it is as of a run that names its token.
    """
    rewritten = {(file.path, target): file.after for file in files for target, *_ in file.steps}
    known = catalog.shape_table().files
    previewed = []
    for finding in findings:
        path = finding.seen.path
        after = rewritten.get((os.path.realpath(path), finding.target))
        if after is not None:
            seen = observe_bytes(path, after, finding.target.function, known)
            verdict = Verdict(APPLIED, None, detail, "")
            if finding.accepted:
                verdict = Verdict(DRIFTED, ACCEPTED, joined(detail, "accepted by a person"))
            finding = finding._replace(seen=seen, verdict=verdict, result=None)
        previewed.append(finding)
    return previewed
