"""``unhang diagnose PATH...``: which known hang this is, and the command that cures it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from unhang import suggest
from unhang.cli.requests import hinted, request
from unhang.diagnose import capture, diagnosis, intake, report, signature
from unhang.diagnose.report import Report
from unhang.diagnose.standing import standings
from unhang.errors import UnhangError, described, joined
from unhang.store import survey
from unhang.tell import console, progress, terminal

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from unhang.diagnose.answer import Answer
    from unhang.diagnose.evidence import Job
    from unhang.records import Request


_FOLDER = Path("unhang-stacks")
"""Where `--capture` writes: in the working directory, which the nodes of a job often share."""


def run(options: argparse.Namespace) -> int:
    """Run ``unhang diagnose``: return 0 if it is a known hang, else 1. Raises UnhangError ``nothing-read``."""
    if options.capture:
        print(capture.advice())
        _take()
        return 0
    with progress.shown() as step:
        job = intake.read(options.paths, step)
    if options.output_format != "github" or not job.files:
        console.say_each(f"warning: {line}" for line in report.warnings(job))
    if not job.files:
        hint = "give dumps of the flight recorder, stacks of py-spy, or logs; `unhang diagnose --capture` says how"
        first, *more = options.paths
        given = f"{first} and {console.count(len(more), 'more path')}" if more else first
        raise UnhangError("nothing-read", f"nothing could be read of {given}", hint=hint)
    answers = diagnosis.diagnose(job, signature.signatures())
    try:
        what = _report(job, answers, request(options))
    except (UnhangError, OSError) as error:  # the answers are worth more than whether a fix is in place here
        console.error(hinted(described(error), options))
        what = Report(job, answers, None, {}, request(options))
    if options.output_format == "json":
        print(report.document(what))
    elif options.output_format == "github":
        print(report.github(what))
    else:
        print(report.text(what, colour=console.colour(), width=terminal.width(sys.stdout)))
    return 0 if any(answer.answer == "known" for answer in answers) else 1


def _take() -> None:
    """Write the stacks of the ranks on this node, if there are some and py-spy is here; say which or why not."""
    try:
        files = capture.take(_FOLDER)
    except UnhangError as error:
        console.note(f"no stacks were taken here: {joined(error.message, error.hint)}")
    else:
        note = f"took the stacks of {console.count(len(files), 'rank')} on this node; once all nodes have"
        console.note(f"{note}, run: {suggest.line('unhang', 'diagnose', str(_FOLDER))}")


def _report(job: Job, answers: Sequence[Answer], wanted: Request) -> Report:
    """Return the report, with where each fix stands in the environment. Raises UnhangError as ``survey.find``."""
    fixes = dict.fromkeys(answer.fix for answer in answers if answer.fix)
    if not fixes:
        return Report(job, answers, None, {}, wanted)
    search = survey.find(wanted._replace(as_imported=True))
    if search.overlays:  # then what brings the fixes into place is the first one
        wanted = wanted._replace(writer=("overlay", search.overlays[0]))
    found = {}
    for fix in fixes:
        narrowed = wanted._replace(fixes=(fix,), chosen=(("--fix", fix),))
        found[fix] = standings(survey.again(search, narrowed).findings, wanted)
    return Report(job, answers, search.environment, found, wanted)
