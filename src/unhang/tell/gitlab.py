"""The findings in GitLab's code quality format: what SARIF has for each, for the widget of a merge request. Pure."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urlsplit

from unhang import gate
from unhang.tell import sarif
from unhang.tell.report import Report

_SEVERITY = {"error": "major", "warning": "minor", "note": "info"}


def document(what: Report, folder: str) -> str:
    """Return the code quality report of ``check``. Paths below ``folder`` are relative to it, others are absolute."""
    return gate.document([_violation(result) for result in sarif.results(what, folder)])


def _violation(result: Any) -> dict[str, Any]:
    place = result["locations"][0]["physicalLocation"]
    return {
        "description": result["message"]["text"],
        "check_name": f"unhang/{result['ruleId']}",
        "fingerprint": result["partialFingerprints"]["unhang/v1"],
        "severity": _SEVERITY[result["level"]],
        "location": {
            "path": unquote(urlsplit(place["artifactLocation"]["uri"]).path),
            "lines": {"begin": place["region"]["startLine"]},
        },
    }
