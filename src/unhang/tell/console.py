"""What the commands print: reports and data on stdout, everything else for people on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from unhang.errors import printable
from unhang.find.git_info import commits
from unhang.judge.decide import NEEDED
from unhang.judge.findings import Finding
from unhang.local_version import plain_version
from unhang.records import Environment, Installation, Search
from unhang.shapes import catalog
from unhang.tell import report
from unhang.tell.report import Report

if TYPE_CHECKING:
    from unhang.errors import UnhangError
    from unhang.rewrite.plan import Blocked, FilePlan, Plan
    from unhang.store.apply import Applied
    from unhang.store.revert import Revert


def results(output_format: str, what: Report) -> None:
    """Print a report as ``text``, ``json`` or ``github``."""
    if output_format == "json":
        print(report.json_report(what))
    elif output_format == "github":
        print(report.github_report(what))
    else:
        print(report.text_report(what._replace(commits=commits(what.search.installations)), colour=colour()))
        warnings(what.search)


def applied(environment: Environment, done: Applied) -> None:
    """Print what ``apply`` did, how to undo it, and that a job must be patched on all of its nodes."""
    if not done.files:
        say("nothing was changed" + ("" if done.plan.blocked else ": the end state was there already"))
        return
    say(f"patched {count(len(done.files), 'file')}; to undo: unhang revert{_place(environment)}")
    _patch_all(done.files)


def overlay(folder: str, modules: Sequence[str], planned: Plan, written: bool) -> None:
    """Print what an overlay holds, how a job uses it, and that all of its nodes must."""
    state = "written" if written else "nothing was changed: it was there already"
    say(f"overlay of {count(len(modules), 'module')} in {folder}: {state}")
    if modules:
        say(f"start the job, on every node, with PYTHONPATH={folder} (before what PYTHONPATH holds already)")
        _patch_all(planned.files)


def _patch_all(files: Iterable[FilePlan]) -> None:
    done = {step.target.fix for file in files for step in file.steps}
    if any(catalog.fix(name).manifest["collectives"] for name in done):
        say(report.PATCH_ALL)


def reverted(planned: Revert) -> None:
    """Print what ``revert`` did in one root, and what it refused."""
    for note in planned.notes:
        say(f"note: {note}")
    for entry, why, hint in planned.refused:
        say(f"error[edited]: {entry.path}: {why}\n  hint: {hint}")
    if planned.files or not planned.refused:
        say(f"reverted {count(len(planned.files), 'file')} in {planned.root}")


def failed(errors: Mapping[str, UnhangError]) -> None:
    """Report the roots in which nothing was changed, and why; the others are whole."""
    for root, error in errors.items():
        say(f"nothing was changed in {root}:")
        say(report.text_error(error))


def made_by_wheel(installations: Sequence[Installation]) -> None:
    """Name the installations whose wheel already held the rewrites, and how to install the plain release."""
    for folder in dict.fromkeys(os.path.basename(os.path.dirname(place.record or "")) for place in installations):
        name, _, version = folder.removesuffix(".dist-info").rpartition("-")
        plain = plain_version(version)
        if plain != version:
            say(f"{name} {version} was installed from a wheel with the fixes in it (unhang wheel)")
            say(f"  hint: install the plain release: pip install --force-reinstall --no-deps {name}=={plain}")


def blocked(items: Sequence[Blocked]) -> None:
    """Name each fix that could not go in, and why."""
    for item in items:
        place = item.installation
        say(
            f"blocked: {item.fix} on {place.upstream} {place.version} in {place.root}: "
            f"{item.target.file} {item.target.function}: {item.reason}; do: {item.hint}"
        )


def required(reasons: Sequence[str]) -> None:
    """Name each required fix that is not in place; the last line of a failed image build is the reason."""
    sys.stdout.flush()
    for reason in reasons:
        say(f"required fix not in place: {reason}")


def refused(error: UnhangError, findings: Iterable[Finding]) -> None:
    """Name each file that cannot be written; the error itself names only the first."""
    if error.code != "not-writable":
        return
    for path in dict.fromkeys(finding.seen.path for finding in findings if finding.verdict.verdict == NEEDED):
        # a file is replaced, so its folder must be writable
        if not os.access(os.path.dirname(path), os.W_OK):
            say(f"not writable here: {path}")


def unexpected(why: str | None) -> None:
    """Report that the code is not what ``--expect-digest`` expects, if so; ``why`` holds both digests."""
    if why:
        sys.stdout.flush()
        say(f"unexpected code: {why}; do: install and patch all nodes alike")


def warnings(search: Search) -> None:
    """Print the warnings of a search."""
    for warning in search.warnings:
        say(f"warning: {warning}")


def say_each(sentences: Iterable[str]) -> None:
    """Print each of these sentences."""
    for sentence in sentences:
        say(sentence)


def say(line: str) -> None:
    """Print a line for people on stderr, apart from the data on stdout."""
    print("\n".join(map(printable, line.split("\n"))), file=sys.stderr, flush=True)


def colour() -> bool:
    """Return whether to colour stdout: on a terminal, or if FORCE_COLOR is set; never if NO_COLOR is set."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or sys.stdout.isatty()


def count(number: int, noun: str) -> str:
    """Return a number and its noun, in the plural unless the number is 1."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def unmet(required: Sequence[str], findings: Sequence[Finding], items: Sequence[Blocked] = ()) -> list[str]:
    """Return a sentence for each required fix that is not in place: why, and what to do.

    ``required`` are the ids, ``items`` what ``apply`` blocked.
    """
    sentences = []
    why_blocked = {(item.installation, item.fix): item for item in items}
    for fix in map(catalog.fix, required):
        mine = [finding for finding in findings if finding.target.fix == fix.id]
        if not mine:
            names = " or ".join(dict.fromkeys(target.upstream for target in fix.targets))
            sentences.append(f"{fix.id}: there is no {names} here; do: install it, or use --python PY")
        for finding in mine:
            if not finding.settled:
                place, verdict = finding.installation, finding.verdict
                item = why_blocked.get((place, fix.id))
                why, hint = (item.reason, item.hint) if item else (verdict.detail, verdict.hint)
                sentences.append(
                    f"{fix.id} is {verdict.verdict} on {place.upstream} {place.version} in {place.root}"
                    f"{': ' if why else ''}{why}; do: {hint}"
                )
    return sentences


def summary(findings: Sequence[Finding], environment: Environment) -> str:
    """Return one line: what is left to do, and the next command."""
    if not findings:
        return "nothing to judge: no installation here has a target of these fixes"
    todo: dict[str, set[tuple[object, str]]] = {}
    for finding in findings:
        if not finding.settled:
            todo.setdefault(finding.verdict.verdict, set()).add((finding.installation, finding.target.fix))
    digest = f"(digest {report.digest(findings)})"
    if not todo:
        return f"nothing left to do {digest}"
    counts = ", ".join(f"{len(places)} {verdict}" for verdict, places in sorted(todo.items()))
    next_ = f"run: unhang apply{_place(environment)}" if "needed" in todo else "see the hints above"
    return f"{counts} {digest}; {next_}"


def _place(environment: Environment) -> str:
    """Return the option that names this environment in another command."""
    if environment.found_by in ("--target", "--source"):
        return f" {environment.found_by} {environment.prefix}"
    return f" --python {environment.python}" if environment.found_by == "--python" else ""
