"""The verdicts on what a job imports that has overlays on PYTHONPATH. The rules are those of `overlay_loader`."""

from __future__ import annotations

import os
from collections.abc import Sequence

from unhang.errors import joined
from unhang.find.overlays import Module, Overlay, module_name, read, sha256
from unhang.judge.decide import BY_SHAPE_CHECK, DRIFTED, NO_REWRITE, NOT_AFFECTED, Past, Verdict
from unhang.judge.findings import Finding, decided
from unhang.judge.observe import Observation, observe_target
from unhang.records import Installation
from unhang.shapes import catalog
from unhang.shapes.catalog import Target
from unhang.suggest import Command, Hint

OUTDATED = "overlay-outdated"
"""The code of a function that a job cannot import: the overlay does not fit its original, or is damaged."""
_HINT = Hint("make the overlay again: ", Command("apply"))  # which stands for the overlay's own command


def overlaid(finding: Finding, overlays: Sequence[Overlay]) -> Finding:
    """Return the finding on what the job imports: from the first of the overlays that has the module."""
    if finding.seen.data is None or finding.seen.problem == "not-a-file":
        return finding  # there is no original: the overlay lets the import fail as it would without it
    for overlay in overlays:
        module = overlay.modules.get(module_name(finding.target.file))
        if overlay.damage:
            where = os.path.join(overlay.folder, "")
            return _outdated(finding, overlay, where, f"nobody knows what a job imports: {overlay.damage}")
        if module is not None:
            return _in_overlay(finding, overlay, module)
    return finding


def _in_overlay(finding: Finding, overlay: Overlay, module: Module) -> Finding:
    original = finding.seen.sha256 or sha256(read(finding.seen.path) or b"")
    if original not in (module.original, module.rewritten):
        return _outdated(finding, overlay, module.path, "the import fails: the overlay was made from another original")
    data = read(module.path)
    if data is None or sha256(data) != module.rewritten:
        return _outdated(finding, overlay, module.path, "the import fails: this module of the overlay was changed")
    table, target, installation = catalog.shape_table(), finding.target, finding.installation
    seen = observe_target(module.path, data, target, table)

    def look(_: Installation, __: Target) -> Observation:
        assert finding.depends is not None
        return finding.depends  # that of the original: no fix that rewrites it, too, makes it right

    if module.rewritten == module.original:  # it is there because stale bytecode runs in place of the original
        found = finding.verdict
    elif finding.verdict.code == BY_SHAPE_CHECK and seen.shape == finding.seen.shape:
        found = finding.verdict  # RECORD confirms the original, from which the overlay has this very function
    elif target.only_with and finding.verdict.verdict == NOT_AFFECTED:
        found = finding.verdict  # what it goes with is in another file
    else:
        found = decided(installation, target, Past(module.rewritten, ""), seen, look)
    detail = joined(f"in the overlay {overlay.folder}", found.detail)
    # the overlay was made from this very original: only a token brings the rewrite of an unknown shape into it
    hint = found.hint and (finding.verdict.hint if finding.result or found.code == NO_REWRITE else _HINT)
    return _replaced(finding, seen, found._replace(detail=detail, hint=hint), overlay)


def _outdated(finding: Finding, overlay: Overlay, path: str, why: str) -> Finding:
    seen = Observation(path, b"", problem=OUTDATED, detail=why)
    verdict = Verdict(DRIFTED, OUTDATED, f"in the overlay {overlay.folder}; {why}", _HINT)
    return _replaced(finding, seen, verdict, overlay)


def _replaced(finding: Finding, seen: Observation, verdict: Verdict, overlay: Overlay) -> Finding:
    verdict = verdict._replace(triable=False)  # nothing is written to an overlay's own file
    result = seen.shape if verdict.as_is else None
    return finding._replace(seen=seen, verdict=verdict, overlay=overlay.folder, result=result, accepted=False)
