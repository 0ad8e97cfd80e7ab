"""The findings as SARIF 2.1.0, for code scanning: a rule for each fix, a result for what is left to do. Pure."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

from unhang import __version__, gate
from unhang.errors import joined
from unhang.judge.findings import Finding
from unhang.judge.observe import Observation
from unhang.shapes import catalog, shape
from unhang.shapes.catalog import Fix
from unhang.tell import fix_page, report, rows
from unhang.tell.report import Report

_ROOT = "%SRCROOT%"  # the name that viewers know


def document(what: Report, folder: str) -> str:
    """Return the SARIF document of ``check``. Paths below ``folder`` are relative to it, others are absolute.

    What is settled has no result, not even one that says "pass": GitHub would show it as an alert, as
    https://github.com/microsoft/PSRule/issues/955 tells.
    """
    folder = os.path.realpath(folder)
    said = [("warning", warning) for warning in what.search.warnings]
    if what.interrupted:
        said.append(("error", "interrupted: a run did not get to its end"))
    if other := report.differs(what.expected, what.findings):
        said.append(("error", other))
    run = {
        "tool": {
            "driver": {"name": "unhang", "version": __version__, "rules": [_rule(name) for name in what.request.fixes]}
        },
        "invocations": [
            {
                "executionSuccessful": True,
                "toolExecutionNotifications": [
                    {"level": level, "message": {"text": gate.sarif(text)}} for level, text in said
                ],
            }
        ],
        "originalUriBaseIds": {_ROOT: {"uri": Path(folder, "_").as_uri()[:-1]}},  # it ends in a slash
        "results": results(what, folder),
        "properties": {"digest": report.digest(what.findings)},
    }
    schema = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
    return gate.document({"$schema": schema, "version": "2.1.0", "runs": [run]})


def results(what: Report, folder: str) -> list[dict[str, Any]]:
    """Return the results of ``check``: what is left to do, and what is settled with a note. See ``document``."""
    folder = os.path.realpath(folder)
    return [_result(found, folder) for found in what.findings if not found.settled or found.left or found.notes]


def _rule(name: str) -> dict[str, Any]:
    fix: Fix = catalog.fix(name)
    page, about = fix_page.with_facts(fix), filter(None, map(fix.manifest.get, ("symptom", "cause")))
    return {
        "id": fix.id,
        "shortDescription": {"text": gate.sarif(fix.title)},
        "fullDescription": {"text": gate.sarif(" ".join(about) or fix.title)},
        "help": {"text": page, "markdown": gate.markdown(page) if fix.pack.folder else page},
        "defaultConfiguration": {"level": "error"},
        "properties": {
            "tags": ["correctness", fix.grade, *fix.kinds, *(["changes-numbers"] if fix.changes_numbers else [])],
            "problem.severity": "error",
        },
    }


def _result(found: Finding, folder: str) -> dict[str, Any]:
    target, verdict, place = found.target, found.verdict, found.installation
    title = catalog.fix(target.fix).title
    about = [*filter(None, [rows.struck(found)]), *rows.warned(found), rows.told_later(found)]
    copy = "an untouched copy of " if place.pin else ""
    where = f"{verdict.verdict} in {target.function} of {copy}{place.upstream} {place.version or '(no version)'}"
    hint = verdict.hint and f"do: {verdict.hint}"
    # neither the folder nor the line, which change though the finding is the same
    identity = [target.fix, place.upstream, target.file, target.function]
    if place.pin is not None:  # a file may pin several releases, and a repository have several files
        pin = place.pin
        identity += [os.path.relpath(found.seen.place, folder), pin.version, pin.told]
    return {
        "ruleId": target.fix,
        "level": "error" if found.left else "warning" if found.settled else "note",
        "message": {"text": gate.sarif(joined(title, where, *about, verdict.detail, *found.notes, hint))},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": _artifact(found.seen, folder),
                    "region": {"startLine": _line(found.seen, target.function)},
                },
                "logicalLocations": [{"fullyQualifiedName": target.function, "kind": "function"}],
            }
        ],
        "partialFingerprints": {"unhang/v1": hashlib.sha256(json.dumps(identity).encode()).hexdigest()},
        "properties": {
            "verdict": verdict.verdict,
            "code": verdict.code,
            "shape": found.seen.shape,
            **report.for_job(found),
        },
    }


def _artifact(seen: Observation, folder: str) -> dict[str, str]:
    path = seen.place
    if path.startswith(os.path.join(folder, "")):
        return {"uri": quote(os.fsencode(os.path.relpath(path, folder))), "uriBaseId": _ROOT}
    return {"uri": Path(path).as_uri()}


def _line(seen: Observation, function: str) -> int:
    """Return the line on which the function begins, or is pinned, or the file does not parse; else the first."""
    if seen.line:
        return seen.line
    try:
        found = shape.find(shape.parse(seen.data or b""), function)
    except SyntaxError as error:
        return error.lineno or 1
    except (ValueError, RecursionError, MemoryError):  # as in ``observe``
        return 1
    return found[0].lineno if found else 1
