"""Both sides of a fix on an installation, whichever of them is installed: the untouched source and the patched one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from unhang.judge.decide import APPLIED, NEEDED
from unhang.judge.findings import Finding
from unhang.rewrite.plan import Original, plan


class Sides(NamedTuple):
    """The files of a fix, by their path below the import path."""

    untouched: Mapping[str, bytes] | None
    """None where the installed source is patched and its original bytes are missing."""
    patched: Mapping[str, bytes]
    """Empty where no target of the fix is needed or applied here."""
    note: str
    """Where the untouched bytes come from, if not from the installation; or why they are missing."""


def sides(findings: Sequence[Finding], originals: Mapping[str, Original]) -> Sides | str:
    """Return both sides for the findings of one fix on one installation, or why its rewrite would be blocked.

    ``originals`` maps the real path of a file to what its receipt keeps.
    """
    planned = plan(findings, originals)
    if planned.blocked:
        return planned.blocked[0].reason
    files = {file.path: file for file in planned.files}
    untouched: dict[str, bytes | None] = {}
    patched: dict[str, bytes] = {}
    notes = set()
    for finding in findings:
        verdict, seen, name = finding.verdict.verdict, finding.seen, finding.target.file
        if verdict not in (NEEDED, APPLIED) or seen.data is None:
            continue
        path = seen.place
        kept = originals.get(path)
        ours = kept.data if kept is not None and kept.patched == seen.sha256 else None
        patched[name] = files[path].after if verdict == NEEDED else seen.data
        untouched[name] = seen.data if verdict == NEEDED and ours is None else ours
        if ours is not None:
            notes.add("already patched: the untouched source comes from the receipt")
        elif verdict == APPLIED:
            why = "the file was edited since" if kept is not None else "no receipt has its original bytes"
            notes.add(f"already patched, and {why}: only the patched side is shown")
    known = {name: data for name, data in untouched.items() if data is not None}
    return Sides(known if len(known) == len(untouched) else None, patched, "; ".join(sorted(notes)))
