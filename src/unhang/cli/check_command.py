"""``unhang check``: what is needed here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.cli.requests import request
from unhang.judge import recorded
from unhang.judge.decide import NEEDED
from unhang.survey.verdicts import survey
from unhang.tell import console, report
from unhang.tell.report import Report

if TYPE_CHECKING:
    import argparse

    from unhang.records import Request


def run(options: argparse.Namespace) -> int:
    """Run ``unhang check``: return 0 if nothing is left to do, 1 if something is, or a run was interrupted."""
    return check(options, request(options)._replace(as_imported=True))


def check(options: argparse.Namespace, wanted: Request) -> int:
    """Check what is requested; return the exit code."""
    seen = survey(wanted)
    if seen.search.overlays:  # then what brings the fixes into place is the first one
        wanted = wanted._replace(writer=("overlay", seen.search.overlays[0]))
    recorded.refuse_edited(it.target.fix for it in seen.findings if it.verdict.verdict == NEEDED)
    what = Report(seen.search, wanted, seen.findings, None, seen.interrupted, expected=options.expect_digest)
    shown = console.results(options.output_format, what)
    unmet = console.unmet(wanted.required, seen.findings, shown=shown)
    other = report.differs(options.expect_digest, seen.findings)
    left = [finding for finding in seen.findings if not finding.settled]
    if options.output_format == "text":
        lines = report.numbers_marked(seen.findings, wanted), *console.summary(seen.findings, wanted).split("\n")
        console.show("", *filter(None, lines))
    console.required(unmet)
    console.unexpected(other)
    return 1 if left or unmet or other or seen.interrupted else 0
