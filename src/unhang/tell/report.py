"""Reports of findings: text for people, JSON for programs, annotations for GitHub. Pure: it returns strings."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from unhang import __version__, gate
from unhang.errors import UnhangError, joined
from unhang.judge.decide import ACCEPTED, APPLIED, UNLISTED, URGENCY
from unhang.judge.findings import Finding
from unhang.judge.observe import Observation
from unhang.plugins import packs
from unhang.records import Environment, Request, Search
from unhang.shapes import catalog
from unhang.suggest import Command, Hint, command, complete
from unhang.tell import terminal
from unhang.tell.rows import (
    REVERTED,
    WOULD_APPLY,
    counted,
    fixed_in,
    folded_away,
    is_ruled_out,
    is_settled,
    ordered,
    row,
    ruled_out,
    struck,
    together,
    warned,
)

PATCH_ALL = (
    "Patch every node of a job, or none: the rewrites change which collectives a rank issues, and a job whose nodes "
    "are only partly patched can hang."
)
NUMBERS = (
    "curves from before and after do not compare, and weights that went wrong stay wrong until the job restarts from "
    "an older checkpoint"
)
"""What a fix that changes numbers means for a job."""
NONE = "nothing to judge: no installation here has a target of these fixes"
FEW = 3
"""So many fixes are named in a sentence that follows their rows."""


class Report(NamedTuple):
    """What is reported of a run."""

    search: Search
    request: Request
    """What was asked for, which a suggested command repeats."""
    findings: Sequence[Finding]
    changed: frozenset[str] | None
    """The files that were written, for the commands that write; None for the others."""
    interrupted: bool
    commits: Mapping[str, str] = {}
    """The commit of each root that is a checkout."""
    expected: str | None = None
    """The digest that ``--expect-digest`` expects."""
    failed: Mapping[str, UnhangError] = {}
    """The roots in which nothing could be written, and why."""
    taken_back: frozenset[tuple[str, str]] | None = None
    """The files, each with a fix that it had, for the command that takes fixes back; None for the others."""
    dry_run: bool = False
    """Whether nothing was written: ``changed`` has the files that would have been."""


def json_report(report: Report) -> str:
    """Return the JSON document of ``check``, ``apply`` and ``revert``; docs/json.md documents its stable form."""
    document = {
        "schema": 1,
        "unhang": __version__,
        **_packs(),
        "environment": report.search.environment.told,
        "digest": digest(report.findings) or None,
        **({} if report.expected is None else {"expected_digest": report.expected}),
        "interrupted": report.interrupted,
        **({"dry_run": True} if report.dry_run else {}),
        "warnings": list(report.search.warnings),
        **({} if report.changed is None else {"roots": [_root(report, root) for root in report.search.roots]}),
        "results": [result(finding, report.changed) for finding in report.findings],
    }
    return gate.document(document)


def _packs() -> dict[str, Any]:
    """Return what JSON has of the packs in effect: nothing where there is only ours."""
    return {"packs": [pack._asdict() for pack in packs.others()]} if packs.others() else {}


def packs_line() -> str:
    """Return the line that names the packs in effect besides ours; empty if there is none."""
    others = (f"{pack} ({pack.folder})" for pack in packs.others())
    return f"packs: {', '.join(others)}" if packs.others() else ""


def about(fix: str) -> dict[str, Any]:
    """Return what JSON has of a fix, wherever it names one: its grade, its kinds, whether it changes numbers."""
    known = catalog.fix(fix)
    of: dict[str, Any] = {"pack": str(known.pack)} if known.pack.folder else {}
    of |= {"left": list(known.left)} if known.left else {}
    return {**of, "grade": known.grade, "kinds": list(known.kinds), "changes_numbers": known.changes_numbers}


def unproved(fixes: Iterable[str]) -> str:
    """Return a sentence on those of these fixes that are from a diff alone; empty if none is."""
    names = ", ".join(sorted(name for name in fixes if catalog.fix(name).grade == catalog.UNPROVED))
    return names and f"unproved: {names}, from a diff alone; nobody has shown what it does: patch all nodes alike"


def changing(fixes: Collection[str]) -> list[str]:
    """Return those of these fixes that change numbers, sorted."""
    known = map(catalog.fix, fixes)
    return sorted(it.id for it in known if it.changes_numbers and it.grade != catalog.UNPROVED)


def numbers(changing: Sequence[str]) -> str:
    """Return a sentence: that these fixes change numbers, and what that means."""
    return f"changes numbers: {', '.join(changing)}; {NUMBERS}"


def numbers_to_come(findings: Iterable[Finding], request: Request) -> str:
    """Return one line on the fixes that ``apply`` would bring in and that change numbers; empty if none does.

    If it would bring in others too, the line ends with the command for these alone.
    """
    names, skips = _to_come(findings, request)
    if not names:
        return ""
    return f"{numbers(names)}; the other fixes alone: {command('apply', request, *skips)}" if skips else numbers(names)


def numbers_marked(findings: Iterable[Finding], request: Request) -> str:
    """Return the same for a reader who sees the rows: without a list of many names, or a command with them."""
    names, skips = _to_come(findings, request)
    if len(names) <= FEW:
        return numbers_to_come(findings, request)
    return f"changes numbers: {len(names)} of these fixes; {NUMBERS}{'; --skip ID leaves one out' if skips else ''}"


def _to_come(findings: Iterable[Finding], request: Request) -> tuple[list[str], list[str]]:
    """Return the fixes to come that change numbers, and the options that leave out these alone, if others are left.

    What only comes along with one of these is not left.
    """
    come = (it for it in findings if it.left and not it.harm)
    to_come = {it.target.fix for it in come if it.verdict.to_rewrite or it.to_write or it.source}
    names = changing(to_come)
    others = to_come.intersection(request.fixes).difference(names)
    if not others or {*names}.intersection(request.required):  # a required fix cannot be skipped
        return names, []
    return names, [word for name in names for word in ("--skip", name)]


def json_diff(search: Search, diff: bytes, functions: Sequence[Mapping[str, Any]], *, interrupted: bool = False) -> str:
    """Return the JSON document of ``diff``. ``functions`` are those of unknown shapes."""
    document = {
        "schema": 1,
        "unhang": __version__,
        **_packs(),
        "environment": search.environment.told,
        "interrupted": interrupted,
        "warnings": list(search.warnings),
        "functions": functions,
        "diff": diff.decode("utf-8", "surrogateescape"),
    }
    return gate.document(document)


def _root(report: Report, root: str) -> dict[str, Any]:
    changed = any(path.startswith(os.path.join(root, "")) for path in report.changed or ())
    error = report.failed.get(root)
    return {"root": root, "changed": changed, "error": error and fields(error)}


def json_error(error: UnhangError) -> str:
    """Return the JSON document of an error."""
    return gate.document({"schema": 1, "error": fields(error)})


def fields(error: UnhangError) -> dict[str, str | None]:
    """Return an error as JSON has it."""
    return {"code": error.code, "message": error.message, "path": error.path, "hint": error.hint}


def text_error(error: UnhangError) -> str:
    """Return the text of an error: what is wrong, where, and what to do."""
    lines = [f"error[{error.code}]: {error.message}"]
    if error.path and error.path not in error.message:
        lines.append(f"  in: {error.path}")
    if error.hint:
        lines.append(f"  hint: {error.hint}")
    return "\n".join(map(gate.line, lines))


def digest(findings: Collection[Finding]) -> str:
    """Return one digest of the code that the fixes concern: two are equal exactly if all of that code is.

    It covers the bytes of the files that hold the targets, and the functions that these depend on, and the stale
    bytecode that an import runs in their place. It leaves out versions and paths, which can differ when the code does
    not; and it does not use shapes: a file that does not parse has none, and code around a target can differ.
    It is empty for what a lock file pins, whose code was not read.
    """
    if any(finding.installation.pin for finding in findings):
        return ""
    rows = [
        (finding.installation.upstream, target.file, target.function, _code(seen))
        for finding in findings
        for target, seen in ((finding.target, finding.seen), (finding.target.depends_on, finding.depends))
        if target is not None and seen is not None
    ]
    rows += [
        (finding.installation.upstream, finding.target.file, os.path.basename(code.path), code.sha256)
        for finding in findings
        for code in finding.stale
    ]
    rows.sort()
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]


def differs(expected: str | None, findings: Collection[Finding]) -> str | None:
    """Return a sentence if the code is not what ``--expect-digest`` expects; None if it is, or none was given."""
    found = digest(findings)
    if expected in (None, found):
        return None
    return f"the code has digest {found}, not {expected} as expected: this node would not run what that one runs"


def text_report(report: Report, *, verbose: bool = False, colour: bool = False, width: int = 0) -> str:
    """Return the text for people: a row for each fix that wants something, and how many are settled.

    A row is one line, or, unless the ``width`` is 0, as many as it takes. With ``verbose``, or if it is required or was
    just written, a settled fix has a row too.
    """
    overlays = [f"overlay: {', before '.join(report.search.overlays)}"] * bool(report.search.overlays)
    head = packs_line(), environment_line(report.search.environment), *overlays
    lines = [terminal.wrapped(gate.line(line), width) for line in head if line]
    words: list[str] = []
    now = {_key(finding) for finding in report.findings if _is_done(report, finding)}
    for installation, group in by_installation(report.findings):
        version, commit = installation.version or "(no version)", report.commits.get(installation.root)
        place, pin = installation.root, installation.pin
        if pin is not None:
            place, commit = f"{place}:{pin.line}", pin.told
        title = "  ".join(filter(None, (f"{installation.upstream} {version}", place, commit)))
        below = [f"  shadows {other}" for other in installation.shadowed]
        if not os.path.join(installation.package_dir, "").startswith(os.path.join(installation.root, "")):
            below.insert(0, f"  a link to {installation.package_dir}")
        lines += ["", *(terminal.wrapped(gate.line(line), width) for line in (title, *below))]
        settled, ruled, shown = list[Finding](), list[Finding](), list[Finding]()
        if pin is not None and len(group) > 1 and all(it.verdict.verdict == UNLISTED for it in group) and not verbose:
            words += [UNLISTED] * len(group)
            lines += together(group, colour=colour, width=width)
            continue
        for finding in group:
            word = _word(report, finding, is_now=_key(finding) in now)
            is_asked = verbose or finding.target.fix in report.request.required
            if is_asked or word == REVERTED or _key(finding) in now:
                shown.append(finding)
            elif is_ruled_out(finding):
                ruled.append(finding)
                continue
            else:
                (settled if is_settled(finding) else shown).append(finding)
            words.append(word)
        groups = ordered(shown)
        for name, those in groups:
            lines += [f"  {name}:"] * (len(groups) > 1)
            for finding in those:
                word = _word(report, finding, is_now=_key(finding) in now)
                lines += row(finding, word, verbose=verbose, colour=colour, width=width)
        lines += (terminal.wrapped(line, width) for line in (ruled_out(ruled), folded_away(settled)) if line)
    if report.changed is not None:
        count = f"{counted(words, width)} (digest {digest(report.findings)})" if words else NONE
        lines += ["", terminal.wrapped(count, width)]
    if report.interrupted:
        why = Hint(
            "interrupted: a run did not get to its end; ", Command("apply"), " or ", Command("revert"), " settles it"
        )
        lines += ["", terminal.wrapped(complete(why, report.request), width)]
    return "\n".join(lines)


def reasons_shown(report: Report) -> frozenset[str]:
    """Return the reasons that the rows of the text report have, which what follows need not repeat."""
    rows = [finding for _, group in by_installation(report.findings) for finding in group if not finding.settled]
    harms = (finding.harm.sentence for finding in rows if finding.harm)
    return frozenset((*(finding.verdict.detail for finding in rows if finding.verdict.detail), *harms))


def github_report(report: Report) -> str:
    """Return a workflow command for each line of the text report: an error if something is left to do, or a notice."""
    lines = []
    for _, group in by_installation(report.findings):
        for finding in group:
            verdict = finding.verdict
            word = _word(report, finding, is_now=_is_done(report, finding))
            is_left = finding.left and word != REVERTED
            kind = "error" if is_left else "notice"
            place = finding.installation
            # a lock file may pin several on one line
            of = f" in {place.upstream} {place.version or '(no version)'}" if place.pin else ""
            fix = catalog.fix(finding.target.fix)
            about = joined(fix.what, struck(finding) or fix.when, *warned(finding)) if is_left else struck(finding)
            text = ": ".join(filter(None, (word + of, joined(about, verdict.detail))))
            is_to_do = word != REVERTED and not is_ruled_out(finding)
            text += f" ({verdict.hint})" if verdict.hint and is_to_do else ""
            title = f"unhang {fix.id} ({fix.grade})"
            path = finding.seen.path
            at = {"line": str(finding.seen.line)} if finding.seen.line else {}
            lines.append(gate.command(kind, text, file=path, **at, title=title))
            lines += [gate.command("warning", note, file=path, title=title) for note in finding.notes]
    lines += [gate.command("warning", warning, title="unhang") for warning in report.search.warnings]
    lines += [gate.command("notice", line, title="unhang packs")] if (line := packs_line()) else []
    numbers_line = numbers_to_come(report.findings, report.request)
    lines += [gate.command("notice", numbers_line, title="unhang numbers")] if numbers_line else []
    other = differs(report.expected, report.findings)
    lines += [gate.command("error", other, title="unhang digest")] if other else []
    return "\n".join(lines)


def environment_line(environment: Environment) -> str:
    """Return the line that names the environment, and what chose it; or the lock files."""
    if environment.found_by == "--lock":
        return gate.line(f"lock file: {environment.prefix} (verdicts are of untouched copies of what it pins)")
    return gate.line(f"environment: {environment.python or environment.prefix} ({environment.choice})")


def result(finding: Finding, changed: frozenset[str] | None = None) -> dict[str, Any]:
    """Return one of the JSON's ``results``; ``changed`` has the written files, for a command that writes."""
    installation, target, verdict = finding.installation, finding.target, finding.verdict
    row = {
        "upstream": installation.upstream,
        "version": installation.version,
        "location": installation.root,
        "fix": target.fix,
        **about(target.fix),
        "file": target.file,
        "function": target.function,
        "verdict": verdict.verdict,
        "shape": finding.seen.shape,
        "code": verdict.code,
        "detail": verdict.detail,
        "hint": verdict.hint,
        "notes": list(finding.notes),
        "nearest": verdict.nearest.document() if verdict.nearest is not None else None,
        "overlay": finding.overlay,
        "accepted": finding.accepted and finding.settled,
        "assumes": catalog.fix(target.fix).manifest.get("assumes") if finding.result or finding.accepted else None,
        **for_job(finding),
    }
    if pin := installation.pin:
        row["pin"] = {**pin._asdict(), "extras": list(pin.extras)}
    if link := finding.seen.link or finding.replaced:
        row["link"] = link
    return row if changed is None else {**row, "changed": _is_changed(finding, changed)}


def for_job(finding: Finding) -> dict[str, Any]:
    """Return what JSON and SARIF have of what a fix is to the job, and of the release that needs none."""
    found = finding.struck
    return {
        "fixed_in": fixed_in(finding),
        "strikes": found and {"word": found.word, "names": list(found.names), "why": list(finding.decides)},
        "leave_out": [
            {
                "condition": it.leave_out.condition,
                "when": it.condition,
                "effect": it.leave_out.effect,
                "why": it.leave_out.why,
                "holds": it.holds,
            }
            for it in finding.harms
        ],
        "needs": list(finding.needs),
    }


def left_out(others: Sequence[str], request: Request) -> str:
    """Return a sentence on the needed fixes that the options have left out; empty for none."""
    options = " and ".join(dict.fromkeys(name for name, _ in request.chosen if name in ("--fix", "--skip", "--kind")))
    if len(others) == 1:
        return f"{others[0]} is needed here too; {options} left it out"
    return f"{len(others)} other fixes are needed here; {options} left them out" if others else ""


def uncertain(findings: Iterable[Finding], request: Request) -> str:
    """Return one line on what fixes may do to a job, where nothing decides it; empty if they do no harm."""
    harms = {(it.target.fix, harm): None for it in findings for harm in it.harms if harm.holds is None}
    if not harms:
        return ""
    if request.job is not None and len(harms) < FEW:
        told = [f"{fix} {harm.words}" for fix, harm in harms]
    else:  # the rows have the conditions
        by_effect: dict[str, dict[str, None]] = {}
        for fix, harm in harms:
            by_effect.setdefault(harm.in_short, {})[fix] = None
        told = [f"{what}: {', '.join(fixes)}" for what, fixes in by_effect.items()]
    line = f"look before you start: {'; '.join(told)}"
    if request.job is None:
        return f"{line}; which: {command('check', request, '-v', '--job', 'FILE')}"
    # the others are facts, which no setting tells
    names = dict.fromkeys(name for _, harm in harms for name in harm.names if " " not in name)
    return f"{line}; --setting NAME=VALUE tells {', '.join(names)}" if 0 < len(names) <= FEW else line


def _word(report: Report, finding: Finding, *, is_now: bool) -> str:
    """Return the verdict, or what was done: the verdict of what was taken back is as it was before."""
    verdict, is_in_place = finding.verdict.verdict, _is_in_place(finding)
    if report.taken_back is not None:
        is_back = not is_in_place and (finding.seen.place, finding.target.fix) in report.taken_back
        return REVERTED if is_back else verdict
    if report.dry_run and is_now:
        return WOULD_APPLY
    return ACCEPTED if finding.verdict.code == ACCEPTED and finding.settled else verdict


def _is_in_place(finding: Finding) -> bool:
    return finding.verdict.verdict == APPLIED or finding.verdict.code == ACCEPTED


def _is_done(report: Report, finding: Finding) -> bool:
    """Return whether the run has brought, or would bring, a function into place."""
    return report.taken_back is None and _is_in_place(finding) and _is_changed(finding, report.changed)


def _key(finding: Finding) -> tuple[object, str]:
    return finding.installation, finding.target.fix


def by_installation(findings: Iterable[Finding]) -> Iterable[tuple[Any, list[Finding]]]:
    """Return, for each installation, one finding for each fix: the one with the most to do."""
    shown: dict[Any, dict[str, Finding]] = {}
    for finding in findings:
        group = shown.setdefault(finding.installation, {})
        other = group.get(finding.target.fix)
        if other is None or _rank(finding) < _rank(other):
            group[finding.target.fix] = finding
    return [(installation, list(group.values())) for installation, group in shown.items()]


def _rank(finding: Finding) -> tuple[bool, int, bool, bool]:
    # an accepted one has drifted, but is settled; of two with one verdict, show the one with a note, or a file
    return finding.settled, URGENCY.index(finding.verdict.verdict), not finding.notes, finding.seen.data is None


def _is_changed(finding: Finding, changed: frozenset[str] | None) -> bool:
    return changed is not None and finding.seen.place in changed


def _code(seen: Observation) -> str:
    """Return the digest of a file's bytes, or why they were not read."""
    return seen.sha256 or (f"{seen.problem}: {seen.detail}" if seen.problem else "-")
