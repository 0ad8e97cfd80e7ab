"""``unhang diagnose PATH...``: which known hang this is, and the command that cures it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from unhang import suggest
from unhang.cli.requests import hinted, request
from unhang.diagnose import fixes, intake, known, live, picture, report
from unhang.diagnose.report import Report
from unhang.errors import UnhangError, described
from unhang.find.environment import left_out
from unhang.survey.search import find
from unhang.survey.verdicts import again
from unhang.tell import console, progress, terminal

if TYPE_CHECKING:
    import argparse

    from unhang.diagnose.known import Diagnosis
    from unhang.records import Request


def run(options: argparse.Namespace) -> int:
    """Run ``unhang diagnose``: return 0 if it is a known hang, else 1.

    Raises UnhangError ``nothing-read``, ``bad-option``, and as ``_collected``.
    """
    _require_sense(options)
    if options.live:
        with _collected(options) as folder:
            return _told([str(folder)], options)
    return _told(options.paths, options)


def _require_sense(options: argparse.Namespace) -> None:
    """Raise UnhangError ``bad-option`` for options that do not go together."""
    if options.html is not None and Path(options.html).is_dir():
        raise UnhangError("bad-option", "--html needs a file, and this is a folder", path=options.html)
    for name in () if options.live else ("slurm", "ray", "kubectl", "master", "keep"):
        if getattr(options, name) is not None:
            raise UnhangError("bad-option", f"--{name} goes with --live", hint=f"add --live to --{name}")


@contextmanager
def _collected(options: argparse.Namespace) -> Iterator[Path]:
    """Collect from a job that hangs now; yield the folder, which is gone afterwards unless `--keep` names it.

    Raises UnhangError ``no-ranks``, ``no-nodes``, ``not-empty`` and ``not-a-folder``.
    """
    job = options.master or ""
    if options.slurm is not None:
        places = live.slurm(options.slurm, job)
    elif options.kubectl is not None:
        places = live.kubectl(options.kubectl, job)
    else:
        places = live.here(job) if options.ray is None else live.ray(options.ray, options.python, job)
    if options.keep is None:
        with TemporaryDirectory(prefix="unhang-live-") as temporary:
            yield _largest(places, Path(temporary), options)
        return
    folder = Path(options.keep)
    if folder.exists() and not folder.is_dir():
        raise UnhangError("not-a-folder", "--keep needs a folder", path=str(folder))
    if folder.exists() and any(folder.iterdir()):
        raise UnhangError("not-empty", "what another run has kept would mix with this one", path=str(folder))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        kept = _largest(places, folder, options)
    except BaseException:  # also Ctrl-C
        with suppress(OSError):
            folder.rmdir()  # where nothing is in it
        raise
    console.note(f"kept what was collected; to diagnose it again: {suggest.line('unhang', 'diagnose', str(kept))}")
    yield kept


def _largest(places: Sequence[live.Place], folder: Path, options: argparse.Namespace) -> Path:
    """Collect, and return the folder of the job with most ranks; name the other jobs."""
    with progress.shown() as step:
        first, *others = live.collect(places, folder, step)
    if others:
        console.note(f"took the job {first.folder.name}, with {console.count(first.ranks, 'rank')}")
    named = [(f"--{name}", getattr(options, name)) for name in ("slurm", "ray", "python", "kubectl")]
    where = [word for name, value in named if value is not None for word in (name, value)]
    for one in others:
        words = ("--live", *where, "--master", one.folder.name) if options.keep is None else (str(one.folder),)
        more = suggest.line("unhang", "diagnose", *words)
        what = f"with {console.count(one.ranks, 'rank')}" if one.ranks else "whose ranks have all ended"
        console.note(f"left out another job, {what}; for that: {more}")
    return first.folder


def _told(paths: Sequence[str], options: argparse.Namespace) -> int:
    """Diagnose files, say it, and return the exit code."""
    with progress.shown() as step:
        job = intake.read(paths, step)
    if options.output_format != "github" or not job.files:
        console.say_each(f"warning: {line}" for line in report.warnings(job))
    if not job.files:
        hint = "give logs, the recorder's dumps, stacks, or answers of RAS; `unhang explain never-arrived` says how"
        first, *more = paths
        given = f"{first} and {console.count(len(more), 'more path')}" if more else first
        raise UnhangError("nothing-read", f"nothing could be read of {given}", hint=hint)
    wanted = request(options)._replace(evidence=() if options.live else tuple(paths))
    what = _report(known.diagnose(job), wanted, options)
    if options.output_format == "json":
        print(report.document(what))
    elif options.output_format == "github":
        print(report.github(what))
    else:
        left = report.ALL if options.live else report.MORE
        print(report.text(what, colour=console.colour(), width=terminal.width(sys.stdout), more=left))
    if options.html is not None:
        with progress.shown() as step:
            step("drawing")
            _write(options.html, picture.page(what))
        console.note(f"wrote {options.html}")
    return 0 if any(answer.answer == "known" for answer in what.answers) else 1


def _write(name: str, text: str) -> None:
    """Write a file, whole or not at all, in the place of a file; or to what is none, such as a pipe."""
    file = Path(os.path.realpath(name))
    if file.exists() and not file.is_file():
        file.write_text(text, encoding="utf-8")
        return
    part = file.with_name(f".{file.name[:200]}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


def _report(found: Diagnosis, wanted: Request, options: argparse.Namespace) -> Report:
    """Return the report, with where the fixes stand in the environment in whose functions ranks wait or fail."""
    signatures = fixes.signatures()
    answers = known.answers(found, signatures, known.Sources(()), {})
    if not answers:
        return Report(found, (), None, {}, wanted)
    try:
        search = find(wanted._replace(as_imported=True))
        if search.environment.found_by in (".venv", "own interpreter"):
            if left := left_out(os.getcwd(), wanted.evidence):
                note = f"{left} is in a folder of the evidence, and was not looked at"
                console.note(f"{note}; to do that: --python {left}")
        if search.overlays:  # then what brings the fixes into place is the first one
            wanted = wanted._replace(writer=("overlay", search.overlays[0]))
        stands = {}
        for fix in (one.fix for one in answers):
            narrowed = wanted._replace(fixes=(fix,), chosen=(("--fix", fix),))
            stands[fix] = fixes.standings(again(search, narrowed).findings, wanted)
    except (UnhangError, OSError) as error:  # who and where is worth more than whether a fix is in place here
        console.error(hinted(described(error), options))
        return Report(found, answers, None, {}, wanted)
    source = known.Sources(one.root for one in search.installations)
    answers = known.answers(found, signatures, source, stands)
    return Report(known.explained(found, answers), answers, search.environment, stands, wanted)
