"""``unhang wheel REQ... -o DIR``: wheels with the fixes in them, to install in place of the published ones."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from typing import NamedTuple

from unhang.cli.requests import selection
from unhang.deliver import download, wheel, wheel_output, wheel_report
from unhang.deliver.wheel import Wheel
from unhang.deliver.wheel_output import WheelPlan
from unhang.deliver.wheel_report import Result
from unhang.errors import UnhangError
from unhang.records import Request
from unhang.store.survey import planned as plan
from unhang.store.survey import survey
from unhang.tell import console


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
        raise UnhangError("bad-option", "no wheel was requested", hint="unhang wheel megatron-core==0.17.1 -o DIR")
    wanted = selection(vars(options))
    folder = os.path.abspath(options.output)
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="unhang-wheel-") as work:
        inputs = list(_inputs(options, work))  # all are checked and planned before one is written
        planned = [(it, _plan(it.wheel, wanted, options.unverified)) for it in inputs]
        for (requirement, source, notes), todo in planned:
            results.append(Result(requirement, source, todo, notes, wheel_output.write(source, todo, folder)))
            if options.output_format == "text":
                print(wheel_report.text(results[-1]))
    blocked = [item for result in results for item in result.plan.blocked]
    after = [item for result in results for item in result.plan.findings]
    unmet = console.unmet(wanted.required, after, blocked)
    if options.output_format == "json":
        print(wheel_report.document(results, unmet))
    console.blocked(blocked)
    console.required(unmet)
    return 1 if blocked or unmet else 0


def _inputs(options: argparse.Namespace, work: str) -> Iterator[_Input]:
    """Load the requested wheels: local files, and downloads into ``work``."""
    how = download.Options(options.python_version, tuple(options.pip_options))
    requests = [[name] for name in options.requirements] + [["-r", name] for name in options.requirement_files]
    for number, request in enumerate(requests):
        if len(request) == 1 and request[0].endswith(".whl"):
            yield _Input(request[0], wheel.load(request[0]), ())
            continue
        folder = os.path.join(work, str(number))
        os.mkdir(folder)
        paths, note = download.fetch(request, how, folder)
        if note:
            console.say(f"note: {note}")
        for path in paths:
            yield _Input(" ".join(request), wheel.load(path), (note,) if note else ())


def _plan(source: Wheel, wanted: Request, unverified: bool) -> WheelPlan:
    """Unpack a wheel into a temporary folder, and plan its rewrite there."""
    with tempfile.TemporaryDirectory(prefix="unhang-wheel-") as root:
        root = os.path.realpath(root)
        wheel.unpack(source, root)
        seen = survey(wanted._replace(target=root, allow_none=True))
        return wheel_output.wheel_plan(source, root, seen.findings, plan(seen, unverified=unverified))
