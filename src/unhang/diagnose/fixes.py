"""The fixes, as far as hangs show them: the functions in which ranks wait or fail, and where each stands here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from unhang.errors import joined
from unhang.judge.decide import APPLIED, FIXED_UPSTREAM, NO_REWRITE, NOT_AFFECTED, SETTLED
from unhang.judge.findings import Finding
from unhang.records import Request
from unhang.shapes import catalog
from unhang.suggest import command
from unhang.tell import report, rows


class Place(NamedTuple):
    """A function in a file."""

    file: str
    function: str  # its qualified name


Chain = tuple[tuple[Place, ...], ...]
"""Of each of these tuples, one place must be in a stack. The innermost comes first."""


class Error(NamedTuple):
    """A line of a log that no other defect prints, and where it was raised."""

    text: str  # a part of the line
    frames: Chain
    called: bool = False  # whether a library raises it, which the first of these calls; else that or its file does


class Hang(NamedTuple):
    """One way in which a defect shows: ``compat/schemas/manifest.json`` has the words. What is empty says nothing."""

    summary: str
    waits: Chain = ()
    peers: Chain | None = None  # where others wait: in one of these; none: they have ended; None: anywhere else
    differ: str = ""
    types: tuple[str, ...] = ()
    first: bool = False
    few: bool = False
    errors: tuple[Error, ...] = ()
    shapes: tuple[str, ...] = ()


class Signature(NamedTuple):
    """All hangs of one fix."""

    fix: str
    hangs: tuple[Hang, ...]
    asks: str  # what decides, where the files leave it open


def signatures() -> tuple[Signature, ...]:
    """Return the signatures of all fixes whose defect hangs a job, in alphabetical order."""
    found = []
    for name, fix in catalog.fixes().items():
        data = fix.manifest.get("signature", {})
        if hangs := tuple(map(hang, data.get("hangs", ()))):
            found.append(Signature(name, hangs, data["asks"]))
    return tuple(found)


def hang(data: Mapping[str, Any]) -> Hang:
    """Return a hang as a manifest has it."""
    errors = tuple(Error(**{**one, "frames": _chain(one["frames"])}) for one in data.get("errors", ()))
    peers = {"peers": _chain([data["peers"]] if data["peers"] else [])} if "peers" in data else {}
    lists = {name: tuple(data[name]) for name in ("types", "shapes") if name in data}
    return Hang(**{**data, **lists, **peers, "waits": _chain(data.get("waits", ())), "errors": errors})


def _chain(steps: Sequence[Sequence[str]]) -> Chain:
    return tuple(tuple(Place(*place.split("::")) for place in step) for step in steps)


# --- where they stand in an environment


class Standing(NamedTuple):
    """A fix on one installation, as docs/json.md has it."""

    upstream: str
    version: str | None
    location: str
    verdict: str
    detail: str
    hint: str
    shape: str | None = None
    code: str | None = None
    strikes: str | None = None  # None if nothing was said of a job


def standings(findings: Sequence[Finding], request: Request) -> tuple[Standing, ...]:
    """Return where a fix stands on each installation that has, or had, its defect; if there is none, on the others.

    ``findings`` are those of this fix alone; ``request`` names the environment, and no fix. Empty without findings.
    """
    found = []
    for place, (finding,) in report.by_installation(findings):
        verdict = finding.verdict
        detail = joined(verdict.detail, rows.struck(finding))
        what = verdict.verdict, detail, _hint(finding, report.digest(findings), request), finding.seen.shape
        word = finding.struck and finding.struck.word
        found.append(Standing(place.upstream, place.version, place.root, *what, verdict.code, word))
    return tuple(one for one in found if one.verdict not in (FIXED_UPSTREAM, NOT_AFFECTED)) or tuple(found)


def cure(fix: str, request: Request) -> str:
    """Return the command that brings a fix into place."""
    if request.writer[0] == "overlay":  # written again with one fix, it would lose the others
        return command("apply", request)
    return command("apply", request, "--fix", fix)


def is_curable(found: Sequence[Standing]) -> bool:
    """Return whether there is a rewrite where a fix stands; so there is where that is not known."""
    return not found or any(one.code != NO_REWRITE for one in found)


def _hint(finding: Finding, digest: str, request: Request) -> str:
    fix, verdict = finding.target.fix, finding.verdict.verdict
    if finding.verdict.to_rewrite:
        return f"on every node of the job, run: {cure(fix, request)}"
    if verdict == APPLIED:
        check = command("check", request, "--fix", fix, "--expect-digest", digest)
        return f"a job that started before that needs a restart; else look at the other nodes: `{check}` on each"
    if verdict in SETTLED:
        return (
            "this copy does not have the defect; if the job runs another, name it with --python, --target or --source"
        )
    return finding.verdict.hint
