"""``unhang wheel REQ... -o DIR``: wheels with the fixes in them, to install in place of the published ones."""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from unhang.cli.ending import Ending, clause
from unhang.cli.requests import selection
from unhang.deliver import download, wheel, wheel_output, wheel_report, work
from unhang.deliver.wheel import Wheel
from unhang.deliver.wheel_output import WheelPlan
from unhang.deliver.wheel_report import Result
from unhang.errors import UnhangError, described
from unhang.judge import accept
from unhang.plugins import packs
from unhang.records import Request
from unhang.rewrite.harm import weighed
from unhang.suggest import line
from unhang.survey.others import left_out
from unhang.survey.trial import planned as plan
from unhang.survey.verdicts import survey
from unhang.tell import console, progress, report, terminal
from unhang.tell.progress import Step


class _Input(NamedTuple):
    """A wheel that the user asked for."""

    requirement: str
    wheel: Wheel
    notes: tuple[str, ...]


def run(options: argparse.Namespace) -> int:
    """Return 0 if every needed fix is in the wheels, 1 if one is blocked or missing.

    Raises UnhangError as ``download.fetch``, ``wheel.load``, ``wheel.unpack`` and ``wheel_output.write`` do.
    """
    if not options.requirements and not options.requirement_files:
        example = line("unhang", "wheel", "megatron-core==0.17.1", "-o", options.output)
        raise UnhangError("bad-option", "no wheel was requested", hint=f"`{example}`")
    wanted = selection(vars(options))._replace(writer=_command(options))
    folder = os.path.abspath(options.output)
    results: list[Result] = []
    others: dict[str, None] = {}
    failed: UnhangError | None = None
    wheel_output.prepare(folder)
    with work.folder() as temporary, progress.shown() as step:
        inputs = list(_inputs(options, temporary, step))  # all are checked and planned before one is written
        planned = []
        for it in inputs:
            step(f"planning {it.wheel.file}")
            todo = _plan(it.wheel, wanted, temporary, others)
            if todo is None and not it.requirement.startswith("-r "):  # such a file lists the dependencies too
                message = f"{it.wheel.file} has none of {', '.join(wanted.upstreams or packs.names())}"
                raise UnhangError("no-upstream", message, hint="`unhang list` shows which releases the fixes affect")
            planned.append((it, todo or WheelPlan((), {}, ())))
        try:
            for (requirement, source, notes), todo in planned:
                step(f"writing {source.file}")
                results.append(Result(requirement, source, todo, notes, wheel_output.write(source, todo, folder)))
        except Exception as error:
            if not _written(results):
                raise
            failed = described(error)
    return _end(results, failed, wanted, options.output_format, temporary, report.left_out([*others], wanted))


def _written(results: Iterable[Result]) -> int:
    return sum(result.output is not None and result.output.written for result in results)


def _end(
    results: Sequence[Result],
    failed: UnhangError | None,
    wanted: Request,
    output_format: str,
    temporary: str,
    others: str,
) -> int:
    """Report the wheels, and the failure of the next one; return the exit code, raise nothing but KeyboardInterrupt."""
    ending = Ending(clause(_written(results), "wheel", "written"))
    blocked = [item for result in results for item in result.plan.blocked]
    after = [item for result in results for item in result.plan.findings]
    unmet = console.unmet(wanted.required, after, blocked)
    with ending:
        if output_format == "json":
            print(wheel_report.document(results, unmet, failed))
        else:
            colour, width = console.colour(), terminal.width(sys.stdout)
            verbose = terminal.settings.verbose
            texts = (wheel_report.text(it, verbose=verbose, colour=colour, width=width) for it in results)
            print(*texts, sep="\n\n")
    with ending:
        if os.path.lexists(temporary):
            console.say(f"note: the temporary folder {temporary} could not be removed")
        console.say_each(f"warning: {sentence}" for sentence in accept.unused(wanted.accepted, after))
        console.beside([file for it in results for file in it.plan.files.values()], after, wanted)
        if paths := [os.path.relpath(result.output.path) for result in results if result.output]:
            console.note("next, on every node, then start the job again:")
            console.note(f"  {line('pip', 'install', *paths)}")
        if others:
            console.note(others)
        console.blocked(blocked)
        if failed:
            console.error(failed)
        console.required(unmet)
    return 1 if blocked or unmet or failed else 0


def _command(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the command as given, without what chooses the fixes: a suggested command repeats it."""
    words = ["wheel", *options.requirements, *(word for name in options.requirement_files for word in ("-r", name))]
    words += ["-o", options.output, *(["--python-version", options.python_version] if options.python_version else [])]
    words += options.pip_options
    return tuple(re.sub("(?<=://)[^/@]+(?=@)", "****", word) for word in words)  # a log must not get a password


def _inputs(options: argparse.Namespace, temporary: str, step: Step) -> Iterator[_Input]:
    """Load the requested wheels: local files, and downloads into the temporary folder."""
    how = download.Options(options.python_version, tuple(options.pip_options))
    requests = [[name] for name in options.requirements] + [["-r", name] for name in options.requirement_files]
    for number, request in enumerate(requests):
        if len(request) == 1 and request[0].endswith(".whl"):
            yield _Input(request[0], wheel.load(request[0]), ())
            continue
        folder = os.path.join(temporary, str(number))
        os.mkdir(folder)
        step(f"downloading {' '.join(request)}")
        paths, note = download.fetch(request, how, folder)
        if note:
            step("")
            console.note(f"note: {note}")
        for path in paths:
            yield _Input(" ".join(request), wheel.load(path), (note,) if note else ())


def _plan(source: Wheel, wanted: Request, temporary: str, others: dict[str, None]) -> WheelPlan | None:
    """Unpack a wheel below the temporary folder, and plan its rewrite there. Return None if it has no upstream.

    ``others`` takes up the needed fixes that options left out.
    """
    with tempfile.TemporaryDirectory(dir=temporary) as root:
        wheel.unpack(source, root)
        seen = survey(wanted._replace(target=root, allow_none=True))
        if not seen.search.installations:
            return None
        others.update(dict.fromkeys(left_out(seen, wanted)))
        findings, harmful = weighed(seen.findings, wanted)
        return wheel_output.wheel_plan(source, root, seen.findings, plan(findings, seen.receipts, harmful))
