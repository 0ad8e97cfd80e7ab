"""``unhang check``: what is needed here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.cli.requests import request
from unhang.errors import UnhangError
from unhang.judge import recorded
from unhang.plugins import packs
from unhang.shapes import catalog
from unhang.suggest import hinted
from unhang.survey.others import left_out
from unhang.survey.verdicts import survey
from unhang.tell import console, report
from unhang.tell.report import Report

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from unhang.judge.findings import Finding
    from unhang.records import Request
    from unhang.survey.verdicts import Survey

    Summary = Callable[[Sequence[Finding], Request, UnhangError | None, str], str]


def run(options: argparse.Namespace) -> int:
    """Run ``unhang check``: return 0 if nothing is left to do, 1 if something is, or a run was interrupted."""
    if options.lock and options.image:
        raise UnhangError("bad-option", "--lock does not go with --image", hint="check one, then the other")
    if options.lock:
        from unhang.cli import check_lock

        return check_lock.run(options)
    wanted = request(options)._replace(as_imported=True)
    if options.live:
        from unhang.cli import check_live

        return check_live.run(options, wanted, lambda place, seen: told(options, place, seen, console.summary))
    if wanted.image:
        from unhang.cli.check_image import surveyed
        from unhang.tell import dockerfile

        return told(options, wanted, surveyed(wanted), dockerfile.summary)
    return check(options, wanted)


def check(options: argparse.Namespace, wanted: Request) -> int:
    """Check what is requested; return the exit code."""
    return told(options, wanted, survey(wanted), console.summary)


def told(options: argparse.Namespace, wanted: Request, seen: Survey, summary: Summary) -> int:
    """Print what a survey has shown, and at the end its summary; return the exit code."""
    if seen.search.overlays:  # then what brings the fixes into place is the first one
        wanted = wanted._replace(writer=("overlay", seen.search.overlays[0]))
    recorded.refuse_edited(it.target.fix for it in seen.findings)
    collides = _collision(seen.findings, wanted)
    what = Report(seen.search, wanted, seen.findings, None, seen.interrupted, expected=options.expect_digest)
    shown = console.results(options.output_format, what)
    unmet = console.unmet(wanted.required, seen.findings, shown=shown)
    other = report.differs(options.expect_digest, seen.findings)
    left = [finding for finding in seen.findings if finding.left]
    if options.output_format == "text":
        lines = (
            report.numbers_marked(seen.findings, wanted) if left else "",
            *summary(seen.findings, wanted, collides, report.left_out(left_out(seen, wanted), wanted)).split("\n"),
        )
        console.show("", *filter(None, lines))
        if left and wanted.job is None:
            console.note("for one job alone: --job FILE, its script or config; --job - reads a command line")
    console.required(unmet)
    console.unexpected(other)
    return 1 if left or unmet or other or seen.interrupted else 0


def _collision(findings: Sequence[Finding], wanted: Request) -> UnhangError | None:
    """Return the error with which ``apply`` would refuse the fixes of two packs, if they need one function here."""
    needed = [it for it in findings if it.verdict.to_rewrite] if packs.others() else []
    if len({catalog.pack_of(it.target.fix) for it in needed}) < 2:
        return None
    from unhang.rewrite.plan import shared_function  # most runs have our pack alone

    found = shared_function(needed)
    return found and hinted(found, wanted)
