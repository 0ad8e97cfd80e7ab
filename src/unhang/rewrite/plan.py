"""The plan of a run, whole in memory before a byte is written: verdicts for every target, and the files' new bytes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

from unhang.errors import UnhangError
from unhang.judge.decide import DRIFTED, NEEDED, NOT_AFFECTED, SETTLED, UNLISTED, Past, Verdict, decide
from unhang.judge.observe import Observation, observe, package_of
from unhang.judge.observe import judge as judge_bytes
from unhang.records import Installation
from unhang.shapes import catalog
from unhang.shapes.catalog import Fix, Target


class Finding(NamedTuple):
    """One fix on one installation, for one target: a line of every report."""

    installation: Installation
    target: Target
    seen: Observation
    verdict: Verdict

    @property
    def settled(self) -> bool:
        """Whether nothing is left to do here."""
        return self.verdict.verdict in SETTLED


class FilePlan(NamedTuple):
    """One file to rewrite."""

    installation: Installation
    path: str
    """The real file."""
    before: bytes
    after: bytes
    steps: tuple[tuple[Target, str, str, bool], ...]
    """For each function: its target, its shape before and after, and whether that shape was listed."""


class Blocked(NamedTuple):
    """A fix that cannot go into an installation, whole: nothing of it is written there."""

    installation: Installation
    fix: str
    target: Target
    reason: str
    hint: str


class Original(NamedTuple):
    """What the receipt keeps of a file that we patched: where an upgrade of a rewrite starts from."""

    patched: str
    """The sha256 that the file has as we left it."""
    data: bytes
    """Its bytes before the first fix."""
    steps: tuple[tuple[Target, str], ...]
    """The functions that we rewrote in it, and the shapes they have since."""


class Plan(NamedTuple):
    """What ``apply`` would write, and what it could not."""

    files: tuple[FilePlan, ...]
    blocked: tuple[Blocked, ...]


def judge(
    installations: Iterable[Installation], fixes: Iterable[Fix], past: Callable[[str, Target], Past | None]
) -> list[Finding]:
    """The verdict of every fix on every installation that has a target of it.

    ``past`` gives what the receipt says of a file (its real path) and a target. Raises UnhangError ``unreadable``.
    """
    table = catalog.shape_table()
    findings = []
    for installation in installations:
        for fix in fixes:
            for target in fix.targets:
                if target.upstream != installation.upstream:
                    continue
                try:
                    seen = observe(installation, target, table)
                except OSError as error:
                    hint = "run unhang as a user who may read it"
                    raise UnhangError("unreadable", str(error.strerror), path=error.filename, hint=hint) from error
                releases = _Lazy(installation.upstream)
                known = past(seen.real or os.path.realpath(seen.path), target)
                verdict = decide(target, installation, seen, table, releases, known)
                if verdict.verdict == UNLISTED and seen.shape is None:
                    verdict = _moved(installation, fix, target) or verdict
                findings.append(Finding(installation, target, seen, verdict))
    return findings


def _moved(installation: Installation, fix: Fix, gone: Target) -> Verdict | None:
    """The verdict on a function that is gone from this file, and stands in another target of the fix beside it."""
    for target in fix.targets:
        beside = installation._replace(
            upstream=target.upstream, package_dir=os.path.join(installation.root, *package_of(target))
        )
        with suppress(OSError):
            if target.function == gone.function and observe(beside, target, catalog.shape_table()).shape is not None:
                return Verdict(NOT_AFFECTED, None, f"not in this file: it stands in {target.file}, judged there", "")
    return None


def plan(findings: Iterable[Finding], original: Callable[[str], Original | None], *, unverified: bool = False) -> Plan:
    """The files that bring every needed fix into place, and the fixes that cannot go in, whole.

    ``original`` gives what the receipt keeps of a file, by its real path: a rewrite of an older version of ours goes
    back to it first. With ``unverified``, unknown shapes are tried as well, on the strength of anchors, post-condition
    and second pass.
    """
    findings = list(findings)
    blocked: dict[tuple[Installation, str], Blocked] = {}
    for finding in findings:
        if not finding.settled and not _may_try(finding.verdict, unverified):
            _block(blocked, finding, finding.verdict.detail, finding.verdict.hint)
    while True:
        files, failed = _rewrite(findings, blocked, original, unverified)
        if failed is None:
            return Plan(tuple(files), tuple(blocked.values()))
        # Whole or not at all: leave this fix out of this installation, and plan the others anew.
        finding, reason = failed
        _block(blocked, finding, reason, "compare the function with `unhang explain`, or reinstall the package")


def _rewrite(
    findings: list[Finding],
    blocked: Mapping[tuple[Installation, str], Blocked],
    original: Callable[[str], Original | None],
    unverified: bool,
) -> tuple[list[FilePlan], tuple[Finding, str] | None]:
    """All files rewritten, or the first finding whose rewrite does not hold, and why."""
    by_path: dict[str, list[Finding]] = {}
    for finding in findings:
        if _may_try(finding.verdict, unverified) and (finding.installation, finding.target.fix) not in blocked:
            by_path.setdefault(os.path.realpath(finding.seen.path), []).append(finding)
    if not by_path:
        return [], None

    from unhang.rewrite.one_file import RewriteError, Step, rewrite

    table = catalog.shape_table()
    files = []
    for path, group in by_path.items():
        known = [
            table.shapes.get((finding.target.fix, finding.target.function, finding.seen.shape or ""))
            for finding in group
        ]
        results = [shape.result if shape else None for shape in known]
        shapes = [finding.seen.shape if finding.seen.on_record else None for finding in group]
        steps = [Step(finding.target, *told) for finding, *told in zip(group, results, shapes)]
        before = base = group[0].seen.data
        assert before is not None  # a verdict that may be tried has seen a function
        kept = original(path)
        if kept is not None and kept.patched != group[0].seen.sha256 and _stands(kept, before, table):
            return [], (group[0], "the file was edited since it was patched, and its original could not be kept")
        if kept is not None and any(shape is not None and shape.state == "superseded" for shape in known):
            # old -> pristine -> new: with it come the other functions that we rewrote in this file
            again = {finding.target for finding in group}
            steps = [step._replace(known=None) for step in steps]
            steps = [*(Step(target, shape) for target, shape in kept.steps if target not in again), *steps]
            base = kept.data
        try:
            done = rewrite(base or b"", steps)
        except RewriteError as error:
            mine = [finding for finding in group if finding.target == error.target]
            return [], ((mine or group)[0], str(error))
        for finding, (shape_before, shape_after) in zip(group, done.shapes[-len(group) :]):
            if shape_before == shape_after:  # to write it would take what it is now for the original
                return [], (finding, "it holds our rewrite already, and was edited since")
        told = tuple((step.target, *shapes, step.result is not None) for step, shapes in zip(steps, done.shapes))
        files.append(FilePlan(group[0].installation, path, before, done.data, told))
    return files, None


def _stands(kept: Original, data: bytes, table: catalog.ShapeTable) -> bool:
    """Whether a rewrite of ours still stands in the file: it was edited then, and not reinstalled."""
    if any(f"# unhang {target.fix}:".encode() in data for target, _ in kept.steps):
        return True
    return any(judge_bytes("", data, target.function, table.files).shape == shape for target, shape in kept.steps)


def _may_try(verdict: Verdict, unverified: bool) -> bool:
    if verdict.verdict == NEEDED:
        return True
    return unverified and verdict.verdict in (DRIFTED, UNLISTED) and verdict.code in _TRIABLE


# The codes under which there is one function to try a rewrite on.
_TRIABLE = frozenset({"unknown-shape", "newer-than-matrix", "older-than-floor"})


def _block(blocked: dict[tuple[Installation, str], Blocked], finding: Finding, reason: str, hint: str) -> None:
    key = finding.installation, finding.target.fix
    blocked.setdefault(key, Blocked(finding.installation, finding.target.fix, finding.target, reason, hint))


class _Lazy(Mapping[str, catalog.Release]):
    """An upstream's releases, read from disk only if somebody asks: known shapes need none of them."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream

    def _releases(self) -> Mapping[str, catalog.Release]:
        return catalog.releases().get(self._upstream, {})

    def __getitem__(self, version: str) -> catalog.Release:
        return self._releases()[version]

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(self._releases())

    def __len__(self) -> int:
        return len(self._releases())
