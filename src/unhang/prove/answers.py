"""The answers of ``unhang prove``: one for each fix x installation x case, as text and as JSON. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from unhang import __version__, gate, suggest
from unhang.errors import joined
from unhang.judge.decide import APPLIED, NEEDED
from unhang.prove import cases
from unhang.prove.cases import ABSENT, BROKEN, PASSED, Case, Outcome, Topology
from unhang.records import Environment, Request
from unhang.tell import report, terminal

PROVEN, UNAFFECTED, PATCHED_PASSES = "proven", "unaffected", "patched-passes"
SAFEGUARD = "safeguard"
NOTHING, UNKNOWN, FAILED = "nothing-to-prove", "unknown", "failed"
_DISTRIBUTIONS = {"yaml": "PyYAML", "hydra": "hydra-core", "PIL": "pillow", "_distutils_hack": "setuptools"}
"""The distributions that have another name than their module, of what the upstreams import."""
COLOURS = {PROVEN: "32", UNAFFECTED: "2", PATCHED_PASSES: "32", NOTHING: "2", UNKNOWN: "33", FAILED: "31"}


class Line(NamedTuple):
    """The answer for one fix on one installation, for one case."""

    upstream: str
    version: str | None
    location: str
    fix: str
    verdict: str
    """The verdict of ``check``."""
    answer: str
    """``proven`` (untouched it hangs, crashes or differs; patched it does not), ``unaffected`` (both pass),
    ``patched-passes`` (the untouched source is missing), ``nothing-to-prove``, ``unknown`` (it cannot be shown here),
    or ``failed`` (the patched source does not pass)."""
    detail: str
    """The reason, where the outcomes do not show it, and remarks."""
    case: str = ""
    topology: str = ""
    untouched: Outcome | None = None
    patched: Outcome | None = None
    seconds: float = 0.0
    """Of both sides."""
    grade: str = ""
    """The fix's. The proof of a ``safeguard`` shows only the cause, or stand-ins take the place of what fails."""

    @property
    def would_fail(self) -> bool:
        """Whether the installed source is untouched and does not pass."""
        return self.answer == PROVEN and self.verdict != APPLIED


class Report(NamedTuple):
    """Everything that is printed."""

    environment: Environment
    python: str
    """The interpreter that ran the proofs."""
    versions: Mapping[str, str]
    """That interpreter's ``python`` and ``torch``; empty where nothing was run."""
    topology: Topology | None
    """The user's own; None where the proofs' own cases were run."""
    lines: Sequence[Line]
    warnings: Sequence[str]
    request: Request
    pip: bool = True
    """Whether that interpreter has pip."""


def judged(line: Line, case: Case, untouched: Outcome | None, patched: Outcome) -> Line:
    """Return the line with the answer of these outcomes; ``untouched`` is None where its source is missing."""
    seconds = round(patched.seconds + (untouched.seconds if untouched else 0.0), 2)
    line = line._replace(
        case=case.name, topology=case.topology.text(), untouched=untouched, patched=patched, seconds=seconds
    )
    broken = next((outcome for outcome in (untouched, patched) if outcome and outcome.status == BROKEN), None)
    if broken is not None:
        return _unknown(line, f"the proof does not run here: {_last(broken)}")
    if untouched is not None and untouched.status == PASSED and case.options.get("may_pass"):
        case = case._replace(untouched=PASSED, at="")
    if untouched is not None and (untouched.status != case.untouched or case.at not in untouched.detail):
        expected = f"{case.untouched} {case.at}".strip()
        return _unknown(line, f"the untouched source {untouched.status}, but the proof expects: {expected}")
    if patched.status == cases.UNKNOWN:
        return _unknown(line, "a schedule does not show how the patched source ends")
    if patched.status != PASSED:
        return line._replace(answer=FAILED)
    if untouched is None:
        return line._replace(answer=PATCHED_PASSES)
    return line._replace(answer=UNAFFECTED if case.is_control else PROVEN)


def exit_code(lines: Sequence[Line]) -> int:
    """Return 1 where the installed source or a patched source fails, else 2 where something is unknown, else 0."""
    if any(line.would_fail or line.answer == FAILED for line in lines):
        return 1
    return 2 if any(line.answer == UNKNOWN for line in lines) else 0


def summary(lines: Sequence[Line], request: Request) -> str:
    """Return one line: the number of each answer, and the next command."""
    counts = Counter(line.answer for line in lines)
    counted = ", ".join(f"{number} {answer}" for answer, number in counts.items()) or "nothing to judge"
    shown = {line.fix: line.grade for line in lines if line.would_fail}
    cures = [fix for fix, grade in shown.items() if grade != SAFEGUARD]
    guards = [fix for fix, grade in shown.items() if grade == SAFEGUARD]
    unknown = {line.fix for line in lines if line.answer == UNKNOWN and line.verdict == NEEDED} - {*shown}
    parts = [counted]
    if cures:
        parts.append("the installed source has the defect")
    if unknown:
        parts.append(f"{', '.join(sorted(unknown))}: needed, though not shown here")
    if cures or unknown:
        parts[-1] += f"; run: {_apply([*cures, *sorted(unknown)], request)}"
    if guards:
        parts.append(
            f"{', '.join(guards)}: a safeguard, of which only the cause was shown, and not that your job hangs; "
            f"to guard against it: {_apply(guards, request)}"
        )
    return "; ".join(parts)


def missing(shown: Report) -> str:
    """Return a hint that names all modules that the proofs miss, with the command that installs them; or nothing."""
    broken = [outcome for line in shown.lines for outcome in (line.untouched, line.patched) if outcome]
    lines = [_last(outcome) for outcome in broken if outcome.status == BROKEN]
    names = sorted({name for text in lines if text.startswith(ABSENT) for name in text[len(ABSENT) :].split()})
    if not names:
        return ""
    return f"hint: the proofs also need {', '.join(names)}; run: {installing(shown.python, shown.pip, names)}"


def installing(python: str, pip: bool, modules: Iterable[str]) -> str:
    """Return the command that installs these modules where ``python`` finds them, with its ``pip`` if it has one."""
    tool = [python, "-m", "pip", "install"] if pip else ["uv", "pip", "install", "--python", python]
    return suggest.line(*tool, *(_DISTRIBUTIONS.get(name, name) for name in modules))


def _apply(fixes: Sequence[str], request: Request) -> str:
    return suggest.command("apply", request, *(word for fix in fixes for word in ("--fix", fix)))


def text(shown: Report, *, colour: bool, width: int = 0) -> str:
    """Return the answers as text, wrapped at the width, unless that is 0."""
    head = [report.environment_line(shown.environment)]
    if shown.versions:
        python, torch = shown.versions["python"], shown.versions["torch"]
        head.append(f"run in {shown.python}: Python {python}, torch {torch}, CPU only")
    lines = [terminal.wrapped("\n".join(map(gate.line, head)), width)]
    place = None
    for line in shown.lines:
        if place != (line.upstream, line.location):
            place = line.upstream, line.location
            name = f"{line.upstream} {line.version or '(version unknown)'}  {line.location}"
            lines += ["", terminal.wrapped(gate.line(name), width)]
        paragraph = terminal.wrapped("\n".join(map(gate.line, _paragraph(line))), width)
        lines.append(terminal.painted(paragraph, line.answer, COLOURS[line.answer]) if colour else paragraph)
    ending = [text for text in (summary(shown.lines, shown.request), missing(shown)) if text]
    return "\n".join([*lines, "", *(terminal.wrapped(gate.line(text), width) for text in ending)])


def document(shown: Report) -> str:
    """Return the answers as JSON, in the format that docs/prove.md documents."""
    place = shown.environment
    content = {
        "schema": 1,
        "unhang": __version__,
        "environment": {"python": place.python, "prefix": place.prefix, "found_by": place.found_by},
        "interpreter": {"path": shown.python, **shown.versions},
        "topology": shown.topology and {**shown.topology._asdict(), "world_size": shown.topology.world},
        "warnings": list(shown.warnings),
        "results": [_result(line) for line in shown.lines],
    }
    return gate.document(content)


def _result(line: Line) -> dict[str, Any]:
    sides = {"untouched": line.untouched, "patched": line.patched}
    outcomes = {name: side and side._asdict() for name, side in sides.items()}
    return {**line._asdict(), **outcomes, **report.about(line.fix)}


def _paragraph(line: Line) -> list[str]:
    about = f"  {line.case}: {line.topology}" if line.case else ""
    grade = f" ({SAFEGUARD})" if line.grade == SAFEGUARD else ""
    rows = [f"  {line.answer:<16}  {line.fix:<24}  {line.verdict}{grade}{about}"]
    installed = {NEEDED: "untouched", APPLIED: "patched"}.get(line.verdict)
    for name, outcome in ("untouched", line.untouched), ("patched", line.patched):
        if outcome is not None:
            here = " (installed)" if name == installed else ""
            detail = "" if outcome.status == BROKEN else f": {outcome.detail}"
            rows.append(f"      {name}{here} {outcome.status} ({outcome.seconds:.1f} s){detail}")
    return [*rows, *([f"      {line.detail}"] if line.detail else [])]


def _last(broken: Outcome) -> str:
    """Return the last line of a traceback."""
    return (broken.detail.strip().splitlines() or ["?"])[-1]


def _unknown(line: Line, why: str) -> Line:
    return line._replace(answer=UNKNOWN, detail=joined(line.detail, why))
