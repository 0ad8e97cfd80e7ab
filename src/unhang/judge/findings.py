"""The verdicts of all fixes on all installations: each target is observed, then decided."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import NamedTuple

from unhang.errors import UnhangError, joined
from unhang.job.strikes import CANNOT, Harm, Struck
from unhang.judge import elsewhere
from unhang.judge.decide import (
    APPLIED,
    DRIFTED,
    NEEDED,
    NOT_AFFECTED,
    NOT_READ,
    OURS,
    SETTLED,
    Past,
    Verdict,
    decide,
    depending,
    gone,
    incomplete,
    is_pair,
    lacking,
    on_record,
)
from unhang.judge.observe import Observation, Read, contents, depended, observe, package_of, resolver
from unhang.plugins import packs
from unhang.records import Installation, paired
from unhang.shapes import catalog
from unhang.shapes.catalog import Fix, Shape, Target
from unhang.suggest import Command, Hint

PastTable = Mapping[tuple[str, str, str], Sequence[Past]]
"""What the receipt says of each rewritten function, by the file's real path, the fix and the function."""

_REWRITTEN = frozenset({NEEDED, APPLIED})
"""The verdicts on a function that our rewrite is in, or is to be in."""

Look = Callable[[Installation, Target], Observation]
"""Observes a target of an installation. Raises OSError if its file cannot be read."""


class StaleCode(NamedTuple):
    """A bytecode file that an import runs in place of a source, although its code is another."""

    source: str
    """The path of the source, as it is observed."""
    path: str
    sha256: str


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
    """The shape that the rewrite would give to an unknown shape; empty while that is tried, None if it cannot be.
    The unknown shape itself if upstream's own fix seems to be there: then nothing is to be written."""
    depends: Observation | None = None
    """What the function contains that the target depends on, if there is one."""
    accepted: bool = False
    """Whether a token of the run names that rewrite, be it still to write or in place."""
    seen_right: bool = False
    """Whether that token says that the rewrite was seen right."""
    replaced: str = ""
    """The text of the link that our file has replaced; empty if there was none."""
    stale: tuple[StaleCode, ...] = ()
    """The stale bytecode of the function's file, and of that on which the target depends."""
    source: Verdict | None = None
    """The verdict on the source alone, where stale bytecode makes it false."""
    struck: Struck | None = None
    """What the fix is to the job; None if nothing was said of a job."""
    decides: tuple[str, ...] = ()
    """The settings that decide that, with values and where they are set; or those that would."""
    harms: tuple[Harm, ...] = ()
    """What the fix would do to the job, or may."""
    needs: tuple[str, ...] = ()
    """The fixes without which this one harms a job here, and that are not in place."""
    lacks: tuple[str, ...] = ()
    """Those of them that are skipped."""
    along: tuple[str, ...] = ()
    """The fixes here that need this one beside them."""
    not_chosen: bool = False
    """Whether it is here only because they do."""

    @property
    def settled(self) -> bool:
        """Whether nothing is left to do here."""
        return self.verdict.verdict in SETTLED or (self.accepted and not self.to_write)

    @property
    def cannot_strike(self) -> bool:
        """Whether the job's settings rule the defect out."""
        return self.struck is not None and self.struck.word == CANNOT

    @property
    def harm(self) -> Harm | None:
        """The first of these that is sure."""
        return next((each for each in self.harms if each.holds), None)

    @property
    def left(self) -> bool:
        """Whether something is left to do for the job: it may be struck, or what is in place harms it."""
        if self.settled:
            return self.verdict.verdict == APPLIED and self.harm is not None
        return not self.cannot_strike

    @property
    def to_write(self) -> bool:
        """Whether a person accepted the rewrite of an unknown shape, which is not in place yet."""
        return self.accepted and self.result is not None and self.result != self.seen.shape

    @property
    def known(self) -> Shape | None:
        """What is on record of the function's shape."""
        return catalog.shape_table().shapes.get((self.target.fix, self.target.function, self.seen.shape or ""))

    @property
    def beside(self) -> str | None:
        """The shape of the function that the target depends on, if the two are not on record together."""
        other = self.target.depends_on
        if other is None or self.depends is None or self.depends.shape is None:
            return None
        known = catalog.shape_table().shapes.get((other.fix, other.function, self.depends.shape))
        return None if is_pair(self.known, known, self.depends.shape) else self.depends.shape

    @property
    def ends(self) -> tuple[str | None, str | None]:
        """What a token has of the shape here, and of the result of its rewrite; None or empty where there is none."""
        here, there = (shape and paired(shape, self.beside) for shape in (self.seen.shape, self.result))
        return here, there

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know besides the verdict, which it does not change."""
        notes = self.elsewhere
        if self.stale and self.source is None:
            notes = (f"{self.runs_instead}; delete it", *notes)
        return notes

    @property
    def runs_instead(self) -> str:
        """What an import runs in place of the source, as a clause."""
        paths = ", ".join(code.path for code in self.stale)
        return f"`import` runs stale bytecode, compiled from other code and never checked: {paths}"

    @property
    def rewritten(self) -> bool:
        """Whether the function is our rewrite."""
        return self.known is not None and self.known.state == OURS


def judge(
    installations: Iterable[Installation],
    fixes: Iterable[Fix],
    past: PastTable,
    script: str | None = None,
    packages: Mapping[str, str] = {},
) -> list[Finding]:
    """Return the verdict of every fix on every installation that has a target of it.

    ``script`` is the file that the job runs; ``packages`` has the folders of other packages that are installed, by
    name. Raises UnhangError ``unreadable``.
    """
    installations, fixes = list(installations), list(fixes)
    # Several functions may be in one file, and several targets depend on one function.
    look = cache(partial(_look, cache(partial(contents, real=resolver()))))
    found = [
        _finding(installation, fix, target, past, look)
        for installation in installations
        for fix in fixes
        for target in fix.targets
        if target.upstream == installation.upstream
    ]
    found = _whole(found, {fix.id for fix in fixes if fix.grade == catalog.UNPROVED})
    in_part = {fix.id: fix for fix in fixes if fix.left}
    found = [
        finding._replace(verdict=incomplete(in_part[finding.target.fix], finding.verdict.verdict))
        if finding.target.fix in in_part and finding.verdict.verdict in _REWRITTEN
        else finding
        for finding in found
    ]
    used = {finding.target.fix for finding in found if finding.verdict.verdict in _REWRITTEN}
    read = {finding.seen.path: finding.seen.data for finding in found}
    notes = {fix.id: elsewhere.notes(fix, installations, script, read) for fix in fixes if fix.id in used}
    found = [
        finding._replace(elsewhere=notes[finding.target.fix]) if finding.verdict.verdict in _REWRITTEN else finding
        for finding in found
    ]
    instead = {fix.id: partial(elsewhere.instead, fix, read) for fix in fixes}
    of_packages = {
        name: tuple(joined(copy, elsewhere.way_out(name)) for copy in told(packages)) for name, told in instead.items()
    }
    return [
        finding._replace(elsewhere=(*finding.elsewhere, *of_packages[finding.target.fix]))
        if finding.verdict.verdict != NOT_AFFECTED
        # where the function is not affected, what other packages run is no matter; another copy of its own upstream is
        else _unless_copied(finding, instead[finding.target.fix](_folder(finding.installation)))
        for finding in found
    ]


def _unless_copied(finding: Finding, copies: Sequence[str]) -> Finding:
    """Return a finding without the defect, given what is said of copies in its own upstream that have it."""
    return finding._replace(verdict=elsewhere.copied(finding.target.fix, copies)) if copies else finding


def _folder(installation: Installation) -> dict[str, str]:
    """Return the folder of an installation, by the name of its module."""
    return {packs.upstreams()[installation.upstream].module: installation.package_dir}


def _whole(findings: Sequence[Finding], unproved: Collection[str]) -> list[Finding]:
    """Return the findings; a function of an unproved fix that is known in a release is evidence for its other lines.

    What another fix that goes on top has changed since is in place.
    """
    groups: dict[tuple[Installation, str], list[Finding]] = {}
    for finding in findings:
        if finding.target.fix in unproved:
            groups.setdefault((finding.installation, finding.target.fix), []).append(finding)
    known = {
        place
        for place, group in groups.items()
        if any(not it.target.text and it.verdict.verdict in (NEEDED, *SETTLED) for it in group)
    }
    covered: set[tuple[Installation, str]] = set()
    for (place, fix), group in groups.items():
        if all(it.verdict.verdict in SETTLED for it in group):
            covered |= {(place, other) for other in catalog.fix(fix).after}

    def verdict(finding: Finding) -> Verdict:
        key = finding.installation, finding.target.fix
        if finding.verdict.code == NOT_READ and key in known:
            return Verdict(NEEDED, hint=Hint(Command("apply")))
        if key in covered and finding.verdict.verdict not in SETTLED and finding.seen.data is not None:
            return Verdict(APPLIED, detail="another fix is on top of it")
        below = [it for it in (catalog.fix(key[1]).after if key in groups else ()) if not is_in_place(key[0], it)]
        if below and finding.verdict.verdict == DRIFTED:
            hint = Hint("apply that first: ", Command("apply", ("--fix", below[0])))
            if below[0] not in catalog.fixes():
                hint = Hint(f"give its pack as well, with --pack: {below[0]} is in none of these")
            return finding.verdict._replace(detail=f"it goes on top of {below[0]}, which is not in place", hint=hint)
        return finding.verdict

    def is_in_place(place: Installation, fix: str) -> bool:
        mine = [it for it in findings if (it.installation, it.target.fix) == (place, fix)]
        return (place, fix) in covered or (bool(mine) and all(it.verdict.verdict in SETTLED for it in mine))

    return [finding._replace(verdict=verdict(finding)) for finding in findings]


def _finding(installation: Installation, fix: Fix, target: Target, past: PastTable, look: Look) -> Finding:
    try:
        seen = look(installation, target)
        pasts = past.get((seen.place, target.fix, target.function), ()) if past else ()
        # of several, as after a change of branch, that of what is there
        known = max(pasts, key=lambda it: (it.patched == seen.sha256, it.after == seen.shape), default=None)
        found = Finding(installation, target, seen, verdict(installation, fix, target, known, seen, look))
        return found._replace(
            result=seen.shape if found.verdict.as_is else None,
            depends=target.depends_on and look(installation, target.depends_on),
            replaced=known.link if known is not None and known.patched == seen.sha256 else "",
        )
    except OSError as error:
        hint = "run unhang as a user who can read it"
        raise UnhangError("unreadable", str(error.strerror), path=error.filename, hint=hint) from error


def verdict(
    installation: Installation, fix: Fix, target: Target, past: Past | None, seen: Observation, look: Look
) -> Verdict:
    """Return the verdict on one target of a fix, as it was ``seen``. ``look`` observes the fix's other functions."""
    found = decided(installation, target, past, seen, look)
    if target.only_with and seen.problem is None and found.verdict not in SETTLED and not _is_unknown(target, seen):
        others = {other: look(installation, other) for other in target.only_with}
        releases = catalog.releases_of(fix.id, target.upstream)
        return lacking(target, found, seen.shape is not None, others, installation, releases)
    if seen.shape is not None or seen.problem is not None or target.exact:  # a diff is about this very file
        return found
    if target.set is not None:  # whatever the version says
        return _of_set(fix, target, partial(look, installation)) or found
    # a release on record is known not to have it
    if found.verdict != NOT_AFFECTED or on_record(installation, catalog.releases_of(fix.id, target.upstream)) is None:
        found = _moved(installation, fix, target, look) or found
    return found


def decided(installation: Installation, target: Target, past: Past | None, seen: Observation, look: Look) -> Verdict:
    """Return the verdict on a target as it was ``seen``. ``look`` observes the function that it depends on."""
    table, releases = catalog.shape_table(), catalog.releases_of(target.fix, target.upstream)
    found = decide(target, installation, seen, table, releases, past)
    if found.as_is:
        from unhang.judge import origin  # most runs meet none

        found = origin.weighed(found, target, installation, seen, releases, look)
    if target.depends_on is None or seen.shape is None:
        return found
    is_ours = past is not None and past.after == seen.shape
    both = seen, depended(target, seen, look(installation, target.depends_on))
    return depending(found, target, installation, both, table, releases, past if is_ours else None)


def _is_unknown(target: Target, seen: Observation) -> bool:
    """Return whether a function is there in a shape that is not on record."""
    known = catalog.shape_table().shapes
    return seen.shape is not None and (target.fix, target.function, seen.shape) not in known


def _look(read: Read, installation: Installation, target: Target) -> Observation:
    return observe(installation, target, catalog.shape_table(), read)


def _of_set(fix: Fix, absent: Target, look: Callable[[Target], Observation]) -> Verdict | None:
    """Return the verdict on an absent function of a set; None if nothing is there of any of the fix's sets.

    A set that is there takes the place of the others. Half of one is no fix: its other half is gone.
    """
    sets: dict[str, list[Target]] = {}
    for target in fix.targets:
        if target.set is not None and target.upstream == absent.upstream:
            sets.setdefault(target.set, []).append(target)
    there = {name: [one for one in mine if look(one).shape is not None] for name, mine in sets.items()}
    own = there.pop(absent.set or "")
    for name, present in there.items():
        if present == sets[name] or (present and not own):
            names = " and ".join(one.function for one in present)
            return Verdict(NOT_AFFECTED, detail=f"in its place there is {names}, which is judged")
    if own:
        return gone(absent, f"the file does not define the function, but {own[0].function}, which goes with it")
    return None


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
