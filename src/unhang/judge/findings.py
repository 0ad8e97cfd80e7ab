"""The verdicts of all fixes on all installations: each target is observed, then decided."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache, partial
from typing import NamedTuple

from unhang.errors import UnhangError
from unhang.judge import elsewhere
from unhang.judge.decide import APPLIED, NEEDED, NOT_AFFECTED, SETTLED, Past, Verdict, decide, depending
from unhang.judge.observe import Observation, Read, contents, observe, package_of
from unhang.records import Installation
from unhang.shapes import catalog
from unhang.shapes.catalog import Fix, Shape, Target

PastTable = Mapping[tuple[str, str, str], Past]
"""What the receipt says of each rewritten function, by the file's real path, the fix and the function."""

_REWRITTEN = frozenset({NEEDED, APPLIED})
"""The verdicts on a function that our rewrite is in, or is to be in."""

Look = Callable[[Installation, Target], Observation]
"""Observes a target of an installation. Raises OSError if its file cannot be read."""


class Finding(NamedTuple):
    """One fix on one installation, for one target."""

    installation: Installation
    target: Target
    seen: Observation
    verdict: Verdict
    overlay: str | None = None
    """The overlay whose file it is about, if a job imports that one."""
    elsewhere: tuple[str, ...] = ()
    """What a user should know about code outside the file on which the rewrite depends."""
    result: str | None = None
    """The shape that the rewrite would give to an unknown shape; empty while that is tried, None if it cannot be."""
    depends: Observation | None = None
    """What the function contains that the target depends on, if there is one."""
    accepted: bool = False
    """Whether a token of the run names that rewrite, be it still to write or in place."""

    @property
    def settled(self) -> bool:
        """Whether nothing is left to do here."""
        return self.verdict.verdict in SETTLED or (self.accepted and self.result is None)

    @property
    def known(self) -> Shape | None:
        """What is on record of the function's shape."""
        return catalog.shape_table().shapes.get((self.target.fix, self.target.function, self.seen.shape or ""))

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know besides the verdict, which it does not change."""
        if not self.seen.rebound or self.verdict.verdict == NOT_AFFECTED:
            return self.elsewhere
        lines = f"line{'s' if len(self.seen.rebound) > 1 else ''} {', '.join(map(str, self.seen.rebound))}"
        again = f"{self.target.function} is assigned again on {lines}"
        return (f"{again}: this function may run only if the new one calls it", *self.elsewhere)

    @property
    def rewritten(self) -> bool:
        """Whether the function is our rewrite, of this version or an older one."""
        return self.known is not None and self.known.state in ("ours", "superseded")


def judge(
    installations: Iterable[Installation], fixes: Iterable[Fix], past: PastTable, script: str | None = None
) -> list[Finding]:
    """Return the verdict of every fix on every installation that has a target of it.

    ``script`` is the file that the job runs. Raises UnhangError ``unreadable``.
    """
    installations, fixes = list(installations), list(fixes)
    # Several functions may be in one file, and several targets depend on one function.
    look = cache(partial(_look, cache(contents)))
    found = [
        _finding(installation, fix, target, past, look)
        for installation in installations
        for fix in fixes
        for target in fix.targets
        if target.upstream == installation.upstream
    ]
    used = {finding.target.fix for finding in found if finding.verdict.verdict in _REWRITTEN}
    read = {finding.seen.path: finding.seen.data for finding in found}
    notes = {fix.id: elsewhere.notes(fix, installations, script, read) for fix in fixes if fix.id in used}
    return [
        finding._replace(elsewhere=notes[finding.target.fix]) if finding.verdict.verdict in _REWRITTEN else finding
        for finding in found
    ]


def _finding(installation: Installation, fix: Fix, target: Target, past: PastTable, look: Look) -> Finding:
    try:
        seen = look(installation, target)
        known = past.get((seen.real or os.path.realpath(seen.path), target.fix, target.function))
        found = Finding(installation, target, seen, verdict(installation, fix, target, known, seen, look))
        return found._replace(depends=target.depends_on and look(installation, target.depends_on))
    except OSError as error:
        hint = "run unhang as a user who can read it"
        raise UnhangError("unreadable", str(error.strerror), path=error.filename, hint=hint) from error


def verdict(
    installation: Installation, fix: Fix, target: Target, past: Past | None, seen: Observation, look: Look
) -> Verdict:
    """Return the verdict on one target of a fix, as it was ``seen``. ``look`` observes the fix's other functions."""
    found = decided(installation, target, past, seen, look)
    if seen.shape is None and seen.problem is None and found.verdict != NOT_AFFECTED:  # whatever the version says
        found = _moved(installation, fix, target, look) or found
    return found


def decided(installation: Installation, target: Target, past: Past | None, seen: Observation, look: Look) -> Verdict:
    """Return the verdict on a target as it was ``seen``. ``look`` observes the function that it depends on."""
    table, releases = catalog.shape_table(), catalog.releases_of(installation.upstream)
    found = decide(target, installation, seen, table, releases, past)
    other = target.depends_on
    if other is None or seen.shape is None or found.verdict in SETTLED:
        return found
    return depending(found, other, installation, look(installation, other), table, releases)


def _look(read: Read, installation: Installation, target: Target) -> Observation:
    return observe(installation, target, catalog.shape_table(), read)


def _moved(installation: Installation, fix: Fix, gone: Target, look: Look) -> Verdict | None:
    """Return the verdict on a function that is not in this file, but in another target of the same fix."""
    for target in fix.targets:
        beside = installation._replace(
            upstream=target.upstream, package_dir=os.path.join(installation.root, *package_of(target))
        )
        with suppress(OSError):
            if target.function == gone.function and look(beside, target).shape is not None:
                return Verdict(NOT_AFFECTED, detail=f"not in this file: it is in {target.file}, and judged there")
    return None
