"""``unhang diff``: what ``apply`` would change."""

from __future__ import annotations

import os
import stat
import sys
from typing import TYPE_CHECKING, NamedTuple

from unhang.cli.requests import request
from unhang.judge.decide import DRIFTED, UNLISTED
from unhang.records import Token, paired
from unhang.shapes import catalog
from unhang.suggest import RECOVERY, Hint, command, complete
from unhang.survey.unlocked import planned_without_lock
from unhang.tell import console, report

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from typing import Any

    from unhang.judge.findings import Finding
    from unhang.judge.shows import Shown
    from unhang.records import Environment, Request
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

    With ``--unknown``: 0 if no fix is held back by an unknown shape, else 1. ``--run`` is about these too.
    """
    unknown = options.unknown or options.run
    wanted, is_json = request(options), options.output_format == "json"
    seen, plan = planned_without_lock(wanted, unknown=unknown)
    console.note(report.environment_line(seen.environment))
    console.warnings(seen.search)
    console.searched(seen.search)
    if plan is None:  # what `apply` will find after recovery is not known yet
        if is_json:
            print(report.json_diff(seen.search, b"", [], interrupted=True))
        line = Hint("interrupted: an earlier run was killed halfway; ", *RECOVERY, " first")
        console.say(complete(line, wanted))
        return 1
    as_is = [finding for finding in seen.findings if finding.verdict.as_is] if unknown else []
    functions = _unknown(seen, plan) if unknown else []
    if options.run:
        functions = _run(functions, seen.environment)
    if is_json:
        from unhang.rewrite.diff import as_patch, render

        diff = render(seen.environment, plan.files, {}, as_patch)
        print(report.json_diff(seen.search, diff, [_row(it) for it in functions]))
    elif plan.files or as_is or options.run:
        from unhang.rewrite.diff import as_patch, as_text, comment, render

        notes, lines = _notes(functions, wanted)
        sys.stdout.flush()
        form = as_text if _is_shown() else as_patch
        sys.stdout.buffer.write(render(seen.environment, plan.files, notes, form))
        sys.stdout.buffer.writelines(map(comment, lines))
        sys.stdout.flush()
    if not options.run and any(catalog.fix(it.finding.target.fix).grade != catalog.UNPROVED for it in functions):
        again = command("diff", wanted, "--unknown", "--run")
        console.note(f"to see what these functions do, as they are and rewritten, run: {again}")
    stale = () if unknown else plan.stale
    console.beside(() if unknown else plan.files, seen.findings, wanted)
    console.would_clear(stale)
    console.blocked(plan.blocked)
    return 1 if plan.files or stale or plan.blocked or as_is else 0


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
