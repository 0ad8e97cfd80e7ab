"""The plan of a run, complete in memory before a byte is written: which files get which bytes, and what is blocked."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from unhang.judge.decide import NEEDED
from unhang.judge.findings import Finding
from unhang.judge.observe import observe_bytes
from unhang.records import Installation
from unhang.shapes import catalog
from unhang.shapes.catalog import Target


class Rewritten(NamedTuple):
    """One function that is rewritten."""

    target: Target
    before: str
    """Its shape before."""
    after: str
    """Its shape after."""
    listed: bool
    """Whether the shape before is on record; False for one that a person accepted."""


class FilePlan(NamedTuple):
    """One file to rewrite."""

    installation: Installation
    path: str
    """The real file."""
    before: bytes
    after: bytes
    steps: tuple[Rewritten, ...]


class Blocked(NamedTuple):
    """A fix that cannot go into an installation as a whole, so nothing of it is written there."""

    installation: Installation
    fix: str
    target: Target
    reason: str
    hint: str


class Original(NamedTuple):
    """What the receipt keeps of a file that we patched: the starting point for upgrading a rewrite."""

    patched: str
    """The sha256 of the file as we left it."""
    data: bytes
    """Its bytes before the first fix."""
    steps: tuple[tuple[Target, str], ...]
    """The functions that we rewrote in it, and the shapes that they got."""


class Plan(NamedTuple):
    """What ``apply`` would write, and what it cannot."""

    files: tuple[FilePlan, ...]
    blocked: tuple[Blocked, ...]


class _Failure(NamedTuple):
    finding: Finding
    reason: str


def paths_to_rewrite(findings: Iterable[Finding]) -> list[str]:
    """Return the real paths of the files that a plan would rewrite: it needs their originals."""
    return list(_by_path(filter(_is_to_rewrite, findings)))


def plan(findings: Sequence[Finding], originals: Mapping[str, Original]) -> Plan:
    """Plan the files that bring every needed fix into place, and name the fixes that are blocked.

    ``originals`` holds what the receipt keeps, by real path, of the files that ``paths_to_rewrite`` names.
    """
    blocked: dict[tuple[Installation, str], Blocked] = {}
    for finding in findings:
        if not finding.settled and not _is_to_rewrite(finding):
            _block(blocked, finding, finding.verdict.detail, finding.verdict.hint)
    planned: dict[tuple[str, tuple[Target, ...]], FilePlan | _Failure] = {}
    while True:
        wanted = (
            finding
            for finding in findings
            if _is_to_rewrite(finding) and (finding.installation, finding.target.fix) not in blocked
        )
        results = []
        for path, group in _by_path(wanted).items():
            key = path, tuple(finding.target for finding in group)
            if key not in planned:  # a fix that was blocked in another file changes nothing here
                planned[key] = _planned(path, group, originals.get(path))
            results.append(planned[key])
        failures = [result for result in results if isinstance(result, _Failure)]
        if not failures:
            files = tuple(result for result in results if isinstance(result, FilePlan))
            return Plan(files, tuple(blocked.values()))
        # A fix goes in whole or not at all: leave this one out of this installation, and plan again.
        first = failures[0].finding
        hint = f"compare the function with `unhang explain {first.target.fix}`, or reinstall the package"
        _block(blocked, first, failures[0].reason, hint)


def _planned(path: str, group: Sequence[Finding], original: Original | None) -> FilePlan | _Failure:
    """Rewrite one file for these findings, or say which of them cannot be rewritten."""
    from unhang.rewrite.one_file import RewriteError, Step, rewrite  # it imports ast

    first = group[0]
    now = first.seen.data
    assert now is not None  # a finding that may be tried has a function, so it has a file
    if original is not None and original.patched != first.seen.sha256 and _still_patched(now, original):
        return _Failure(first, "the file was edited since it was patched, and its original could not be kept")
    base, steps = now, []
    for finding in group:
        if known := finding.known:
            steps.append(Step(finding.target, known.result, finding.seen.shape if finding.seen.on_record else None))
        else:
            steps.append(Step(finding.target, finding.result or None))
    if original is not None and any(finding.known and finding.known.state == "superseded" for finding in group):
        # Upgrade from the original bytes, with the other functions that we rewrote in this file.
        again = {finding.target for finding in group}
        others = [Step(target, shape) for target, shape in original.steps if target not in again]
        base, steps = original.data, [*others, *(step._replace(known=None) for step in steps)]
    try:
        done = rewrite(base, steps)
    except RewriteError as error:
        return _Failure(next((finding for finding in group if finding.target == error.target), first), str(error))
    accepted = {finding.target for finding in group if not finding.known}
    rewritten = (
        Rewritten(step.target, *shapes, step.target not in accepted) for step, shapes in zip(steps, done.shapes)
    )
    return FilePlan(first.installation, path, now, done.data, tuple(rewritten))


def _still_patched(data: bytes, original: Original) -> bool:
    """Return whether a rewrite of ours is still in the file: then it was edited, and not reinstalled."""
    if any(f"# unhang {target.fix}:".encode() in data for target, _ in original.steps):
        return True
    files = catalog.shape_table().files
    return any(observe_bytes("", data, target.function, files).shape == shape for target, shape in original.steps)


def _by_path(findings: Iterable[Finding]) -> dict[str, list[Finding]]:
    groups: dict[str, list[Finding]] = {}
    for finding in findings:
        groups.setdefault(os.path.realpath(finding.seen.path), []).append(finding)
    return groups


def _is_to_rewrite(finding: Finding) -> bool:
    return finding.verdict.verdict == NEEDED or (finding.accepted and finding.result is not None)


def _block(blocked: dict[tuple[Installation, str], Blocked], finding: Finding, reason: str, hint: str) -> None:
    key = finding.installation, finding.target.fix
    blocked.setdefault(key, Blocked(finding.installation, finding.target.fix, finding.target, reason, hint))
