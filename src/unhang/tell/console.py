"""What the commands print: reports and data on stdout, everything else for people on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from unhang import gate, suggest
from unhang.errors import joined
from unhang.find.git_info import commits
from unhang.judge.decide import BY_SHAPE_CHECK
from unhang.judge.findings import Finding
from unhang.records import Environment, Installation, Request, Search
from unhang.shapes import catalog
from unhang.store import state
from unhang.tell import report, terminal
from unhang.tell.report import Report
from unhang.tell.rows import ABOVE, counted

if TYPE_CHECKING:
    from unhang.errors import UnhangError
    from unhang.rewrite.plan import Blocked, FilePlan, Plan
    from unhang.store.receipt import Receipt
    from unhang.store.revert import Revert
    from unhang.survey.apply import Applied


NOTHING = "nothing was changed"


def results(output_format: str, what: Report) -> frozenset[str]:
    """Print a report in one of the formats of ``check``. Return the reasons that people have read in it."""
    shown: frozenset[str] = frozenset()
    if output_format == "json":
        print(report.json_report(what))
    elif output_format == "github":
        print(report.github_report(what))
    elif output_format == "sarif":
        from unhang.tell import sarif  # it imports ast

        print(sarif.document(what, os.getcwd()))
    elif output_format in ("gitlab", "vex"):
        _bare(output_format, what)
    else:
        what = what._replace(commits=commits(what.search.installations))
        width = terminal.width(sys.stdout)
        print(report.text_report(what, verbose=terminal.settings.verbose, colour=colour(), width=width))
        warnings(what.search)
        shown = report.reasons_shown(what)
    searched(what.search)
    return shown


def _bare(output_format: str, what: Report) -> None:
    """Print a report in a format that has no place for what is wrong with the run itself: that goes to stderr."""
    if output_format == "gitlab":
        from unhang.tell import gitlab  # as sarif

        print(gitlab.document(what, os.getcwd()))
    else:
        from unhang.tell import vex

        if document := vex.document(what):
            print(document)
        else:
            say("nothing to state: no installation here has a version and a target of these fixes")
    warnings(what.search)
    if what.interrupted:
        say("interrupted: a run did not get to its end")


def applied(
    request: Request, done: Applied, receipts: Iterable[Receipt], findings: Sequence[Finding] = (), others: str = ""
) -> None:
    """Print what ``apply`` did, how to undo it, and what is next: the other nodes, and the job.

    ``receipts`` and ``findings`` are those that it left, ``others`` says what its options left out.
    """
    for path in (path for file in done.cleared for path in file.bytecode):
        note(f"deleted stale bytecode: {path}")
    is_whole = not (done.plan.blocked or done.failed)
    if not done.files and done.cleared:
        _next(done.cleared, is_whole)
    elif not done.files:
        note(NOTHING + ("" if done.plan.blocked or others else ": there was nothing left to do"))
    else:
        _patched(request, done, receipts)
        beside(done.files, findings, request)
        _next(done.files, is_whole)
    if others:
        note(others)


def _patched(request: Request, done: Applied, receipts: Iterable[Receipt]) -> None:
    wrote = {
        (file.installation.real_root, file.installation.upstream, step.target.fix)
        for file in done.files
        for step in file.steps
    }
    listed = {
        (entry.root, entry.upstream, fixed.fix)
        for receipt in receipts
        for entry in receipt.files
        for fixed in entry.fixes
    }
    undo = " && ".join(suggest.undo(request, wrote, listed))
    note(f"patched {count(len(done.files), 'file')}; to undo: {undo}")


def beside(files: Iterable[FilePlan], findings: Sequence[Finding], request: Request) -> None:
    """Print which of the written fixes came along, and what they may do to the job."""
    done = {step.target.fix for file in files for step in file.steps}
    written = [it for it in findings if it.target.fix in done]
    for name, along in {it.target.fix: it.along for it in written if it.not_chosen}.items():
        why = next((it.why for it in catalog.fix(along[0]).companions if it.fix == name), "")
        note(f"{name} came along: {along[0]} needs it here{why and f': without it, {why}'}")
    if unsure := report.uncertain(written, request):
        note(unsure)


def would_apply(
    files: Sequence[FilePlan], request: Request, findings: Sequence[Finding] = (), others: str = ""
) -> None:
    """Print what ``apply`` would do to these files, what that means for a job, and the command that does it.

    ``findings`` and ``others`` are as ``applied`` has them.
    """
    note(f"would patch {count(len(files), 'file')}; nothing was written")
    beside(files, findings, request)
    _consequences(files)
    if files:
        note(f"next, on every node:\n  {suggest.command('apply', request)}")
    if others:
        note(others)


def would_clear(files: Iterable[FilePlan]) -> None:
    """Name the stale bytecode that ``apply`` would delete."""
    for path in (path for file in files for path in file.bytecode):
        say(f"would delete stale bytecode: {path}")


def overlay(
    folder: str, modules: Sequence[str], planned: Plan, written: bool, request: Request, findings: Sequence[Finding]
) -> None:
    """Print what an overlay holds, how a job uses it, and that all of its nodes must."""
    done = "written" if written else f"{NOTHING}: it was there already"
    note(f"overlay of {count(len(modules), 'module')} in {folder}: {done}")
    if modules:
        variable = f"PYTHONPATH={suggest.line(folder)}"
        beside(planned.files, findings, request)
        _consequences(planned.files)
        note(f"next: start the job, on every node, with {variable} (before what PYTHONPATH holds already)")


def _consequences(files: Iterable[FilePlan]) -> bool:
    """Print what these rewrites mean for a job; return whether a job must be patched on all of its nodes at once."""
    done = {step.target.fix for file in files for step in file.steps}
    is_collective = any(catalog.fix(name).manifest.get("collectives") for name in done)
    if is_collective:
        note(report.PATCH_ALL)
    if unproved := report.unproved(done):
        note(unproved)
    if changing := report.changing(done):
        note(report.numbers(changing if len(changing) <= report.FEW else [f"{len(changing)} of these fixes"]))
    return is_collective


def _next(files: Iterable[FilePlan], is_whole: bool) -> None:
    """Print what these rewrites mean for a job, and what to do now, unless what is blocked comes first."""
    nodes = "the same on every other node, then " if _consequences(files) else ""
    if is_whole:
        note(f"next: {nodes}start the job again: what runs now has the old code")


def accepted(request: Request, findings: Iterable[Finding]) -> None:
    """Print what later runs need, if some of the findings are accepted."""
    if any(finding.accepted for finding in findings):
        tokens = " ".join(map(str, request.accepted))
        later = f"later checks need UNHANG_ACCEPT='{tokens}', or --accept"
        note(f"note: without its token, what was accepted counts as drifted: {later}")


def reverted(planned: Revert) -> None:
    """Print what ``revert`` did in one root, and what it refused."""
    for sentence in planned.notes:
        note(f"note: {sentence}")
    for refused in planned.refused:
        error(refused)
    if planned.asleep and {entry.path for entry in planned.remaining.files} <= {*planned.asleep}:
        note(f"if you will not need what stays in {state.folder(planned.root)}, delete that folder")
    written = [entry for entry, before, after in planned.files if before != after]
    if written or not planned.refused:
        note(f"reverted {count(len(written), 'file')} in {planned.root}")


def failed(errors: Mapping[str, UnhangError]) -> None:
    """Report the roots in which nothing was changed, and why; the others are whole."""
    for root, found in errors.items():
        is_half_done = state.interrupted(state.folder(root))
        say(f"interrupted in {root}:" if is_half_done else f"nothing was changed in {root}:")
        error(found)


def left(errors: Mapping[str, Sequence[UnhangError]]) -> None:
    """Report what a run could not remove after everything was in place."""
    for found in errors.values():
        for one in found:
            error(one)


def error(found: UnhangError) -> None:
    """Report an error; with UNHANG_DEBUG, its traceback too."""
    if os.environ.get("UNHANG_DEBUG"):
        import traceback

        say(*"".join(traceback.format_exception(found)).splitlines())
    say(*report.text_error(found).split("\n"))


def without_receipt(findings: Iterable[Finding], environment: Environment) -> None:
    """Name each rewritten file that no receipt lists, and how to have the plain release back."""
    from unhang.tell import reinstall  # `check` needs none of what that imports

    files: dict[str, list[str]] = {}
    for finding in findings:
        place, path = finding.installation, finding.seen.place
        group = files.setdefault(reinstall.advice(place, environment, path), [])
        if path not in group:
            group.append(path)
    for advice, paths in files.items():
        for path in paths:
            say(f"patched, and no receipt has its original bytes: {path}")
        say(f"  hint: {advice}")


def unlisted(roots: Iterable[str]) -> None:
    """Name the original bytes that no receipt names: a person may know them."""
    from unhang.store import pristine  # `check` needs none of what that imports

    for folder in map(state.folder, roots):
        for path in pristine.unlisted(folder):
            say(f"no receipt says which file this is the original of: {path}")


def blocked(items: Sequence[Blocked], shown: Collection[str] = ()) -> None:
    """Name each fix that could not go in, and why; ``shown`` are the reasons that the reader has seen."""
    for item in items:
        place = item.installation
        why, hint = f"{item.target.file} {item.target.function}: {item.reason}", item.hint
        if item.reason in shown:
            why, hint = ABOVE, suggest.first_line(hint) or hint
        say(
            f"blocked: {item.fix} ({catalog.fix(item.fix).grade}) on {place.upstream} {place.version} in {place.root}: "
            f"{why}; do: {hint}"
        )


def how_to_give_the_job() -> None:
    """Print in one line how a report is about one job."""
    sys.stdout.flush()
    note("what strikes your job, and what would harm it: --job FILE, its script or config")


def required(reasons: Sequence[str]) -> None:
    """Name each required fix that is not in place; the last line of a failed image build is the reason."""
    sys.stdout.flush()
    for reason in reasons:
        say(f"required fix not in place: {reason}")


def refused(error: UnhangError, findings: Iterable[Finding]) -> None:
    """Name the files that cannot be written, a few or with ``-v`` all; the error itself names only the first."""
    if error.code != "not-writable":
        return
    needed = dict.fromkeys(finding.seen.path for finding in findings if finding.verdict.to_rewrite)
    # a file is replaced, so its folder must be writable
    paths = [path for path in needed if not os.access(os.path.dirname(path), os.W_OK)]
    most = len(paths) if terminal.settings.verbose else report.FEW
    say_each(f"not writable here: {path}" for path in paths[:most])
    if len(paths) > most:
        say(f"not writable here: {count(len(paths) - most, 'more file')} (-v names each)")


def unexpected(why: str | None) -> None:
    """Report that the code is not what ``--expect-digest`` expects, if so; ``why`` holds both digests."""
    if why:
        sys.stdout.flush()
        say(f"unexpected code: {why}; do: install and patch all nodes alike")


def warnings(search: Search) -> None:
    """Print the warnings of a search."""
    for warning in search.warnings:
        say(f"warning: {warning}")


def searched(search: Search) -> None:
    """Print with ``-v`` where the search looked, in order, and the receipts that are there."""
    if terminal.settings.verbose:
        say_each(f"searched: {folder}" for folder in search.path)
        receipts = (folder for folder in map(state.folder, search.roots) if state.has_receipt(folder))
        say_each(f"receipt: {os.path.join(folder, state.RECEIPT)}" for folder in receipts)


def say_each(sentences: Iterable[str]) -> None:
    """Print each of these sentences."""
    for sentence in sentences:
        say(sentence)


def note(line: str) -> None:
    """Print a line that ``-q`` leaves out, on stderr."""
    if not terminal.settings.quiet:
        say(line)


def say(*lines: str) -> None:
    """Print lines for people on stderr, apart from the data on stdout; wrapped on a terminal."""
    with suppress(OSError, ValueError):  # stderr is full or closed: the exit code still tells
        text = "\n".join(map(gate.line, "\n".join(lines).split("\n")))
        print(terminal.wrapped(text, terminal.width(sys.stderr)), file=sys.stderr, flush=True)


def show(*lines: str) -> None:
    """Print lines for people on stdout; wrapped on a terminal."""
    print(terminal.wrapped("\n".join(map(gate.line, lines)), terminal.width(sys.stdout)))


def colour() -> bool:
    """Return whether to colour stdout."""
    return terminal.colour(sys.stdout)


def count(number: int, noun: str) -> str:
    """Return a number and its noun, in the plural unless the number is 1."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def unmet(
    required: Sequence[str],
    findings: Sequence[Finding],
    items: Sequence[Blocked] = (),
    shown: Collection[str] = (),
    absent: str = "install it, or use --python PY",
) -> list[str]:
    """Return a sentence for each required fix that is not in place: why, and what to do.

    ``required`` are the ids, ``items`` what ``apply`` blocked; ``shown`` are the reasons that the reader has seen;
    ``absent`` says what to do where there is nothing of the upstream.
    """  # fmt: skip
    sentences = []
    why_blocked = {(item.installation, item.fix): item for item in items}
    for fix in map(catalog.fix, required):
        mine = [finding for finding in findings if finding.target.fix == fix.id]
        if not mine:
            names = " or ".join(dict.fromkeys(target.upstream for target in fix.targets))
            sentences.append(f"{fix.id}: there is no {names} here; do: {absent}")
        told: set[Installation] = set()
        for finding in mine:
            if finding.installation not in told and (not finding.settled or finding.verdict.code == BY_SHAPE_CHECK):
                place, verdict = finding.installation, finding.verdict
                told.add(place)
                item = why_blocked.get((place, fix.id))
                why, hint = (item.reason, item.hint) if item else (verdict.detail, verdict.hint)
                if why in shown:
                    why, hint = ABOVE, suggest.first_line(hint) or hint
                sentences.append(
                    f"{fix.id} is {verdict.verdict} on {place.upstream} {place.version} in {place.root}"
                    f"{': ' if why else ''}{why}; do: {hint}"
                )
    return sentences


def summary(
    findings: Sequence[Finding], request: Request, collides: UnhangError | None = None, others: str = ""
) -> str:
    """Return what is left to do in one line, and the next command in a line of its own.

    ``collides`` is the error with which ``apply`` would refuse; ``others`` says what the options left out.
    """
    if not findings:
        return joined(report.NONE, others)
    left = [finding for finding in findings if finding.left]
    todo = {(finding.installation, finding.target.fix, finding.verdict.verdict) for finding in left}
    digest = joined(f"(digest {report.digest(findings)})", others)
    if not todo:
        what = " of these fixes" * bool(others) + " for this job" * (request.job is not None)
        but = ", but read the notes above" if any(it.notes for it in findings if it.settled or it.left) else ""
        return f"nothing left to do{what}{but} {digest}"
    counts = counted((verdict for _, _, verdict in todo), terminal.width(sys.stdout))
    if collides:
        return f"{counts} {digest}; {collides.message}: {collides.hint}"
    to_write = [it for it in left if it.verdict.to_rewrite or it.overlay or it.source or it.to_write]
    blocked = {(it.installation, it.target.fix) for it in left if it not in to_write or it.harm}
    if any((it.installation, it.target.fix) not in blocked for it in to_write):
        return f"{counts} {digest}; next, on every node:\n  {suggest.command('apply', request)}"
    if any(finding.result for finding in left):
        return f"{counts} {digest}; next:\n  {suggest.command('diff', request, '--unknown')}"
    harmful = next((it for it in left if it.harm), None)
    if harmful is not None and (harm := harmful.harm) is not None:
        fix = harmful.target.fix
        command = ("revert", "--fix", fix) if harmful.settled else ("apply", "--fix", fix, "--even-if", harm.condition)
        how = "to revert it" if harmful.settled else "to write it anyway"
        return f"{counts} {digest}; {fix} {harm.words}; {how}:\n  {suggest.command(command[0], request, *command[1:])}"
    return f"{counts} {digest}; see the help above"
