"""``unhang diff``: what ``apply`` would change, or what is written."""

from __future__ import annotations

import os
import stat
import sys
from typing import TYPE_CHECKING, NamedTuple

from unhang.cli.requests import request
from unhang.errors import UnhangError
from unhang.judge.decide import DRIFTED, UNLISTED
from unhang.records import Token, paired
from unhang.shapes import catalog
from unhang.suggest import RECOVERY, Hint, command, complete
from unhang.survey.search import find, nothing_found
from unhang.survey.unlocked import planned_without_lock
from unhang.survey.verdicts import again, unlisted
from unhang.tell import console, report

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence
    from typing import Any

    from unhang.judge.findings import Finding
    from unhang.judge.shows import Shown
    from unhang.records import Environment, Request, Search
    from unhang.rewrite.diff import Changed
    from unhang.rewrite.plan import FilePlan, Plan
    from unhang.survey.verdicts import Survey

_RUNNERS = {"CI", "GITHUB_ACTIONS", "TF_BUILD"}
"""Variables of CI runners: what a job prints is read for commands there."""


class Unknown(NamedTuple):
    """A function that an unknown shape holds back, and what can be done about it."""

    finding: Finding
    file: FilePlan | None
    """Its rewritten file; None if no rewrite fits it."""
    token: Token | None
    shown: Shown | None
    """What a run shows; None if that was not asked for."""


def run(options: argparse.Namespace) -> int:
    """Run ``unhang diff``: print only the diff on stdout; return 0 if ``apply`` would change nothing, else 1.

    With ``--unknown``: 0 if no fix is held back by an unknown shape, else 1. ``--run`` is about these too. With
    ``--applied``: 0 if nothing is written here, else 1.
    """
    unknown = options.unknown or options.run
    if options.applied and unknown:
        why = "--applied shows what is written, --unknown and --run what is not"
        raise UnhangError("bad-option", why, hint="leave out one of them")
    wanted, is_json = request(options), options.output_format == "json"
    if options.applied:
        return _applied(wanted, is_json)
    seen, plan = planned_without_lock(wanted, unknown=unknown)
    _say_where(seen.search)
    if plan is None:  # what `apply` will find after recovery is not known yet
        return _interrupted(seen.search, wanted, is_json)
    as_is = [finding for finding in seen.findings if finding.verdict.as_is] if unknown else []
    functions = _unknown(seen, plan) if unknown else []
    if options.run:
        functions = _run(functions, seen.environment)
    files = [(it.installation.root, it.path, it.before, it.after) for it in plan.files]
    if is_json:
        _print_json(seen.search, files, [_row(it) for it in functions])
    else:
        _print(seen.environment, files, *_notes(functions, wanted))
    if not options.run and any(catalog.fix(it.finding.target.fix).grade != catalog.UNPROVED for it in functions):
        try_them = command("diff", wanted, "--unknown", "--run")
        console.note(f"to see what these functions do, as they are and rewritten, run: {try_them}")
    stale = () if unknown else plan.stale
    console.beside(() if unknown else plan.files, seen.findings, wanted)
    console.would_clear(stale)
    console.blocked(plan.blocked)
    return 1 if plan.files or stale or plan.blocked or as_is else 0


def _applied(wanted: Request, is_json: bool) -> int:
    """Print what is written, as a diff from what ``revert`` of the same fixes would leave.

    Raises UnhangError as ``revert`` does.
    """
    from unhang.store import receipt, revert, state

    search = find(wanted)
    if not search.installations and not wanted.allow_none and not revert.has_state(search):
        raise nothing_found(search, wanted)
    _say_where(search)
    seen = again(search, wanted)
    if seen.interrupted:
        return _interrupted(search, wanted, is_json)
    found = {root: receipt.load(state.folder(root)) for root in search.roots}
    plans = [revert.plan_revert(search, root, one, wanted, force=True) for root, one in found.items() if one]
    files = [(it.root, entry.path, after, now) for it in plans for entry, now, after in it.files if now != after]
    if is_json:
        _print_json(search, files, [])
    else:
        _print(search.environment, files, {}, [])
    for refused in (error for it in plans for error in it.refused):
        console.error(refused)
    left = unlisted(seen)
    console.without_receipt(left, search.environment)
    is_any = files or left or any(it.refused for it in plans)
    if not is_any:
        console.say("nothing is written here: no receipt lists a file that has one of these fixes")
    return 1 if is_any else 0


def _say_where(search: Search) -> None:
    console.note(report.environment_line(search.environment))
    console.warnings(search)
    console.searched(search)


def _interrupted(search: Search, wanted: Request, is_json: bool) -> int:
    if is_json:
        print(report.json_diff(search, b"", [], interrupted=True))
    line = Hint("interrupted: an earlier run was killed halfway; ", *RECOVERY, " first")
    console.say(complete(line, wanted))
    return 1


def _print_json(search: Search, files: Sequence[Changed], functions: Sequence[Mapping[str, Any]]) -> None:
    from unhang.rewrite.diff import as_patch, render

    print(report.json_diff(search, render(search.environment, files, {}, as_patch), functions))


def _print(
    place: Environment, files: Sequence[Changed], notes: Mapping[str, Sequence[str]], lines: Sequence[str]
) -> None:
    """Print a diff with the notes on its files, and these lines below it."""
    if files or lines:
        from unhang.rewrite.diff import as_patch, as_text, comment, render

        sys.stdout.flush()
        sys.stdout.buffer.write(render(place, files, notes, as_text if _is_shown() else as_patch))
        sys.stdout.buffer.writelines(map(comment, lines))
        sys.stdout.flush()


def _is_shown() -> bool:
    """Return whether stdout leads to a terminal or a CI runner's log, and not to a file or another program."""
    mode = os.fstat(sys.stdout.fileno()).st_mode
    return sys.stdout.isatty() or (not stat.S_ISREG(mode) and not _RUNNERS.isdisjoint(os.environ))


def _unknown(seen: Survey, plan: Plan) -> list[Unknown]:
    """Return the functions that an unknown shape holds back."""
    generation, files = catalog.generation(), {file.path: file for file in plan.files}
    functions = []
    for finding in seen.findings:
        here, file, token = finding.ends[0], files.get(finding.seen.place), None
        if here is None or finding.verdict.verdict not in (DRIFTED, UNLISTED):
            continue
        steps = [step for step in (file.steps if file else ()) if step.target == finding.target]
        for step in steps:
            token = Token(paired(step.before, step.beside), generation, paired(step.after, step.beside))
        if finding.verdict.as_is:
            token = Token(here, generation, here)
        functions.append(Unknown(finding, file if steps else None, token, None))
    return functions


def _run(functions: Sequence[Unknown], place: Environment) -> list[Unknown]:
    """Run each function, and its rewrite, in the settings of its fix. Raises as ``environment.program``."""
    from unhang.find import environment
    from unhang.judge import scene, shows
    from unhang.tell import progress

    done = []
    python = sys.executable
    if place.python and any(scene.of(it.finding.target.fix) for it in functions):
        python = environment.program(place, "--run plays a scene in it")
    with progress.shown() as step:
        for number, (finding, file, token, _) in enumerate(functions, 1):
            step(f"running {finding.target.function} ({number} of {len(functions)})")
            shown = shows.run(finding, file and file.after, python)
            done.append(Unknown(finding, file, token and token._replace(seen_right=shown.is_right), shown))
    return done


def _row(unknown: Unknown) -> dict[str, Any]:
    """Return an entry of ``functions`` in the JSON document."""
    finding, _, token, shown = unknown
    return {
        "fix": finding.target.fix,
        **report.about(finding.target.fix),
        "location": finding.installation.root,
        "file": finding.target.file,
        "function": finding.target.function,
        "shape": finding.seen.shape,
        **(
            shown._asdict()
            if shown
            else {"shows": "not-run", "after": "not-run", "settings": 0, "why": "without --run"}
        ),
        "token": token and str(token),
    }


def _notes(functions: Sequence[Unknown], wanted: Request) -> tuple[dict[str, list[str]], list[str]]:
    """Return what is unknown and how to accept what the diff does, by file; and the same of those left as they are."""
    accepted = {token._replace(seen_right=False) for token in wanted.accepted}

    def settle(name: str, fix: str) -> str:
        # all of the fix's tokens: it goes into an installation whole or not at all
        tokens = dict.fromkeys(it.token for it in functions if it.token and it.finding.target.fix == fix)
        left = [str(token) for token in tokens if token._replace(seen_right=False) not in accepted]
        return command(name, wanted, "--fix", fix, *(word for token in left for word in ("--accept", token)))

    notes: dict[str, list[str]] = {}
    lines = []
    for finding, file, token, shown in functions:
        target, other = finding.target, finding.target.depends_on
        fix, detail = target.fix, finding.verdict.detail
        saw = [f"{fix}: {shown.sentence(target.function)}"] if shown else []
        known = catalog.fix(fix)
        assumes = known.manifest.get("assumes", f"what the diff does; it is {known.grade}")
        if file is not None:
            also = f", beside this shape of {other.function} in {other.file}" if other and finding.beside else ""
            notes.setdefault(file.path, []).extend(
                (
                    f"{fix}: {target.function}: {detail}",
                    f"{fix}: the rewrite assumes: {assumes}",
                    *saw,
                    f"{fix}: nobody has verified this shape of {target.function}{also}; "
                    f"to accept what follows: {token}",
                    f"to write it, run: {settle('apply', fix)}",
                )
            )
        elif token is not None:
            writes = any(it.file and it.finding.target.fix == fix for it in functions)
            lines += [
                f"{fix}: {target.function} in {finding.seen.path}: {detail}",
                *saw,
                f"nothing is rewritten there; to accept it as it is, once you have read it: {token}",
                f"to settle it, run: {settle('apply' if writes else 'check', fix)}",
            ]
        elif saw:
            lines += [f"{fix}: {target.function} in {finding.seen.path}: no rewrite fits it", *saw]
    return notes, lines
