"""From a wheel's plan to the rewritten wheel on disk."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from unhang import __version__
from unhang.deliver import sbom, work
from unhang.deliver.repack import named, repack
from unhang.deliver.wheel import Wheel
from unhang.errors import UnhangError
from unhang.find.bytecode import cached
from unhang.judge.findings import Finding
from unhang.rewrite.plan import Blocked, FilePlan, Plan
from unhang.shapes import catalog
from unhang.store import disk
from unhang.store.receipt import sha256
from unhang.survey.preview import with_rewrites

_NOTICE = "UNHANG-NOTICE.txt"
_DRAFT = re.compile(r"\..+\+unhang\..+\.whl\.new")


class WheelPlan(NamedTuple):
    """What would change in a wheel."""

    findings: Sequence[Finding]
    """As they will be in the rewritten wheel."""
    files: Mapping[str, FilePlan]
    """By name in the wheel."""
    blocked: tuple[Blocked, ...]
    bytecode: frozenset[str] = frozenset()
    """The bytecode that it loses, by name in the wheel: of the changed files, and stale."""


class Output(NamedTuple):
    """A rewritten wheel on disk."""

    path: str
    version: str
    sha256: str
    written: bool
    """False if the file existed already with the same bytes."""


def wheel_plan(wheel: Wheel, root: str, findings: Sequence[Finding], plan: Plan) -> WheelPlan:
    """Return the plan for the copy of the wheel unpacked in ``root`` as a plan for the wheel.

    The installations in the result name the wheel's file in place of the temporary folder.
    """
    after = [
        item._replace(installation=item.installation._replace(root=wheel.file))
        for item in with_rewrites(findings, (*plan.files, *plan.stale), "in the rewritten wheel")
    ]
    blocked = [item._replace(installation=item.installation._replace(root=wheel.file)) for item in plan.blocked]
    members = wheel.installed()

    def name(path: str) -> str:
        return members[os.path.relpath(path, root).replace(os.sep, "/")].name

    files = {name(file.path): file for file in plan.files}
    bytecode = {path for file in plan.files for path in cached(file.path)}
    bytecode |= {path for file in plan.stale for path in file.bytecode}
    return WheelPlan(after, files, tuple(blocked), frozenset(map(name, bytecode)))


def write(wheel: Wheel, plan: WheelPlan, folder: str) -> Output | None:
    """Write the rewritten wheel into the folder, which is created if missing; None if the plan changes nothing.

    Raises UnhangError ``bad-wheel``, and as ``disk.refusal`` does.
    """
    if not plan.files and not plan.bytecode:
        return None
    name, version = named(wheel, catalog.generation())
    changed = {name: file.after for name, file in plan.files.items()}
    added = {_NOTICE: _notice(wheel, plan).encode(), sbom.SBOM: sbom.document(wheel, name, version, plan.files)}
    data, path = repack(wheel, version, changed, added, plan.bytecode), os.path.join(folder, name)
    return Output(path, version, sha256(data), write_whole(path, data))


def prepare(folder: str) -> None:
    """Remove what a killed run left in the output folder, if that exists.

    Raises UnhangError ``not-a-folder`` if a file is in its place, or in that of a folder above it.
    """
    found = folder
    while not os.path.lexists(found):
        found = os.path.dirname(found)
    if not os.path.isdir(found):
        message = f"{folder} cannot be a folder: {found} is not one"
        raise UnhangError("not-a-folder", message, path=found, hint="give a folder, or a new path, to -o")
    if found == folder:
        with suppress(OSError), work.alone(folder) as is_alone:
            for draft in filter(_DRAFT.fullmatch, os.listdir(folder) if is_alone else ()):
                disk.remove(os.path.join(folder, draft))


def _notice(wheel: Wheel, plan: WheelPlan) -> str:
    """Return the text that Apache-2.0 asks for in a modified copy."""
    lines = [
        f"This is {wheel.distribution} {wheel.version}, modified by unhang {__version__}.",
        f"The unmodified wheel is {wheel.file}, sha256 {wheel.sha256}.",
        "Files that were changed, and the fixes that changed them:",
        *(f"  {name}: {', '.join(sorted({t.fix for t, *_ in file.steps}))}" for name, file in plan.files.items()),
        *(f"  {name}: removed, since it was compiled from other code" for name in sorted(plan.bytecode)),
        "Also METADATA (its version) and RECORD. The modifications are under the Apache License 2.0; each changed",
        "function says in a comment that it was changed. Not supported by the authors of the unmodified release.",
    ]
    return "\n".join(lines) + "\n"


def write_whole(path: str, data: bytes) -> bool:
    """Write the file atomically; return False if it has these bytes already."""
    folder, name = os.path.split(path)
    with disk.about(path):
        os.makedirs(folder, exist_ok=True)
        with work.alone(folder):
            same_size = os.path.lexists(path) and os.lstat(path).st_size == len(data)
            if same_size and disk.read(path, len(data)) == data:
                return False
            draft = os.path.join(folder, f".{name}.new")
            try:
                disk.write(draft, data, replace=True)
                disk.run(os.replace, draft, path)
            except BaseException:  # Ctrl-C too
                disk.remove(draft)
                raise
            disk.sync_dir(folder)
    return True
