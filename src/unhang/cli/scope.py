"""What a command is about: the environment, its installations, the fixes named, and what the receipt says of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from unhang.errors import UnhangError
from unhang.find import environment, locate
from unhang.judge.findings import Finding, judge
from unhang.records import UPSTREAMS, Environment, Search
from unhang.rewrite.plan import Original, paths_to_rewrite
from unhang.shapes import catalog
from unhang.shapes.catalog import Fix
from unhang.store import history, receipt
from unhang.store.state import interrupted

if TYPE_CHECKING:
    import argparse


class Scope(NamedTuple):
    """What a command is about: the environment, and the fixes and upstreams that the user named."""

    search: Search
    fixes: tuple[Fix, ...]
    upstreams: tuple[str, ...]
    required: tuple[Fix, ...]

    @property
    def environment(self) -> Environment:
        """The environment looked at."""
        return self.search.environment


def find(options: argparse.Namespace) -> Scope:
    """Find the environment and its installations. Raises UnhangError ``no-upstream`` where there are none."""
    named = fixes_named(options)
    required = tuple(catalog.fix(name) for name in getattr(options, "require", ()))
    cwd = os.getcwd()
    if options.target:
        place = environment.for_target(options.target)
    elif options.source:
        place = environment.for_source(options.source)
    else:
        place = environment.choose(options.python, cwd, os.environ)
    search = locate.search(place, script=options.script, cwd=cwd)
    upstreams = tuple(options.upstream or UPSTREAMS)
    inside = tuple(found for found in search.installations if found.upstream in upstreams)
    if not inside and not options.allow_none and not _may_undo(options, place):
        raise _nothing_found(search, upstreams)
    # a required fix is judged, whatever else was named
    fixes = tuple(fix for fix in catalog.fixes().values() if fix in (*named, *required))
    return Scope(search._replace(installations=inside), fixes, upstreams, required)


def fixes_named(options: argparse.Namespace) -> tuple[Fix, ...]:
    """The fixes that ``--fix`` and ``--skip`` leave. Raises UnhangError ``unknown-fix``."""
    chosen = {catalog.fix(name).id for name in options.fix} or set(catalog.fixes())
    skipped = {catalog.fix(name).id for name in options.skip}
    return tuple(fix for fix in catalog.fixes().values() if fix.id in chosen - skipped)


def _may_undo(options: argparse.Namespace, place: Environment) -> bool:
    """Whether there is something to revert though the upstreams are gone: the receipt of what was uninstalled since."""
    if options.command != "revert":
        return False
    return interrupted(place.state_dir) or receipt.load(place.state_dir) is not None


def _nothing_found(search: Search, upstreams: Sequence[str]) -> UnhangError:
    where = search.environment.python or search.environment.prefix
    warned = "".join(f"; {warning}" for warning in search.warnings)
    return UnhangError(
        "no-upstream",
        f"none of {', '.join(upstreams)} is installed in {where} (found by {search.environment.found_by}){warned}",
        path=search.environment.prefix,
        hint="name the environment with --python PY, a site-packages folder with --target DIR, a checkout with "
        "--source DIR; or pass --allow-none",
    )


def findings(scope: Scope) -> list[Finding]:
    """The verdicts as they are now."""
    return judge(scope.search.installations, scope.fixes, history.past(receipt.load(scope.environment.state_dir)))


def originals(scope: Scope, found: Sequence[Finding], unverified: bool = False) -> Mapping[str, Original]:
    """What the receipt keeps."""
    kept = receipt.load(scope.environment.state_dir)
    return history.originals(scope.environment.state_dir, kept, paths_to_rewrite(found, unverified=unverified))
