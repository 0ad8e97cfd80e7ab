"""``unhang check --lock FILE``: what is needed of what a lock file or an SBOM pins."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from unhang.cli.requests import request
from unhang.errors import UnhangError
from unhang.judge import companions, pinned
from unhang.judge.observe import Observation
from unhang.pins import files
from unhang.plugins import packs
from unhang.records import Environment, Search
from unhang.shapes import catalog
from unhang.suggest import complete
from unhang.tell import advice, console
from unhang.tell.report import Report

if TYPE_CHECKING:
    import argparse

    from unhang.judge.findings import Finding
    from unhang.records import Pin, Request


def run(options: argparse.Namespace) -> int:
    """Run ``unhang check --lock``: return 0 if nothing is left to do, else 1.

    Raises UnhangError ``bad-option``, ``no-upstream``, and as ``requests.request`` and ``files.read``.
    """
    wanted = request(options)
    if wrong := next((name for name in ("script", "accept", "expect_digest") if getattr(options, name)), None):
        option = f"--{wrong.replace('_', '-')}"
        hint = f"leave out {option}: it is about code, and a lock file has none"
        raise UnhangError("bad-option", f"--lock does not go with {option}", hint=hint)
    search, findings = judged(wanted)
    shown = console.results(options.output_format, Report(search, wanted, findings, None, interrupted=False))
    absent = "pin it in the lock file, or leave out that --require"
    unmet = console.unmet(wanted.required, findings, shown=shown, absent=absent)
    if options.output_format == "text":
        console.show("", *advice.after_lock(findings, wanted))
    console.required(unmet)
    return 1 if unmet or any(finding.left for finding in findings) else 0


def judged(wanted: Request) -> tuple[Search, list[Finding]]:
    """Return what the files pin, and the verdict of each fix on it. Raises UnhangError."""
    names, fixes = pinned.names(), [catalog.fix(name) for name in (*wanted.fixes, *wanted.companions)]
    read = [_with_folders(files.read(path, names)) for path in wanted.locks]
    findings = []
    for path, pin in ((lock.path, pin) for lock in read for pin in lock.pins):
        if wheel := _wheel_beside(path, pin):
            findings += _of_wheel(wheel, path, pin, wanted)
            continue
        findings += [
            finding._replace(verdict=finding.verdict._replace(hint=complete(finding.verdict.hint, wanted)))
            for finding in _for_job(pinned.judge(path, [pin], fixes), wanted)
            if wanted.is_about(finding.installation.upstream)
        ]
    unread = dict.fromkeys(path for lock in read for path in lock.unread if path not in wanted.locks)
    warnings = [*(wanted.job.notes if wanted.job else ())]
    warnings += [f"{path} is included, and was not read: name it too, with --lock" for path in unread]
    warnings += [
        f"{lock.path}:{pin.line}: nobody can tell which package {pin.repository or pin.source} is: if it is one of "
        f"{', '.join(sorted(names.distributions))}, put its name before it, as in `NAME @ URL`"
        for lock in read
        for pin in lock.nameless
    ]
    search = Search(
        Environment(None, ", ".join(wanted.locks), "--lock"),
        tuple(dict.fromkeys(finding.installation for finding in findings)),
        tuple(warnings),
    )
    if not search.installations and not wanted.allow_none:
        upstreams = ", ".join(wanted.upstreams or packs.names())
        raise UnhangError(
            "no-upstream", f"none of {upstreams} is pinned in {search.environment.prefix}",
            path=wanted.locks[0], hint="name the lock file that pins it; or pass --allow-none",
        )  # fmt: skip
    return search, findings


def _for_job(findings: list[Finding], wanted: Request) -> list[Finding]:
    """Return the findings on one pin, with what the fixes are to the job."""
    findings = companions.along(findings, wanted.companions, wanted.skipped)
    here = tuple(dict.fromkeys(it.installation for it in findings))
    if wanted.job is None:
        return companions.with_harms(findings, here)
    from unhang.survey import jobs  # it imports ast

    return jobs.told(findings, wanted.job, here)


def _with_folders(lock: files.Locked) -> files.Locked:
    """Return what a file pins, with the folders that have no name but are there: their code tells what they are."""
    places = [(pin, os.path.join(os.path.dirname(lock.path), pin.source)) for pin in lock.nameless]
    there = [(pin, pinned.in_folder(place)) for pin, place in places if not pin.repository and os.path.isdir(place)]
    pins = sorted((*lock.pins, *(pin._replace(distribution=it) for pin, it in there if it)), key=lambda pin: pin.line)
    nameless = (pin for pin in lock.nameless if pin not in dict(there))
    return lock._replace(pins=tuple(pins), nameless=tuple(nameless))


def _wheel_beside(path: str, pin: Pin) -> str:
    """Return the path of the wheel that a pin names, if it is there; else an empty text."""
    wheel = os.path.join(os.path.dirname(path), pin.source)
    return wheel if wheel.endswith(".whl") and os.path.isfile(wheel) else ""


def _of_wheel(wheel: str, path: str, pin: Pin, wanted: Request) -> list[Finding]:
    """Return the verdicts on a wheel's code, as ``check`` has them: its version does not say which fixes it has."""
    from unhang.deliver import wheel as wheels  # slow, and few lock files name one
    from unhang.deliver import work
    from unhang.survey.verdicts import survey

    with work.folder() as folder:
        wheels.unpack(wheels.load(wheel), folder)
        again = ("wheel", wheel, "-o", os.path.dirname(wheel) or ".")
        seen = survey(wanted._replace(target=folder, allow_none=True, writer=again))
    return [
        finding._replace(
            installation=finding.installation._replace(root=path, package_dir=os.path.join(path, ""), pin=pin),
            seen=Observation(path, None, shape=finding.seen.shape, line=pin.line),
            depends=None,
            verdict=finding.verdict._replace(nearest=None),
        )
        for finding in seen.findings
    ]
