"""What is in an environment now: its installations, what earlier runs did to them, and the verdicts."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, NamedTuple

from unhang.errors import UnhangError
from unhang.find import environment, locate
from unhang.judge.decide import APPLIED, UNVERIFIED, refused
from unhang.judge.findings import Finding, PastTable, judge
from unhang.records import Environment, Request, Search
from unhang.shapes import catalog
from unhang.store import state
from unhang.suggest import command, complete

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unhang.rewrite.plan import Original, Plan
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
    findings = judge(search.installations, fixes, past, request.script)
    if search.overlays:
        from unhang.find.overlays import load
        from unhang.judge.overlaid import overlaid

        loaded = [load(folder) for folder in search.overlays]
        findings = [overlaid(finding, loaded) for finding in findings]
    if request.unverified:
        findings = [_accepted(finding) for finding in findings]
    known = (*search.warnings, *(text for text in warnings if text not in search.warnings))
    seen = Survey(search._replace(warnings=known), tuple(receipts), tuple(findings), interrupted(search))
    return seen._replace(findings=tuple(_with_hint(finding, seen, request) for finding in findings))


def _accepted(finding: Finding) -> Finding:
    """Return a finding on a rewrite that `--unverified` made as one that is applied: the user has accepted it."""
    if finding.verdict.code != UNVERIFIED:
        return finding
    return finding._replace(verdict=finding.verdict._replace(verdict=APPLIED, hint=""))


def _with_hint(finding: Finding, seen: Survey, request: Request) -> Finding:
    """Return the finding with a hint that can be pasted, and that suggests nothing which would be refused."""
    verdict = finding.verdict
    if not verdict.hint:
        return finding
    if " --unverified " in verdict.hint:
        # A fix goes in whole or not at all. Trying costs more than all else in `check`, but only such a shape needs it.
        place, fix = finding.installation, finding.target.fix
        group = tuple(one for one in seen.findings if (one.installation, one.target.fix) == (place, fix))
        try:
            blocked = planned(seen._replace(findings=group), unverified=True).blocked
        except UnhangError as error:
            verdict = refused(verdict, fix, error.message)
        else:
            verdict = refused(verdict, fix, blocked[0].reason) if blocked else verdict
    if overlay := finding.overlay or next(iter(seen.search.overlays), None):
        request = request._replace(writer=("overlay", overlay))
    return finding._replace(verdict=verdict._replace(hint=complete(verdict.hint, request)))


def interrupted(search: Search) -> bool:
    """Return whether a run was killed in one of the roots, or is at work there."""
    return any(state.interrupted(state.folder(root)) for root in search.roots)


def planned(seen: Survey, *, unverified: bool = False) -> Plan:
    """Return the plan for what was found. Raises UnhangError ``bad-receipt``, and as ``rewrite.plan.plan`` does."""
    from unhang.rewrite.plan import plan  # `check` plans nothing

    return plan(seen.findings, _originals(seen, unverified), unverified=unverified)


def planned_without_lock(request: Request) -> tuple[Survey, Plan | None]:
    """Return an environment's survey and its plan, while other runs may write there.

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
            originals = {} if seen.interrupted else _originals(seen, request.unverified)
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

                return seen, plan(seen.findings, originals, unverified=request.unverified)
            if error is not None and last is not None:  # twice, although nobody wrote: a rollback leaves no other trace
                raise error
            last = error
        time.sleep(pause)
    return seen._replace(interrupted=True), None


def _originals(seen: Survey, unverified: bool) -> Mapping[str, Original]:
    from unhang.rewrite.plan import paths_to_rewrite
    from unhang.store import history

    return history.originals(seen.receipts, paths_to_rewrite(seen.findings, unverified=unverified))


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
