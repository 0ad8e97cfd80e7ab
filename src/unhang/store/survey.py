"""What is in an environment now: its installations, what earlier runs did to them, and the verdicts."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, NamedTuple

from unhang.errors import UnhangError
from unhang.find import environment, locate
from unhang.judge import accept
from unhang.judge.decide import refused
from unhang.judge.findings import Finding, PastTable, judge
from unhang.records import Environment, Installation, Request, Search
from unhang.shapes import catalog
from unhang.store import state
from unhang.suggest import command, complete

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unhang.rewrite.plan import Original, Plan
    from unhang.shapes.catalog import Target
    from unhang.store.receipt import Receipt


_PAUSES_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
"""How long to wait for a run that is writing, before each time that its files are read again."""


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


def find(request: Request) -> Search:
    """Return the environment that the request names, and its installations of the upstreams that it names.

    Raises UnhangError ``no-overlay``, and as ``environment.named`` and ``locate.search`` do.
    """
    cwd = os.getcwd()
    place = environment.named(request, cwd, os.environ)
    search = locate.search(place, script=request.script, cwd=cwd)
    inside = tuple(found for found in search.installations if found.upstream in request.upstreams)
    return _with_overlays(search._replace(installations=inside), request, cwd)


def _with_overlays(search: Search, request: Request, cwd: str) -> Search:
    """Return the search with the overlays that are to be judged, and what the user should know about the others."""
    has_python = search.environment.found_by not in ("--target", "--source")
    python_path = os.environ.get("PYTHONPATH", "") if has_python else ""
    if not python_path and request.overlay is None:
        return search
    from unhang.find import overlays  # most runs have none

    first = [] if request.overlay is None else [os.path.abspath(request.overlay)]
    used, unused = overlays.on_path([*first, *overlays.folders(python_path, cwd)])
    if first and first != used[:1]:
        hint = "give the folder that `unhang overlay` has written"
        raise UnhangError("no-overlay", "there is no overlay in this folder", path=first[0], hint=hint)
    if request.as_imported:
        return search._replace(overlays=tuple(used), warnings=(*search.warnings, *unused))
    about = "this run is about the originals, `unhang check` about what a job imports"
    notes = [f"PYTHONPATH has the overlay {folder}; {about}" for folder in used]
    return search._replace(warnings=(*search.warnings, *notes, *unused))


def survey(request: Request) -> Survey:
    """Return the environment's survey.

    Raises UnhangError as ``find_some``, ``findings.judge`` and ``receipt.load`` do.
    """
    return again(find_some(request), request)


def find_some(request: Request) -> Search:
    """Return as ``find``; raise UnhangError ``no-upstream`` if that is nothing, and the request does not allow it."""
    search = find(request)
    if not search.installations and not request.allow_none:
        raise nothing_found(search, request)
    return search


def again(search: Search, request: Request) -> Survey:
    """Return the survey of an environment that was searched before: its files and its receipts may have changed.

    The receipt of a folder that is not to be trusted is left out, with a warning: no verdict rests on it.
    """
    receipts: list[Receipt] = []
    past: PastTable = {}
    warnings = []
    with_receipt = [folder for folder in map(state.folder, search.roots) if state.has_receipt(folder)]
    if with_receipt:
        from unhang.store import history, receipt  # a first run needs neither

        for folder in with_receipt:
            try:
                found = receipt.load(folder)
            except UnhangError as error:
                if error.code != "bad-state":
                    raise
                warnings.append(f"{error.message}: its receipt is not read")
            else:
                receipts += [found] if found else []
        past = history.past(receipts)
    fixes = [catalog.fix(name) for name in request.fixes]
    findings = accept.named(judge(search.installations, fixes, past, request.script), request.accepted)
    seen = Survey(search, tuple(receipts), tuple(findings), interrupted(search))
    findings = _tried(seen)
    if search.overlays:
        from unhang.find.overlays import load
        from unhang.judge.overlaid import overlaid

        loaded = [load(folder) for folder in search.overlays]
        findings = [overlaid(finding, loaded) for finding in findings]
    findings = accept.named(findings, request.accepted)
    if request.writer[0] != "wheel":  # a token may be for another of its wheels
        warnings += accept.unused(request.accepted, findings)
    known = (*search.warnings, *(text for text in warnings if text not in search.warnings))
    findings = [_with_hint(finding, search, request) for finding in findings]
    return seen._replace(search=search._replace(warnings=known), findings=tuple(findings))


def _tried(seen: Survey) -> list[Finding]:
    """Return the findings, each triable one with the result of its rewrite, or with the reason why there is none.

    `diff --unknown` shows exactly those with a result, so its hint and what it does are one decision. Trying costs
    more than all else in `check`, but only an unknown shape needs it.
    """
    findings = [finding._replace(result="") if finding.verdict.triable else finding for finding in seen.findings]
    tried = dict.fromkeys((finding.installation, finding.target.fix) for finding in findings if finding.result == "")
    results: dict[tuple[str, Target], str] = {}
    why: dict[tuple[Installation, Target], str] = {}
    for place, fix in tried:  # a fix goes in whole or not at all
        group = [finding for finding in findings if (finding.installation, finding.target.fix) == (place, fix)]
        group = [finding._replace(accepted=finding.accepted or finding.result == "") for finding in group]
        try:
            made = planned(seen._replace(findings=tuple(group)))
        except UnhangError as error:
            why.update({(place, finding.target): error.message for finding in group})
            continue
        results.update({(file.path, step.target): step.after for file in made.files for step in file.steps})
        for item in made.blocked:  # one at the most
            other = f"the fix goes in whole or not at all, and {item.target.file} is in the way: {item.reason}"
            why.update({(place, finding.target): other for finding in group})
            why[place, item.target] = item.reason

    def decided(finding: Finding) -> Finding:
        if finding.result is None:
            return finding
        reason = why.get((finding.installation, finding.target))
        if reason is None:
            return finding._replace(result=results[os.path.realpath(finding.seen.path), finding.target])
        return finding._replace(result=None, verdict=refused(finding.verdict, finding.target.fix, reason))

    return [decided(finding) for finding in findings]


def _with_hint(finding: Finding, search: Search, request: Request) -> Finding:
    """Return the finding with a hint that can be pasted."""
    verdict = finding.verdict
    if not verdict.hint:
        return finding
    if overlay := finding.overlay or next(iter(search.overlays), None):
        request = request._replace(writer=("overlay", overlay))
    return finding._replace(verdict=verdict._replace(hint=complete(verdict.hint, request)))


def interrupted(search: Search) -> bool:
    """Return whether a run was killed in one of the roots, or is at work there."""
    return any(state.interrupted(state.folder(root)) for root in search.roots)


def planned(seen: Survey) -> Plan:
    """Return the plan for what was found. Raises UnhangError ``bad-receipt``, and as ``rewrite.plan.plan`` does."""
    from unhang.rewrite.plan import plan  # `check` plans nothing

    return plan(seen.findings, _originals(seen))


def planned_without_lock(request: Request, *, unknown: bool = False) -> tuple[Survey, Plan | None]:
    """Return an environment's survey and its plan, while other runs may write there.

    With ``unknown``, both are about the fixes that an unknown shape holds back, as if each rewrite were accepted.
    If what was read does not belong together, waits and reads again. There is no plan if the survey is interrupted: a
    run was killed, or others keep writing. Raises UnhangError as ``survey`` and ``planned``.
    """
    search = find_some(request)
    last: UnhangError | None = None
    seen = Survey(search, (), (), interrupted=True)
    for pause in _PAUSES_S:
        before, error = _stamps(search), None
        try:
            seen = again(search, request)
            if unknown:
                seen = seen._replace(findings=tuple(accept.for_show(seen.findings)))
            originals = {} if seen.interrupted else _originals(seen)
        except UnhangError as caught:
            if caught.code != "bad-receipt":
                raise
            error = caught
        # Look for a journal first: a run replaces the receipt before its journal goes.
        if interrupted(search):
            if not _is_written(search):
                break
        elif before == _stamps(search):
            if error is None and not seen.interrupted:
                from unhang.rewrite.plan import plan

                return seen, plan(seen.findings, originals)
            if error is not None and last is not None:  # twice, although nobody wrote: a rollback leaves no other trace
                raise error
            last = error
        time.sleep(pause)
    return seen._replace(interrupted=True), None


def _originals(seen: Survey) -> Mapping[str, Original]:
    from unhang.rewrite.plan import paths_to_rewrite
    from unhang.store import history

    return history.originals(seen.receipts, paths_to_rewrite(seen.findings))


def _stamps(search: Search) -> list[tuple[int, int] | None]:
    """Return what differs after each write: a receipt with the same bytes is another file."""
    return [state.stamp(state.folder(root)) for root in search.roots]


def _is_written(search: Search) -> bool:
    from unhang.store.lock import is_held

    return any(is_held(state.folder(root)) for root in search.roots)


def nothing_found(search: Search, request: Request) -> UnhangError:
    """Return the error ``no-upstream``."""
    where = search.environment.python or search.environment.prefix
    names = ", ".join(request.upstreams)
    warned = "".join(f"; {warning}" for warning in search.warnings)
    return UnhangError(
        "no-upstream",
        f"none of {names} is installed in {where} (found by {search.environment.found_by}){warned}",
        path=search.environment.prefix,
        hint=_copy_below(search, request)
        or "name the environment with --python PY, a site-packages folder with --target DIR, a checkout with "
        "--source DIR; or pass --allow-none",
    )


def _copy_below(search: Search, request: Request) -> str:
    """Return a hint that names copies deeper in the folder of ``--target`` or ``--source``; empty if there are none."""
    if search.environment.python is not None:
        return ""
    from itertools import islice

    from unhang.find import below

    modules = [module for upstream, module, _ in locate.UPSTREAMS if upstream in request.upstreams]
    copies = list(islice(below.roots(search.environment.prefix, modules), 3))
    if not copies:
        return ""
    there = request._replace(target=copies[0]) if request.target else request._replace(source=copies[0])
    return f"below it there is a copy in {', '.join(copies)}; run: {command('check', there)}"
