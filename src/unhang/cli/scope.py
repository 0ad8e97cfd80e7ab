"""What a command is about: the environment, its installations, the fixes named, and what the receipt says of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from unhang.errors import UnhangError
from unhang.find import environment, locate
from unhang.judge.decide import Past
from unhang.records import Environment, Search
from unhang.rewrite.plan import Finding, Original, judge
from unhang.shapes import catalog
from unhang.shapes.catalog import Fix, Target
from unhang.store import receipt
from unhang.store.receipt import Receipt
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
    upstreams = tuple(options.upstream or options.upstreams)
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
    if options.run != "revert":
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
    """The verdicts as they are now. Raises UnhangError ``unreadable``, and as ``receipt.load`` does."""
    entries = {entry.path: entry for entry in _receipt(scope.environment).files}

    def past(path: str, target: Target) -> Past | None:
        entry = entries.get(path)
        for fixed in entry.fixes if entry is not None else ():
            if entry is not None and (fixed.fix, fixed.function) == (target.fix, target.function):
                return Past(entry.patched, fixed.after)
        return None

    return judge(scope.search.installations, scope.fixes, past)


def originals(place: Environment) -> Callable[[str], Original | None]:
    """What the receipt keeps of a file, read when it is asked for. Raises UnhangError ``bad-receipt`` then."""

    def original(path: str) -> Original | None:
        entry = next((entry for entry in _receipt(place).files if entry.path == path), None)
        if entry is None:
            return None
        known = {
            (target.fix, target.file, target.function): target
            for fix in catalog.fixes().values()
            for target in fix.targets
        }
        if not {(fixed.fix, fixed.file, fixed.function) for fixed in entry.fixes} <= set(known):
            raise UnhangError(
                "bad-receipt", f"the receipt names a fix of {path} that this unhang does not know",
                path=place.state_dir, hint="use the unhang that wrote it, or reinstall what was patched",
            )  # fmt: skip
        from unhang.store import pristine

        steps = tuple((known[fixed.fix, fixed.file, fixed.function], fixed.after) for fixed in entry.fixes)
        return Original(entry.patched, pristine.read(place.state_dir, entry), steps)

    return original


def _receipt(place: Environment) -> Receipt:
    return receipt.load(place.state_dir) or Receipt("", ())
