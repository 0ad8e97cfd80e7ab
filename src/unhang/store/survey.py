"""What is in an environment now: its installations, what earlier runs did to them, and the verdicts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from unhang.errors import UnhangError
from unhang.find import environment, locate
from unhang.judge.findings import Finding, PastTable, judge
from unhang.records import Environment, Request, Search
from unhang.shapes import catalog
from unhang.store.state import has_receipt, interrupted

if TYPE_CHECKING:
    from unhang.rewrite.plan import Plan
    from unhang.store.receipt import Receipt


class Survey(NamedTuple):
    """An environment as one run sees it."""

    search: Search
    receipt: Receipt | None
    findings: tuple[Finding, ...]
    interrupted: bool
    """Whether an earlier run was killed halfway (or another run is writing now)."""

    @property
    def environment(self) -> Environment:
        """The environment that was searched."""
        return self.search.environment


def find(request: Request) -> Search:
    """Return the environment that the request names, and its installations of the upstreams that it names.

    Raises UnhangError as ``environment.named`` and ``locate.search`` do.
    """
    cwd = os.getcwd()
    place = environment.named(request, cwd, os.environ)
    search = locate.search(place, script=request.script, cwd=cwd)
    inside = tuple(found for found in search.installations if found.upstream in request.upstreams)
    return search._replace(installations=inside)


def survey(request: Request) -> Survey:
    """Return the environment's survey.

    Raises UnhangError ``no-upstream`` if there is no installation and the request does not allow that, and as ``find``,
    ``findings.judge`` and ``receipt.load`` do.
    """
    search = find(request)
    if not search.installations and not request.allow_none:
        raise nothing_found(search, request)
    return again(search, request)


def again(search: Search, request: Request) -> Survey:
    """Return the survey of an environment that was searched before: its files and its receipt may have changed."""
    state_dir = search.environment.state_dir
    kept: Receipt | None = None
    past: PastTable = {}
    if has_receipt(state_dir):
        from unhang.store import history, receipt  # a first run needs neither

        kept = receipt.load(state_dir)
        past = history.past(kept)
    fixes = [catalog.fix(name) for name in request.fixes]
    findings = judge(search.installations, fixes, past)
    return Survey(search, kept, tuple(findings), interrupted(state_dir))


def planned(seen: Survey, *, unverified: bool = False) -> Plan:
    """Return the plan for what was found. Raises UnhangError ``bad-receipt``, and as ``rewrite.plan.plan`` does."""
    from unhang.rewrite.plan import paths_to_rewrite, plan  # `check` plans nothing
    from unhang.store import history

    paths = paths_to_rewrite(seen.findings, unverified=unverified)
    originals = history.originals(seen.environment.state_dir, seen.receipt, paths)
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
