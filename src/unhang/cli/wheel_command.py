"""``unhang wheel REQ... -o DIR``: wheels with the fixes in them, to install instead of the published ones."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from typing import NamedTuple

from unhang import __version__
from unhang.cli.scope import Scope, find, findings
from unhang.deliver import download, wheel, wheel_report, zips
from unhang.deliver.overlay import seen_through
from unhang.deliver.wheel_report import Done, Output
from unhang.errors import UnhangError
from unhang.judge.findings import Finding
from unhang.rewrite.plan import Blocked, FilePlan, plan
from unhang.shapes import catalog
from unhang.store import disk
from unhang.store.receipt import sha256
from unhang.tell import console


class _Named(NamedTuple):
    """A wheel that was asked for."""

    requirement: str
    path: str
    notes: tuple[str, ...]


class _Judged(NamedTuple):
    """A wheel, and what its rewrite would be."""

    scope: Scope
    findings: list[Finding]
    """As they are with the planned files in place."""
    files: dict[str, FilePlan]
    """By name in the wheel."""
    blocked: tuple[Blocked, ...]


def run(options: argparse.Namespace) -> int:
    """``unhang wheel REQ... -o DIR``: 0 if every needed fix went in; 1 if one is blocked or missing.

    Raises UnhangError as ``wheel_fetch.fetch``, ``wheel.load`` and ``disk.refusal`` do.
    """
    if not options.requirements and not options.requirement_files:
        raise UnhangError("bad-option", "nothing was named", hint="unhang wheel megatron-core==0.17.1 -o DIR")
    folder = os.path.abspath(options.output)
    all_done: list[Done] = []
    scope = None
    with tempfile.TemporaryDirectory(prefix="unhang-wheel-") as work:
        # all are looked through before one is written
        read = [(named, wheel.load(named.path)) for named in _wheels(options, work)]
        judged = [(named, it, _judge(it, options)) for named, it in read]
        for named, it, result in judged:
            scope = result.scope
            all_done.append(_done(folder, named, it, result))
            if options.output_format == "text":
                print(wheel_report.text(all_done[-1]))
    blocked = [item for done in all_done for item in done.blocked]
    unmet = (
        console.unmet(
            [fix.id for fix in scope.required], [item for done in all_done for item in done.findings], blocked
        )
        if scope
        else []
    )
    if options.output_format == "json":
        print(wheel_report.document(all_done, unmet))
    console.blocked(blocked)
    console.required(unmet)
    return 1 if blocked or unmet else 0


def _wheels(options: argparse.Namespace, work: str) -> Iterator[_Named]:
    """The wheels that were named: local ones, and downloads into ``work``."""
    wanted = download.Wanted(options.python_version, tuple(options.pip_options))
    requests = [[name] for name in options.requirements] + [["-r", name] for name in options.requirement_files]
    for number, request in enumerate(requests):
        if len(request) == 1 and request[0].endswith(".whl"):
            yield _Named(request[0], request[0], ())
        else:
            folder = os.path.join(work, str(number))
            os.mkdir(folder)
            notes: list[str] = []
            found = download.fetch(request, wanted, folder, notes.append)
            for note in notes:
                console.say(f"note: {note}")
            for path in found:
                yield _Named(" ".join(request), path, tuple(notes))


def _judge(read: wheel.Wheel, options: argparse.Namespace) -> _Judged:
    """Lay a wheel out as an installer does, and plan on that."""
    with tempfile.TemporaryDirectory(prefix="unhang-wheel-") as root:
        root = os.path.realpath(root)
        for member in read.members:
            path = os.path.join(root, *member.name.rstrip("/").split("/"))
            os.makedirs(path if member.name.endswith("/") else os.path.dirname(path), exist_ok=True)
            if not member.name.endswith("/"):
                with open(path, "xb") as file:
                    file.write(zips.data(read.path, member))
        place = {"target": root, "source": None, "python": None, "script": None, "allow_none": True}
        scope = find(argparse.Namespace(**{**vars(options), **place}))
        before = findings(scope)
        planned = plan(before, {}, unverified=options.unverified)
        through = seen_through(before, planned.files, "in the rewritten wheel")
        files = {os.path.relpath(file.path, root).replace(os.sep, "/"): file for file in planned.files}
    # what is told of them names the wheel, not a folder that is gone
    name = os.path.basename(read.path)
    through = [item._replace(installation=item.installation._replace(root=name)) for item in through]
    blocked = tuple(item._replace(installation=item.installation._replace(root=name)) for item in planned.blocked)
    return _Judged(scope, through, files, blocked)


def _done(folder: str, named: _Named, read: wheel.Wheel, result: _Judged) -> Done:
    """Write what is to be written of a wheel."""
    with open(read.path, "rb") as file:
        digest = sha256(file.read())
    output = None
    if result.files:
        name, data = wheel.rewritten(
            read, {name: file.after for name, file in result.files.items()}, _notice(read, digest, result),
            catalog.generation(),
        )  # fmt: skip
        path = os.path.join(folder, name)
        version = wheel.local_version(read.version, catalog.generation())
        output = Output(path, version, sha256(data), _write(folder, name, data))
    return Done(named.requirement, read, digest, result.findings, result.blocked, named.notes, output)


def _notice(read: wheel.Wheel, digest: str, result: _Judged) -> str:
    lines = [
        f"This is {read.distribution} {read.version}, modified by unhang {__version__}.",
        f"The unmodified wheel is {os.path.basename(read.path)}, sha256 {digest}.",
        "Files that were changed, and the fixes that changed them:",
        *(f"  {name}: {', '.join(sorted({t.fix for t, *_ in file.steps}))}" for name, file in result.files.items()),
        "Also METADATA (its version) and RECORD. The modifications are under the Apache License 2.0; each changed",
        "function says in a comment that it was changed. Not supported by the authors of the unmodified release.",
    ]
    return "\n".join(lines) + "\n"


def _write(folder: str, name: str, data: bytes) -> bool:
    """Have the wheel in the folder; says whether it had to be written."""
    path = os.path.join(folder, name)
    with disk.about(path):
        os.makedirs(folder, exist_ok=True)
        if disk.read(path) == data:
            return False
        draft = os.path.join(folder, f".{name}.new")
        disk.write(draft, data, replace=True)
        disk.run(os.replace, draft, path)
        disk.sync_dir(folder)
    return True
