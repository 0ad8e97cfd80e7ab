"""How `unhang wheel` tells what came of each wheel: text for people, JSON for programs. Pure: strings out."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from packaging.utils import canonicalize_name

from unhang import __version__
from unhang.deliver.wheel import Wheel
from unhang.judge.findings import Finding
from unhang.rewrite.plan import Blocked
from unhang.tell import report


class Output(NamedTuple):
    """A rewritten wheel."""

    path: str
    version: str
    sha256: str
    is_new: bool
    """Whether this run wrote it; else it was there already, to the byte."""


class Done(NamedTuple):
    """What came of one wheel."""

    requirement: str
    """As it was asked for: ``verl==0.7.1``, ``-r FILE``, or a path."""
    wheel: Wheel
    sha256: str
    """Of the wheel that was read."""
    findings: Sequence[Finding]
    """As they are with the rewritten files in place."""
    blocked: Sequence[Blocked]
    notes: tuple[str, ...]
    """What was said of its download."""
    output: Output | None
    """None where nothing of it was rewritten."""


def text(done: Done) -> str:
    """The lines for people: the wheel, a line for each target, and what became of it."""
    lines = [os.path.basename(done.wheel.path)]
    for item in done.findings:
        place, verdict = item.target, item.verdict
        row = f"  {verdict.verdict:<14}  {place.fix:<24}  {place.file}  {place.function}  {verdict.detail}"
        lines.append(row.rstrip())
    if done.output is None:
        lines.append(f"  not written: {_why_not(done)}")
    else:
        lines.append(f"  {'written' if done.output.is_new else 'there already'}: {done.output.path}")
    return "\n".join(lines)


def document(all_done: Sequence[Done], unmet: Sequence[str]) -> str:
    """The JSON document; docs/json.md documents its form, which is stable. ``unmet``: as ``tell.unmet`` gives it."""
    told = {
        "schema": 1,
        "unhang": __version__,
        "digest": report.digest([item for done in all_done for item in done.findings]),
        "wheels": [_wheel(done) for done in all_done],
        "unmet": list(unmet),
    }
    return json.dumps(told, indent=1)


def _wheel(done: Done) -> dict[str, Any]:
    output = done.output
    notes = list(done.notes) if output else [*done.notes, f"not written: {_why_not(done)}"]
    return {
        "requirement": done.requirement,
        "project": canonicalize_name(done.wheel.distribution),
        "version": done.wheel.version,
        "input": {"file": os.path.basename(done.wheel.path), "sha256": done.sha256},
        "output": output and {
            "path": output.path, "version": output.version, "sha256": output.sha256, "written": output.is_new
        },
        "results": [report.result(item) for item in done.findings],
        "blocked": [
            {"fix": item.fix, "file": item.target.file, "function": item.target.function, "reason": item.reason,
             "hint": item.hint}
            for item in done.blocked
        ],
        "notes": notes,
    }  # fmt: skip


def _why_not(done: Done) -> str:
    return "nothing could be done" if done.blocked else "it needs nothing"
