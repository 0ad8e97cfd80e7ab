"""The commands: find, judge, plan, write, tell. Each gives its exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from unhang import catalog, receipt, report
from unhang.catalog import Fix, Target
from unhang.decide import Past
from unhang.errors import UnhangError
from unhang.model import Environment, Search
from unhang.plan import Blocked, Finding, Original, Plan, judge, plan
from unhang.receipt import Receipt
from unhang.report import Told
from unhang.state import interrupted, littered

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


def check(options: argparse.Namespace) -> int:
    """``unhang check``: 0 if nothing is left to do, 1 if something is, or a run was interrupted."""
    scope = _scope(options)
    findings = _judge(scope)
    halfway = interrupted(scope.environment.state_dir)
    _tell(options, Told(scope.search, findings, None, halfway))
    unmet = _unmet(scope, findings)
    left = [finding for finding in findings if not finding.settled]
    if options.output_format == "text":
        print(f"\n{_summary(findings, scope)}")
    _tell_unmet(unmet)
    return 1 if left or unmet or halfway else 0


def diff(options: argparse.Namespace) -> int:
    """``unhang diff``: the diff on stdout alone; 0 if ``apply`` would change nothing, 1 if something."""
    scope = _scope(options)
    _say(report.environment_line(scope.environment))
    _warn(scope.search)
    if interrupted(scope.environment.state_dir):  # what `apply` will find once that is settled, nobody knows yet
        _say("interrupted: an earlier run was killed halfway; run `unhang apply` or `unhang revert` first")
        return 1
    planned = plan(_judge(scope), _originals(scope.environment), unverified=options.unverified)
    if planned.files:
        from unhang.diffing import render

        sys.stdout.flush()
        sys.stdout.buffer.write(render(scope.environment, planned.files))
        sys.stdout.flush()
    _tell_blocked(planned.blocked)
    return 1 if planned.files or planned.blocked else 0


def apply(options: argparse.Namespace) -> int:
    """``unhang apply``: 0 if the end state is reached, changed or not; 1 if a fix is blocked or missing."""
    scope = _scope(options)
    findings = _judge(scope)
    planned = _plan_early(scope, findings, options.unverified)
    changed: frozenset[str] = frozenset()
    if planned is None or planned.files or interrupted(scope.environment.state_dir):
        planned, changed = _apply_alone(scope, findings, planned, options.unverified)
        findings = _judge(scope)
    _tidy(scope.environment.state_dir)
    _tell(options, Told(scope.search, findings, changed, False))
    _tell_applied(scope.environment, planned, changed)
    unmet = _unmet(scope, findings)
    _tell_blocked(planned.blocked)
    _tell_unmet(unmet)
    return 1 if planned.blocked or unmet else 0


def revert(options: argparse.Namespace) -> int:
    """``unhang revert``: 0 if the original bytes are back; 1 if an edit stands in the way, or there is no receipt."""
    from unhang import undo
    from unhang.transaction import exclusive, recover

    scope = _scope(options)
    state_dir = scope.environment.state_dir
    _tidy(state_dir)
    if receipt.load(state_dir) is None and not interrupted(state_dir):
        _say(report.environment_line(scope.environment))
        _say(f"nothing to revert: there is no receipt in {state_dir}")
        return 1
    with exclusive(state_dir):
        _say_if(recover(state_dir))
        found = receipt.load(state_dir)
        names = {fix.id for fix in scope.fixes}
        planned = None
        if found is not None:
            where = scope.environment, scope.search, found
            planned = undo.plan(*where, names, scope.upstreams, force=options.force)
        if planned is not None and planned.remaining != found:
            undo.carry_out(scope.environment, planned)
    changed = frozenset(entry.path for entry, _, _ in planned.files) if planned else frozenset()
    _tell(options, Told(scope.search, _judge(scope), changed, False))
    for note in planned.notes if planned else ():
        _say(f"note: {note}")
    for entry, why, hint in planned.refused if planned else ():
        _say(f"error[edited]: {entry.path}: {why}\n  hint: {hint}")
    if planned is not None and (changed or not planned.refused):
        _say(f"reverted {_count(len(changed), 'file')}")
    return 1 if planned is not None and planned.refused else 0


def list_fixes(options: argparse.Namespace) -> int:
    """``unhang list``: the fixes, a line each."""
    for fix in catalog.fixes().values():
        affects = ", ".join(f"{upstream} {versions}" for upstream, versions in fix.manifest["affects"].items())
        print(f"{fix.id:<25} {fix.title}\n{'':<25} affects {affects}")
    return 0


def explain(options: argparse.Namespace) -> int:
    """``unhang explain FIX``: its page."""
    print(catalog.page(options.fix_id).rstrip())
    return 0


def _scope(options: argparse.Namespace) -> Scope:
    """Find the environment and its installations. Raises UnhangError ``no-upstream`` where there are none."""
    from unhang import environment, locate

    chosen = [catalog.fix(name) for name in options.fix] if options.fix else list(catalog.fixes().values())
    skipped = {catalog.fix(name).id for name in options.skip}
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
    wanted = {fix.id for fix in chosen} - skipped | {fix.id for fix in required}
    fixes = tuple(fix for fix in catalog.fixes().values() if fix.id in wanted)
    return Scope(search._replace(installations=inside), fixes, upstreams, required)


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


def _judge(scope: Scope) -> list[Finding]:
    entries = {entry.path: entry for entry in _receipt(scope.environment).files}

    def past(path: str, target: Target) -> Past | None:
        entry = entries.get(path)
        for fixed in entry.fixes if entry is not None else ():
            if entry is not None and (fixed.fix, fixed.function) == (target.fix, target.function):
                return Past(entry.patched, fixed.after)
        return None

    return judge(scope.search.installations, scope.fixes, past)


def _originals(environment: Environment) -> Callable[[str], Original | None]:
    """What the receipt keeps of a file, read when it is asked for."""

    def original(path: str) -> Original | None:
        entry = next((entry for entry in _receipt(environment).files if entry.path == path), None)
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
                path=environment.state_dir, hint="use the unhang that wrote it, or reinstall what was patched",
            )  # fmt: skip
        steps = tuple((known[fixed.fix, fixed.file, fixed.function], fixed.after) for fixed in entry.fixes)
        return Original(entry.patched, receipt.pristine(environment.state_dir, entry), steps)

    return original


def _receipt(environment: Environment) -> Receipt:
    return receipt.load(environment.state_dir) or Receipt("", ())


def _plan_early(scope: Scope, findings: list[Finding], unverified: bool) -> Plan | None:
    """The plan, made before anybody has to wait for it; None where the receipt's parts do not fit together."""
    try:
        return plan(findings, _originals(scope.environment), unverified=unverified)
    except UnhangError as error:
        if error.code != "bad-receipt":
            raise
        return None  # a run was killed between them, or is at work on them: whoever is alone sees the truth


def _apply_alone(
    scope: Scope, findings: list[Finding], planned: Plan | None, unverified: bool
) -> tuple[Plan, frozenset[str]]:
    """Write as the environment's only writer; planned again if what was found before the lock is not there any more."""
    from unhang import write
    from unhang.transaction import exclusive, recover

    with exclusive(scope.environment.state_dir):
        _say_if(recover(scope.environment.state_dir))
        now = _judge(scope)
        if planned is None or now != findings:
            planned = plan(now, _originals(scope.environment), unverified=unverified)
        if planned.files:
            write.apply(scope.environment, planned.files)
    return planned, frozenset(file.path for file in planned.files)


def _tidy(state_dir: str) -> None:
    """Take away the lock of a run that was killed with no journal to tell of it; harmless where we may not write."""
    if littered(state_dir):
        from unhang.transaction import exclusive, recover

        with suppress(UnhangError), exclusive(state_dir):
            _say_if(recover(state_dir))


def _unmet(scope: Scope, findings: Sequence[Finding]) -> list[str]:
    """Why a required fix is not in place, a sentence each, and what to do."""
    told = []
    for fix in scope.required:
        mine = [finding for finding in findings if finding.target.fix == fix.id]
        if not mine:
            names = " or ".join(dict.fromkeys(target.upstream for target in fix.targets))
            told.append(f"{fix.id}: no {names} to judge here; do: install it first, or name its --python PY")
        for finding in mine:
            if not finding.settled:
                place, verdict = finding.installation, finding.verdict
                why = f": {verdict.detail}" if verdict.detail else ""
                told.append(
                    f"{fix.id} is {verdict.verdict} on {place.upstream} {place.version} in {place.root}{why}; "
                    f"do: {verdict.hint}"
                )
    return told


def _summary(findings: Sequence[Finding], scope: Scope) -> str:
    if not findings:
        return "nothing to judge: no installation here has a target of these fixes"
    todo: dict[str, set[tuple[object, str]]] = {}
    for finding in findings:
        if not finding.settled:
            todo.setdefault(finding.verdict.verdict, set()).add((finding.installation, finding.target.fix))
    if not todo:
        return f"nothing left to do (digest {report.digest(findings)})"
    told = ", ".join(f"{len(places)} {verdict}" for verdict, places in sorted(todo.items()))
    next_ = f"run: unhang apply{_place(scope.environment)}" if "needed" in todo else "see the hints above"
    return f"{told}; {next_}"


def _place(environment: Environment) -> str:
    """The option that leads to this environment again."""
    if environment.found_by in ("--target", "--source"):
        return f" {environment.found_by} {environment.prefix}"
    return f" --python {environment.python}" if environment.found_by == "--python" else ""


def _tell(options: argparse.Namespace, told: Told) -> None:
    if options.output_format == "json":
        print(report.json_report(told))
        return
    if options.output_format == "github":
        print(report.github_report(told))
        return
    from unhang.decoration import commits

    told = told._replace(commits=commits(told.search.installations))
    print(report.text_report(told, colour=_colour()))
    _warn(told.search)


def _tell_applied(environment: Environment, planned: Plan, changed: Collection[str]) -> None:
    if not changed:
        _say("nothing was changed" + ("" if planned.blocked else ": the end state was there already"))
        return
    _say(f"patched {_count(len(changed), 'file')}; to undo: unhang revert{_place(environment)}")
    done = {target.fix for file in planned.files for target, *_ in file.steps}
    if any(catalog.fix(name).manifest["collectives"] for name in done):
        _say(report.PATCH_ALL)


def _tell_blocked(blocked: Sequence[Blocked]) -> None:
    for item in blocked:
        place = item.installation
        _say(
            f"blocked: {item.fix} on {place.upstream} {place.version} in {place.root}: "
            f"{item.target.file} {item.target.function}: {item.reason}; do: {item.hint}"
        )


def _tell_unmet(unmet: Sequence[str]) -> None:
    """The reason of a failed image build is its last line."""
    sys.stdout.flush()
    for reason in unmet:
        _say(f"required fix not in place: {reason}")


def _warn(search: Search) -> None:
    for warning in search.warnings:
        _say(f"warning: {warning}")


def _say_if(sentence: str | None) -> None:
    if sentence:
        _say(sentence)


def _say(line: str) -> None:
    """For people, beside the data on stdout."""
    print(line, file=sys.stderr, flush=True)


def _colour() -> bool:
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or sys.stdout.isatty()


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
