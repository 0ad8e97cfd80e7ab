"""How findings are told: text for people, JSON for programs, annotations for GitHub. Pure: strings in, strings out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from unhang import __version__
from unhang.errors import UnhangError
from unhang.judge.decide import APPLIED, DRIFTED, FIXED_UPSTREAM, NEEDED, NOT_AFFECTED, UNLISTED
from unhang.judge.observe import Observation
from unhang.records import Environment, Search
from unhang.rewrite.plan import Finding

# What a fix with several targets shows in its one line: the target with the most to do.
URGENCY = (DRIFTED, UNLISTED, NEEDED, APPLIED, FIXED_UPSTREAM, NOT_AFFECTED)
COLOURS = {NEEDED: "33", APPLIED: "32", FIXED_UPSTREAM: "32", DRIFTED: "31", UNLISTED: "31", NOT_AFFECTED: "2"}
PATCH_ALL = (
    "Patch every node of a job, or none: this changes which collectives a rank issues, and a job whose nodes are "
    "only partly patched can hang."
)


class Told(NamedTuple):
    """All that a report is made of."""

    search: Search
    findings: Sequence[Finding]
    changed: frozenset[str] | None
    """The files that were written, for the commands that write; None for the others."""
    interrupted: bool
    commits: Mapping[str, str] = {}
    """What git says of the roots that are checkouts."""
    expected: str | None = None
    """The digest that ``--expect-digest`` expects."""


def json_report(told: Told) -> str:
    """The JSON document of ``check``, ``apply`` and ``revert``; docs/json.md documents its form, which is stable."""
    environment = told.search.environment
    document = {
        "schema": 1,
        "unhang": __version__,
        "environment": _environment(environment),
        "digest": digest(told.findings),
        **({} if told.expected is None else {"expected_digest": told.expected}),
        "interrupted": told.interrupted,
        "warnings": list(told.search.warnings),
        "results": [result(finding, told.changed) for finding in told.findings],
    }
    return json.dumps(document, indent=1)


def json_error(error: UnhangError) -> str:
    """The JSON document of an error."""
    told = {"code": error.code, "message": error.message, "path": error.path, "hint": error.hint}
    return json.dumps({"schema": 1, "error": told}, indent=1)


def text_error(error: UnhangError) -> str:
    """An error for people: what, where, what to do."""
    lines = [f"error[{error.code}]: {error.message}"]
    if error.path and error.path not in error.message:
        lines.append(f"  in: {error.path}")
    if error.hint:
        lines.append(f"  hint: {error.hint}")
    return "\n".join(lines)


def digest(findings: Iterable[Finding]) -> str:
    """One digest of the code that the fixes are about: equal exactly where all of that code is equal.

    Over the bytes of the files that hold the targets; not over versions and places, which may differ where the code
    does not. Not over shapes: two files that do not parse have none, and a file can differ around its target.
    """
    told = sorted(
        (finding.installation.upstream, finding.target.file, finding.target.function, _code(finding.seen))
        for finding in findings
    )
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]


def differs(expected: str | None, findings: Iterable[Finding]) -> str | None:
    """Why the code is not what ``--expect-digest`` expects, a sentence; None where it is, or nothing was expected."""
    found = digest(findings)
    if expected in (None, found):
        return None
    return f"the code has digest {found}, not {expected} as expected: this node would not run what that one runs"


def text_report(told: Told, *, colour: bool) -> str:
    """The report for people: one line for each fix on each installation, always."""
    lines = [environment_line(told.search.environment), ""]
    for installation, group in _by_installation(told.findings):
        version, commit = installation.version or "(no version)", told.commits.get(installation.root)
        lines.append("  ".join(filter(None, (f"{installation.upstream} {version}", installation.root, commit))))
        lines += [f"  shadows {other}" for other in installation.shadowed]
        lines += [_line(finding, told.changed, colour) for finding in group]
    if told.interrupted:
        lines += ["", "interrupted: an earlier run was killed halfway; `unhang apply` or `unhang revert` settles it"]
    return "\n".join(lines)


def github_report(told: Told) -> str:
    """A workflow command for each line of the text report: errors for what is left to do, notices for the rest."""
    lines = []
    for _, group in _by_installation(told.findings):
        for finding in group:
            verdict = finding.verdict
            kind = "notice" if finding.settled else "error"
            text = ": ".join(filter(None, (verdict.verdict, verdict.detail)))
            text += f" ({verdict.hint})" if verdict.hint else ""
            title = f"unhang {finding.target.fix}"
            lines.append(f"::{kind} file={_property(finding.seen.path)},title={_property(title)}::{_escaped(text)}")
    lines += [f"::warning title=unhang::{_escaped(warning)}" for warning in told.search.warnings]
    other = differs(told.expected, told.findings)
    lines += [f"::error title=unhang digest::{_escaped(other)}"] if other else []
    return "\n".join(lines)


def environment_line(environment: Environment) -> str:
    """Which environment was used, and what chose it."""
    what = environment.python or environment.prefix
    return f"environment: {what} (found by {environment.found_by})"


def result(finding: Finding, changed: frozenset[str] | None = None) -> dict[str, Any]:
    """One of the JSON's ``results``; ``changed`` has the files that were written, where the command writes."""
    installation, target, verdict = finding.installation, finding.target, finding.verdict
    told = {
        "upstream": installation.upstream,
        "version": installation.version,
        "location": installation.root,
        "fix": target.fix,
        "file": target.file,
        "function": target.function,
        "verdict": verdict.verdict,
        "shape": _shape(finding),
        "code": verdict.code,
        "detail": verdict.detail,
        "hint": verdict.hint,
        "nearest": verdict.nearest.document() if verdict.nearest is not None else None,
    }
    return told if changed is None else {**told, "changed": _is_changed(finding, changed)}


def _line(finding: Finding, changed: frozenset[str] | None, colour: bool) -> str:
    verdict = finding.verdict
    word = f"{verdict.verdict:<14}"
    word = f"\x1b[{COLOURS[verdict.verdict]}m{word}\x1b[0m" if colour else word
    done = "  (changed now)" if changed is not None and _is_changed(finding, changed) else ""
    detail = f"  {verdict.detail}" if verdict.detail else ""
    hint = f"\n{'':18}hint: {verdict.hint}" if verdict.hint and verdict.verdict in (DRIFTED, UNLISTED) else ""
    return f"  {word}  {finding.target.fix:<24}  {finding.target.file}  {finding.target.function}{done}{detail}{hint}"


def _by_installation(findings: Iterable[Finding]) -> Iterable[tuple[Any, list[Finding]]]:
    """The findings to show: for each installation, one for each fix, the one with the most to do."""
    shown: dict[Any, dict[str, Finding]] = {}
    for finding in findings:
        group = shown.setdefault(finding.installation, {})
        other = group.get(finding.target.fix)
        if other is None or _rank(finding) < _rank(other):
            group[finding.target.fix] = finding
    return [(installation, list(group.values())) for installation, group in shown.items()]


def _rank(finding: Finding) -> tuple[int, bool]:
    # of two that are not affected, the file that is there says more
    return URGENCY.index(finding.verdict.verdict), finding.seen.data is None


def _is_changed(finding: Finding, changed: frozenset[str]) -> bool:
    import os

    return os.path.realpath(finding.seen.path) in changed


def _code(seen: Observation) -> str:
    """What stands for a file's code: the digest of its bytes, or what is in its place where those were not read."""
    return seen.sha256 or (f"{seen.problem}: {seen.detail}" if seen.problem else "-")


def _shape(finding: Finding) -> str | None:
    return finding.seen.shape


def _environment(environment: Environment) -> Mapping[str, str | None]:
    return {"python": environment.python, "prefix": environment.prefix, "found_by": environment.found_by}


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")
