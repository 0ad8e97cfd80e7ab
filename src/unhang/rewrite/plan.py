"""The plan of a run, complete in memory before a byte is written: which files get which bytes, and what is blocked."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from unhang.errors import UnhangError
from unhang.judge import recorded
from unhang.judge.decide import APPLIED
from unhang.judge.findings import Finding
from unhang.records import Installation
from unhang.shapes import catalog
from unhang.shapes.catalog import Target
from unhang.suggest import Command, Hint, explain


class Rewritten(NamedTuple):
    """One function that is rewritten."""

    target: Target
    before: str
    """Its shape before."""
    after: str
    """Its shape after."""
    listed: bool
    """Whether what it rests on is on record; False for what a person accepted."""
    beside: str | None = None
    """The shape of the function that it depends on, if that one is not on record."""
    seen_right: bool = False
    """Whether the token that a person accepted says that the rewrite was seen right."""


class FilePlan(NamedTuple):
    """One file to rewrite."""

    installation: Installation
    path: str
    """The real file."""
    before: bytes
    after: bytes
    steps: tuple[Rewritten, ...]
    bytecode: tuple[str, ...] = ()
    """The stale bytecode to delete, of a file that keeps its bytes; its functions keep their shapes, too."""


class Blocked(NamedTuple):
    """A fix that cannot go into an installation as a whole, so nothing of it is written there."""

    installation: Installation
    fix: str
    target: Target
    reason: str
    hint: str


class Original(NamedTuple):
    """What the receipt keeps of a file that we patched."""

    patched: str
    """The sha256 of the file; another one if a function that we rewrote was edited since."""
    data: bytes
    """Its bytes without our rewrites."""


class Plan(NamedTuple):
    """What ``apply`` would write, and what it cannot."""

    files: tuple[FilePlan, ...]
    blocked: tuple[Blocked, ...]
    stale: tuple[FilePlan, ...] = ()
    """The files that only lose their stale bytecode."""


class _Failure(NamedTuple):
    finding: Finding
    reason: str


def is_to_rewrite(finding: Finding) -> bool:
    """Return whether a plan would rewrite the function."""
    return finding.verdict.to_rewrite or finding.to_write


def paths_to_rewrite(findings: Iterable[Finding]) -> list[str]:
    """Return the real paths of the files that a plan would rewrite: it needs their originals."""
    return list(_by_path(filter(is_to_rewrite, findings)))


def plan(findings: Sequence[Finding], originals: Mapping[str, Original], held: Iterable[Blocked] = ()) -> Plan:
    """Plan the files that bring every needed fix into place, and name the fixes that are blocked.

    ``originals`` holds what the receipt keeps, by real path, of the files that ``paths_to_rewrite`` names; ``held`` are
    fixes that are blocked from the start.
    """
    blocked = {(item.installation, item.fix): item for item in held}
    recorded.refuse_edited(finding.target.fix for finding in findings)
    if collides := collision(findings):
        raise collides
    for finding in findings:
        if not finding.settled and not is_to_rewrite(finding) and finding.source is None:
            _block(blocked, finding, finding.verdict.detail, finding.verdict.hint)
    for finding in findings:
        if finding.to_write and finding.target.exact and (other := _in_place(finding, findings)):
            why = f"{other} is in place in this function, and no result of both is on record: this would hide it"
            _block(
                blocked, finding, why, f"make one fix of both diffs; or revert {other}, and leave it out from then on"
            )
    planned: dict[tuple[str, tuple[Target, ...]], FilePlan | _Failure] = {}
    while True:
        _block_alone(blocked, findings)
        wanted = (finding for finding in findings if is_to_rewrite(finding) and not _is_blocked(finding, blocked))
        results = []
        for path, group in _by_path(wanted).items():
            key = path, tuple(finding.target for finding in group)
            if key not in planned:  # a fix that was blocked in another file changes nothing here
                planned[key] = _planned(path, group, originals.get(path))
            results.append(planned[key])
        failures = [result for result in results if isinstance(result, _Failure)]
        if not failures:
            files = tuple(result for result in results if isinstance(result, FilePlan))
            in_place = [it for it in findings if it.source and not _is_blocked(it, blocked)]
            return Plan(files, tuple(blocked.values()), _stale(in_place, {file.path for file in files}))
        # A fix goes in whole or not at all: leave this one out of this installation, and plan again.
        first = failures[0].finding
        hint = f"compare the function with `{explain(first.target.fix)}`, or reinstall the package"
        _block(blocked, first, failures[0].reason, hint)


def _block_alone(blocked: dict[tuple[Installation, str], Blocked], findings: Sequence[Finding]) -> None:
    """Block what would harm a job without its companion, where that one is blocked or was left out.

    And what was only to come along with what is blocked.
    """
    there = {it.target.fix for it in findings}
    while True:
        before, out = len(blocked), {fix for _, fix in blocked}
        for it in filter(is_to_rewrite, findings):
            fix = it.target.fix
            for other in (name for name in it.needs if name not in there or name in out):
                why = next(each.why for each in catalog.fix(fix).companions if each.fix == other)
                how = "is blocked" if other in there else "--skip leaves out"
                hint = f"see what blocks {other}" if other in there else f"do not skip {other}, or skip {fix} too"
                _block(blocked, it, f"it must not go in without {other}, which {how}: {why}", hint)
            if it.along and out.issuperset(it.along):
                why = f"it was to come along with {it.along[0]}, which is blocked"
                _block(blocked, it, why, f"see what blocks {it.along[0]}")
        if len(blocked) == before:
            return


def _is_blocked(finding: Finding, blocked: Collection[tuple[Installation, str]]) -> bool:
    """Return whether a fix is blocked in an installation; one from a diff, in any of what its distribution holds."""
    here, target = finding.installation, finding.target
    return any(
        fix == target.fix and (place == here or (target.exact and place.root == here.root)) for place, fix in blocked
    )


def _in_place(finding: Finding, findings: Iterable[Finding]) -> str | None:
    """Return another fix from a diff that is in place in the function of a finding; None if there is none."""
    here = finding.seen.place, finding.target.function
    return next(
        (
            it.target.fix
            for it in findings
            if it.verdict.verdict == APPLIED and it.target.exact and it.target.fix != finding.target.fix
            and (it.seen.place, it.target.function) == here
        ),
        None,
    )  # fmt: skip


def collision(findings: Iterable[Finding]) -> UnhangError | None:
    """Return the error ``fixes-collide`` if fixes of two packs would change one place. Raises ``no-libcst``."""
    for path, group in _by_path(filter(is_to_rewrite, findings)).items():
        if len({catalog.pack_of(finding.target.fix) for finding in group}) > 1:
            lines: dict[int, tuple[str, bool]] = {}
            shared: dict[tuple[str, str], list[tuple[bool, int]]] = {}
            for fix in dict.fromkeys(finding.target.fix for finding in group):
                for number, is_gone in _changed([finding for finding in group if finding.target.fix == fix]).items():
                    other, was_gone = lines.setdefault(number, (fix, is_gone))
                    if other != fix:
                        shared.setdefault((other, fix), []).append((not (is_gone and was_gone), number))
            for pair, places in shared.items():
                only_beside, number = min(places)
                what = "change one place" if only_beside else "rewrite one statement"
                return _collide(pair, f"{what}, at line {number}", path)
    return None


def shared_function(findings: Iterable[Finding]) -> UnhangError | None:
    """Return the error ``fixes-collide`` if fixes of two packs rewrite one function. Nothing is rewritten."""
    first: dict[tuple[str, str], str] = {}
    for path, group in _by_path(findings).items():
        for target in (finding.target for finding in group if not finding.target.text):
            other = first.setdefault((path, target.function), target.fix)
            if catalog.pack_of(other) != catalog.pack_of(target.fix):
                return _collide((other, target.fix), f"both change {target.function}", path)
    return None


def _collide(pair: tuple[str, str], what: str, path: str) -> UnhangError:
    both = " and ".join(f"{name} ({catalog.pack_of(name)})" for name in pair)
    first, second = (Command("apply", ("--skip", name)) for name in pair)
    hint = Hint("leave one out, in each later `check` too: ", first, " or ", second)
    return UnhangError("fixes-collide", f"{both} {what}", path=path, hint=hint)


def _changed(group: Sequence[Finding]) -> Mapping[int, bool]:
    """Return the lines of a file that one fix alone changes (True), or inserts something above (False)."""
    done = _planned("", group, None)
    if isinstance(done, _Failure):  # it is blocked, for that reason
        return {}
    from difflib import SequenceMatcher  # few runs have fixes of two packs for one file

    before, after = done.before.splitlines(), done.after.splitlines()
    rows = SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    changed = ((first, end) for word, first, end, _, _ in rows if word != "equal")
    return {line: first < end for first, end in changed for line in range(first + 1, max(end, first + 1) + 1)}


def _planned(path: str, group: Sequence[Finding], original: Original | None) -> FilePlan | _Failure:
    """Rewrite one file for these findings, or say which of them cannot be rewritten."""
    from unhang.rewrite.one_file import RewriteError, Step, rewrite  # it imports ast

    first = group[0]
    now = first.seen.data
    assert now is not None  # a finding that may be tried has a function, so it has a file
    if original is not None and original.patched != first.seen.sha256:
        return _Failure(first, "a function that we rewrote in this file was edited since: its original would be lost")
    steps = []
    for finding in group:
        if known := finding.known:
            result = finding.seen.shape if finding.rewritten else known.result
            steps.append(Step(finding.target, result, finding.seen.shape if finding.seen.on_record else None))
        else:
            steps.append(Step(finding.target, finding.result or None))
    try:
        done = rewrite(now, steps)
    except RewriteError as error:
        failed = next((finding for finding in group if finding.target == error.target), first)
        place = failed.target.function, failed.target.fix
        others = [it.target.fix for it in group if it.target.function == place[0] and it.target.fix != place[1]]
        others = [] if failed.target.text else others
        beside = f"{' and '.join(others)} rewrites this function too, and no result of both is on record: "
        return _Failure(failed, f"{beside if others else ''}{error}")
    rewritten = (
        Rewritten(
            finding.target, *shapes, bool(finding.known) and finding.beside is None, finding.beside, finding.seen_right
        )
        for finding, shapes in zip(group, done.shapes)
    )
    return FilePlan(first.installation, path, now, done.data, tuple(rewritten))


def _stale(findings: Iterable[Finding], rewritten: Collection[str]) -> tuple[FilePlan, ...]:
    """Return the plans of the files, other than the rewritten ones, whose stale bytecode is in the way of these."""
    plans: dict[str, FilePlan] = {}
    for finding in findings:
        for seen, target in (finding.seen, finding.target), (finding.depends, finding.target.depends_on):
            bytecode = tuple(code.path for code in finding.stale if seen is not None and code.source == seen.path)
            if seen is None or seen.data is None or target is None or not bytecode:
                continue
            path = seen.place
            step = Rewritten(target, seen.shape or "", seen.shape or "", listed=True)
            found = plans.get(path) or FilePlan(finding.installation, path, seen.data, seen.data, (), bytecode)
            plans[path] = found._replace(steps=(*found.steps, step))
    return tuple(file for path, file in plans.items() if path not in rewritten)


def _by_path(findings: Iterable[Finding]) -> dict[str, list[Finding]]:
    groups: dict[str, list[Finding]] = {}
    for finding in findings:
        groups.setdefault(finding.seen.place, []).append(finding)
    return groups


def _block(blocked: dict[tuple[Installation, str], Blocked], finding: Finding, reason: str, hint: str) -> None:
    key = finding.installation, finding.target.fix
    blocked.setdefault(key, Blocked(finding.installation, finding.target.fix, finding.target, reason, hint))
