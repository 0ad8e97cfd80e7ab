"""The findings as OpenVEX: which advisories a scanner need not report here, because of what the code is. Pure."""

from __future__ import annotations

import json
import uuid
from typing import Any

from unhang import __version__, gate
from unhang.errors import joined
from unhang.find import metadata
from unhang.judge.decide import APPLIED, BY_SHAPE_CHECK, FIXED_UPSTREAM, NEEDED, NOT_AFFECTED, URGENCY
from unhang.judge.findings import Finding
from unhang.records import Installation
from unhang.shapes import catalog
from unhang.suggest import command
from unhang.tell import osv
from unhang.tell.report import Report

_UNSURE = "under_investigation"
_STATUS = {
    APPLIED: "fixed",
    FIXED_UPSTREAM: "fixed",
    NOT_AFFECTED: "not_affected",
    NEEDED: "affected",
}


def document(what: Report) -> str:
    """Return the OpenVEX document of ``check``: a statement for each fix and each version of a distribution here.

    It is empty if there is nothing to state: the format has no document without a statement. An installation whose
    source does not state its version has none. The same findings give the same bytes: the date is that of the fixes.
    """
    found: dict[tuple[str, str], list[Finding]] = {}
    for finding in what.findings:
        if product := _product(finding.installation):
            found.setdefault((finding.target.fix, product), []).append(finding)
    if not found:
        return ""
    statements = [_statement(catalog.fix(name), product, group, what) for (name, product), group in found.items()]
    content = json.dumps(statements)
    return gate.document(
        {
            "@context": "https://openvex.dev/ns/v0.2.0",
            "@id": uuid.uuid5(uuid.NAMESPACE_OID, content).urn,
            "author": "unhang",
            "timestamp": osv.dated(catalog.fix(name) for name, _ in found),
            "version": 1,
            "tooling": f"unhang {__version__}",
            "statements": statements,
        }
    )


def _product(place: Installation) -> str:
    """Return the package URL of an installation, with the version that a scanner reads; empty if it has no version.

    That of a patched wheel is in the name of its .dist-info folder alone.
    """
    version = metadata.recorded_version(place.record) if place.record else place.version
    return osv.purl(place.upstream, version) if version else ""


def _statement(fix: catalog.Fix, product: str, group: list[Finding], what: Report) -> dict[str, Any]:
    """Return what is true of a fix in a product: of several functions or copies, what is said of the worst."""
    worst = min(
        group, key=lambda it: (it.settled, it.verdict.code != BY_SHAPE_CHECK, URGENCY.index(it.verdict.verdict))
    )
    verdict = worst.verdict
    status = _status(worst)
    more: dict[str, str] = {}
    if status == "not_affected":
        more = {"justification": "vulnerable_code_not_present"}
    elif status == "affected":
        more = {"action_statement": verdict.hint or command("apply", what.request, "--fix", fix.id)}
    return {
        "vulnerability": {"name": osv.identity(fix), "description": fix.title},
        "products": [{"@id": product, "identifiers": {"purl": product}}],
        "status": status,
        "status_notes": joined(f"{verdict.verdict} in {worst.target.function}", verdict.detail, *worst.notes),
        **more,
    }


def _status(finding: Finding) -> str:
    if finding.verdict.code == BY_SHAPE_CHECK:  # what does not satisfy --require silences no scanner
        return _UNSURE
    if finding.accepted and finding.settled:
        return _STATUS[APPLIED]
    return _STATUS.get(finding.verdict.verdict, _UNSURE)
