"""What is in an environment now: its installations, what earlier runs did to them, and the verdicts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from unhang.errors import UnhangError
from unhang.find import environment, locate
from unhang.judge.findings import Finding, PastTable, judge
from unhang.records import Environment, Request, Search
from unhang.shapes import catalog
from unhang.store import state

if TYPE_CHECKING:
    from unhang.rewrite.plan import Plan
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
    findings = judge(search.installations, fixes, past)
    if search.overlays:
        from unhang.find.overlays import load
        from unhang.judge.overlaid import overlaid

        loaded = [load(folder) for folder in search.overlays]
        findings = [overlaid(finding, loaded) for finding in findings]
    known = (*search.warnings, *(text for text in warnings if text not in search.warnings))
    return Survey(search._replace(warnings=known), tuple(receipts), tuple(findings), interrupted(search))


def interrupted(search: Search) -> bool:
    """Return whether a run was killed in one of the roots, or is at work there."""
    return any(state.interrupted(state.folder(root)) for root in search.roots)


def planned(seen: Survey, *, unverified: bool = False) -> Plan:
    """Return the plan for what was found. Raises UnhangError ``bad-receipt``, and as ``rewrite.plan.plan`` does."""
    from unhang.rewrite.plan import paths_to_rewrite, plan  # `check` plans nothing
    from unhang.store import history

    paths = paths_to_rewrite(seen.findings, unverified=unverified)
    originals = history.originals(seen.receipts, paths)
    return plan(seen.findings, originals, unverified=unverified)


def nothing_found(search: Search, request: Request) -> UnhangError:
    """Return the error ``no-upstream``."""
    where = search.environment.python or search.environment.prefix
    names = ", ".join(request.upstreams)
    warned = "".join(f"; {warning}" for warning in search.warnings)
    return UnhangError(
        "no-upstream",
        f"none of {names} is installed in {where} (found by {search.environment.found_by}){warned}",
        path=search.environment.prefix,
        hint="name the environment with --python PY, a site-packages folder with --target DIR, a checkout with "
        "--source DIR; or pass --allow-none",
    )
