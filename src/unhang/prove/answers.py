"""What ``unhang prove`` answers: a topology from its sizes, and a line for each fix x installation x case. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from unhang import __version__
from unhang.errors import UnhangError
from unhang.judge.decide import APPLIED, NEEDED
from unhang.prove.cases import BROKEN, PASSED, Case, Outcome, Topology
from unhang.records import Environment
from unhang.tell import report

PROVEN, UNAFFECTED, PATCHED_PASSES = "proven", "unaffected", "patched-passes"
NOTHING, UNKNOWN, FAILED = "nothing-to-prove", "unknown", "failed"
COLOURS = {PROVEN: "32", UNAFFECTED: "2", PATCHED_PASSES: "32", NOTHING: "2", UNKNOWN: "33", FAILED: "31"}


class Line(NamedTuple):
    """The answer for one fix on one installation, for one case."""

    upstream: str
    version: str | None
    location: str
    fix: str
    verdict: str
    """What ``check`` says of it."""
    answer: str
    """``proven`` (untouched it hangs, crashes or differs; patched it does not), ``unaffected`` (passes both ways),
    ``patched-passes`` (the untouched source is not at hand), ``nothing-to-prove``, ``unknown`` (no proof of it here),
    or ``failed`` (the patched source does not pass)."""
    detail: str
    """Why, where the outcomes do not say it; and what a reader should know besides."""
    case: str = ""
    topology: str = ""
    untouched: Outcome | None = None
    patched: Outcome | None = None
    seconds: float = 0.0
    """Both together."""

    @property
    def would_fail(self) -> bool:
        """Whether what is installed is the untouched source, and does not pass."""
        return self.answer == PROVEN and self.verdict != APPLIED


class Told(NamedTuple):
    """All that is told."""

    environment: Environment
    python: str
    """The interpreter that the proofs ran in."""
    versions: Mapping[str, str]
    """Of that interpreter's ``python`` and ``torch``; empty where none was asked."""
    topology: Topology | None
    """The user's own; None where the proofs' own cases were run."""
    lines: Sequence[Line]
    warnings: Sequence[str]


def topology(
    tp: int = 1,
    pp: int = 1,
    cp: int = 1,
    ep: int = 1,
    etp: int = 1,
    dp: int | None = None,
    world_size: int | None = None,
) -> Topology:
    """The topology of these sizes; ``dp`` follows from ``world_size``, and is else 1.

    Raises UnhangError ``bad-topology`` where a size does not divide what it has to, with what would.
    """
    model = tp * pp * cp
    if world_size is None:
        dp = dp or 1
    elif world_size % model:
        above = (world_size // model + 1) * model
        message = f"a world size of {world_size} is not divisible by TP x PP x CP = {tp} x {pp} x {cp} = {model}"
        raise UnhangError("bad-topology", message, hint=f"the next larger world size that is: {above}")
    elif dp is not None and dp * model != world_size:
        message = f"TP x PP x CP x DP = {dp * model}, and the world size is {world_size}"
        raise UnhangError("bad-topology", message, hint="leave out --dp or --world-size")
    else:
        dp = world_size // model
    if tp * cp * dp % (ep * etp):
        experts = f"EP = {ep}" if etp == 1 else f"EP x ETP = {ep} x {etp} = {ep * etp}"
        message = f"a pipeline stage has TP x CP x DP = {tp * cp * dp} ranks, which {experts} does not divide"
        raise UnhangError("bad-topology", message, hint="give --dp or --world-size; ETP is 1 unless --etp says more")
    return Topology(tp=tp, pp=pp, cp=cp, dp=dp, ep=ep, etp=etp)


def judged(line: Line, case: Case, untouched: Outcome | None, patched: Outcome) -> Line:
    """The line, with the answer that these outcomes give; ``untouched`` is None where its source is not at hand."""
    seconds = round(patched.seconds + (untouched.seconds if untouched else 0.0), 2)
    line = line._replace(
        case=case.name, topology=case.topology.text(), untouched=untouched, patched=patched, seconds=seconds
    )
    broken = next((outcome for outcome in (untouched, patched) if outcome and outcome.status == BROKEN), None)
    if broken is not None:
        return line._replace(answer=UNKNOWN, detail=_join(line.detail, f"the proof does not run here: {_last(broken)}"))
    if untouched is not None and untouched.status == PASSED and case.options.get("may_pass"):
        case = case._replace(untouched=PASSED, at="")
    if untouched is not None and (untouched.status != case.untouched or case.at not in untouched.detail):
        expected = f"{case.untouched} {case.at}".strip()
        why = f"the untouched source {untouched.status}, where the proof knows it as: {expected}"
        return line._replace(answer=UNKNOWN, detail=_join(line.detail, why))
    if patched.status != PASSED:
        return line._replace(answer=FAILED)
    if untouched is None:
        return line._replace(answer=PATCHED_PASSES)
    return line._replace(answer=UNAFFECTED if case.is_control else PROVEN)


def exit_code(lines: Iterable[Line]) -> int:
    """1 where what is installed fails or a patched source does; else 2 where something is unknown; else 0."""
    lines = list(lines)
    if any(line.would_fail or line.answer == FAILED for line in lines):
        return 1
    return 2 if any(line.answer == UNKNOWN for line in lines) else 0


def summary(lines: Sequence[Line]) -> str:
    """One line: what came of it, and the next command."""
    counts: dict[str, int] = {}
    for line in lines:
        counts[line.answer] = counts.get(line.answer, 0) + 1
    told = ", ".join(f"{number} {answer}" for answer, number in counts.items()) or "nothing to judge"
    needed = list(dict.fromkeys(line.fix for line in lines if line.would_fail))
    return f"{told}; what is installed shows the defect: unhang apply ({', '.join(needed)})" if needed else told


def text(told: Told, *, colour: bool) -> str:
    """The answers for people."""
    lines = [report.environment_line(told.environment)]
    if told.versions:
        python, torch = told.versions["python"], told.versions["torch"]
        lines.append(f"run in {told.python}: Python {python}, torch {torch}, CPU only")
    place = None
    for line in told.lines:
        if place != (line.upstream, line.location):
            place = line.upstream, line.location
            lines.append(f"\n{line.upstream} {line.version or '(version unknown)'}  {line.location}")
        lines += _paragraph(line, colour)
    return "\n".join([*lines, "", summary(told.lines)])


def document(told: Told) -> str:
    """The answers as JSON; docs/prove.md documents its form."""
    place = told.environment
    content = {
        "schema": 1,
        "unhang": __version__,
        "environment": {"python": place.python, "prefix": place.prefix, "found_by": place.found_by},
        "interpreter": {"path": told.python, **told.versions},
        "topology": None if told.topology is None else {**told.topology._asdict(), "world_size": told.topology.world},
        "warnings": list(told.warnings),
        "results": [_result(line) for line in told.lines],
    }
    return json.dumps(content, indent=1)


def _result(line: Line) -> dict[str, Any]:
    sides = {"untouched": line.untouched, "patched": line.patched}
    return {**line._asdict(), **{name: side and side._asdict() for name, side in sides.items()}}


def _paragraph(line: Line, colour: bool) -> list[str]:
    word = f"{line.answer:<16}"
    word = f"\x1b[{COLOURS[line.answer]}m{word}\x1b[0m" if colour else word
    about = f"  {line.case}: {line.topology}" if line.case else ""
    told = [f"  {word}  {line.fix:<24}  {line.verdict}{about}"]
    installed = {NEEDED: "untouched", APPLIED: "patched"}.get(line.verdict)
    for name, outcome in ("untouched", line.untouched), ("patched", line.patched):
        if outcome is not None:
            here = " (installed)" if name == installed else ""
            detail = "" if outcome.status == BROKEN else f": {outcome.detail}"
            told.append(f"      {name}{here} {outcome.status} ({outcome.seconds:.1f} s){detail}")
    return [*told, *([f"      {line.detail}"] if line.detail else [])]


def _last(outcome: Outcome) -> str:
    """What to tell of a traceback: its last line."""
    return (outcome.detail.strip().splitlines() or ["?"])[-1]


def _join(*parts: str) -> str:
    return "; ".join(filter(None, parts))
