"""What is in an environment now: its installations, what earlier runs did to them, and the verdicts."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from unhang.errors import UnhangError
from unhang.judge import accept, companions
from unhang.judge.decide import FIXED_UPSTREAM, NEEDED
from unhang.judge.findings import Finding, PastTable, judge
from unhang.records import Environment, Request, Search
from unhang.shapes import catalog
from unhang.store import state
from unhang.suggest import complete
from unhang.survey.search import find_some
from unhang.survey.trial import tried

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from unhang.records import Installation
    from unhang.store.receipt import Receipt


class Survey(NamedTuple):
    """An environment as one run sees it."""

    search: Search
    receipts: tuple[Receipt, ...]
    findings: tuple[Finding, ...]
    interrupted: bool
    """Whether an earlier run was killed halfway (or another run is writing now)."""

    @property
    def environment(self) -> Environment:
        """The environment that was searched."""
        return self.search.environment


def survey(request: Request) -> Survey:
    """Return the environment's survey.

    Raises UnhangError as ``find_some``, ``findings.judge`` and ``receipt.load`` do.
    """
    return again(find_some(request), request)


def _installed(search: Search, request: Request) -> tuple[Installation, ...]:
    """Return what a job may run: ``--upstream`` says what is judged, and not that."""
    if request.upstreams and not request.image and request.writer[0] != "wheel":
        with suppress(UnhangError):
            return find_some(request._replace(upstreams=())).installations
    return search.installations


def again(search: Search, request: Request) -> Survey:
    """Return the survey of an environment that was searched before: its files and its receipts may have changed.

    The receipt of a folder that is not to be trusted is left out, with a warning: no verdict rests on it.
    """
    receipts: list[Receipt] = []
    past: PastTable = {}
    warnings = []
    with_receipt = [folder for folder in map(state.folder, search.roots) if state.has_receipt(folder)]
    if with_receipt:
        from unhang.store.receipt import load  # a first run needs neither
        from unhang.survey import history

        for folder in with_receipt:
            try:
                receipt = load(folder)
            except UnhangError as error:
                warnings.append(f"{error.message}: its receipt is not read")
            else:
                receipts += [receipt] if receipt else []
        past = history.past(receipts)
    fixes = [catalog.fix(name) for name in (*request.fixes, *request.companions)]
    judged = judge(search.installations, fixes, past, request.script, search.packages)
    was_interrupted = interrupted(search)
    findings = tried(accept.named(judged, request.accepted), receipts)
    if search.overlays:
        from unhang.find.overlays import load as load_overlay
        from unhang.judge import stale
        from unhang.judge.overlaid import overlaid

        loaded = [stale.of_overlay(load_overlay(folder), search) for folder in search.overlays]
        findings = [overlaid(finding, loaded) for finding in findings]
    findings = accept.named(findings, request.accepted)
    if search.pycache_prefix or _have_bytecode(findings):
        from unhang.judge import stale

        findings = stale.judged(findings, search)
    findings = companions.along(findings, request.companions, request.skipped)
    if request.job is not None:
        from unhang.job import lookup  # it imports ast
        from unhang.survey import jobs

        there = _installed(search, request)
        findings = jobs.told(findings, request.job, there)
        warnings += (*lookup.notes(request.job, there), *jobs.slips(request.job))
    else:
        findings = companions.with_harms(
            findings, search.installations, all_=not request.upstreams and request.writer[0] != "wheel"
        )
    if request.writer[0] != "wheel":  # a token may be for another of its wheels
        warnings += accept.unused(request.accepted, findings)
    known = (*search.warnings, *(text for text in warnings if text not in search.warnings))
    findings = [_with_hint(finding, search, request) for finding in findings]
    return Survey(search._replace(warnings=known), tuple(receipts), tuple(findings), was_interrupted)


def interrupted(search: Search) -> bool:
    """Return whether a run was killed in one of the roots, or is at work there."""
    return any(state.interrupted(state.folder(root)) for root in search.roots)


def unlisted(seen: Survey, asleep: Collection[str] = ()) -> list[Finding]:
    """Return the rewritten functions whose file no receipt lists; one that is ``asleep`` is listed with other bytes.

    An import that a person has added, where nothing else of the fix is in place, is theirs: that fix is needed.
    """
    listed = {entry.path for receipt in seen.receipts for entry in receipt.files} - {*asleep}
    mine = (it for it in seen.findings if it.rewritten and it.verdict.verdict not in (NEEDED, FIXED_UPSTREAM))
    return [finding for finding in mine if finding.seen.real not in listed]


def _have_bytecode(findings: Iterable[Finding]) -> bool:
    """Return whether there is bytecode beside what was observed."""
    observed = {it.path for finding in findings for it in (finding.seen, finding.depends) if it is not None}
    return any(
        os.path.isdir(os.path.join(folder, "__pycache__")) for folder in {os.path.dirname(path) for path in observed}
    )


def _with_hint(finding: Finding, search: Search, request: Request) -> Finding:
    """Return the finding with a hint that can be pasted."""
    verdict = finding.verdict
    if not verdict.hint:
        return finding
    if overlay := finding.overlay or next(iter(search.overlays), None):
        request = request._replace(writer=("overlay", overlay))
    return finding._replace(verdict=verdict._replace(hint=complete(verdict.hint, request)))
