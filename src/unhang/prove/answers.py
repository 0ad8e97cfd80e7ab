"""The answers of ``unhang prove``: one for each fix x installation x case, as text and as JSON. Pure."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from unhang import __version__, gate, suggest
from unhang.errors import joined
from unhang.judge.decide import APPLIED, NEEDED
from unhang.prove import table
from unhang.prove.cases import ABSENT, BROKEN, CRASHED, HUNG, PASSED, Case, Outcome, Topology
from unhang.prove.gpus import Gpu
from unhang.prove.line import (
    FAILED,
    NOTHING,
    PATCHED_PASSES,
    PROVEN,
    SAFEGUARD,
    UNAFFECTED,
    UNKNOWN,
    Line,
)
from unhang.records import Environment, Request
from unhang.shapes import catalog
from unhang.tell import report, terminal

_DISTRIBUTIONS = {"yaml": "PyYAML", "hydra": "hydra-core", "PIL": "pillow", "_distutils_hack": "setuptools"}
"""The distributions that have another name than their module, of what the upstreams import."""
_NOT_ON_CPU = "NCCL, a GPU, your own model and data"
_NOT_ON_GPU = "several nodes, InfiniBand, NVLink (the ranks speak over sockets), your own model and data"
COLOURS = {PROVEN: "32", UNAFFECTED: "2", PATCHED_PASSES: "32", NOTHING: "2", UNKNOWN: "33", FAILED: "31"}


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
    gpus: Sequence[Gpu] = ()
    """Where the ranks ran; empty for a CPU."""
    keep: str = ""
    """Where what the ranks left is kept that did not end well."""


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


def summary(lines: Sequence[Line], *, left: str = _NOT_ON_CPU) -> str:
    """Return one line: what was shown, and what was not; ``left`` is what such a run never shows."""
    if not lines:
        return "nothing to judge"
    ran = [line for line in lines if line.case]
    shown = []
    for lead, is_one, end in (
        ("", lambda it: it.answer == PROVEN and it.grade != SAFEGUARD, "failed without the fix and passed with it"),
        (
            "of ",
            lambda it: it.answer == PROVEN and it.grade == SAFEGUARD,
            "showed the cause without the fix, and not with it",
        ),
        ("", lambda it: it.answer == PATCHED_PASSES, "passed with the fix (the untouched source is not there)"),
        ("", lambda it: it.answer == FAILED, "FAILED WITH THE FIX: please report it"),
    ):
        if mine := list(filter(is_one, lines)):
            of = [line for line in ran if line.fix in {it.fix for it in mine}]
            number = f"{len(mine)} of {len(of)} cases" if len(of) > 1 else "its one case"
            shown.append(f"{lead}{_names(mine)} {number} {end}")
    fine = [line for line in lines if line.answer == UNAFFECTED]
    if fine and not shown:
        shown.append(f"{_names(fine)} no defect in {len(fine)} case{'' if len(fine) == 1 else 's'}")
    unknown = [line for line in lines if line.answer == UNKNOWN]
    never = [_names(unknown)[:-1]] * bool(unknown) + [left] * bool(ran)
    shown = shown or [", ".join(f"{number} {answer}" for answer, number in Counter(it.answer for it in lines).items())]
    return "; ".join([f"shown: {', '.join(shown)}", *([f"not shown: {', '.join(never)}"] if never else [])])


def after(lines: Sequence[Line], request: Request) -> list[str]:
    """Return what is next, line by line: each command is a line of its own."""
    shown = {line.fix: line.grade for line in lines if line.would_fail}
    cures = [fix for fix, grade in shown.items() if grade != SAFEGUARD]
    guards = [fix for fix, grade in shown.items() if grade == SAFEGUARD]
    unknown = sorted({line.fix for line in lines if line.answer == UNKNOWN and line.verdict == NEEDED} - {*shown})
    parts = []
    if cures or unknown:
        defect = "the installed source has the defect" if cures else ""
        left = f"{', '.join(unknown)}: needed, though not shown here" if unknown else ""
        parts += [joined(defect, left, "next, on every node:"), f"  {_apply([*cures, *unknown], request)}"]
    if guards:
        why = f"{', '.join(guards)}: a safeguard, of which only the cause was shown, and not that your job hangs"
        parts += [f"{why}; to guard against it:", f"  {_apply(guards, request)}"]
    return parts


def _names(lines: Iterable[Line]) -> str:
    """Return the fixes of these lines, or how many there are, with a colon."""
    names = list(dict.fromkeys(line.fix for line in lines))
    return f"{', '.join(names) if len(names) <= report.FEW else f'{len(names)} fixes'}:"


def missing(shown: Report) -> str:
    """Return a hint that names all modules that the proofs miss, with the command that installs them; or nothing."""
    broken = [outcome for line in shown.lines for outcome in (line.untouched, line.patched) if outcome]
    lines = [_last(outcome) for outcome in broken if outcome.status == BROKEN]
    names = sorted({name for text in lines if text.startswith(ABSENT) for name in text[len(ABSENT) :].split()})
    if not names:
        return ""
    return f"hint: the proofs also need {', '.join(names)}; run: {installing(shown.python, shown.pip, names)}"


def installing(python: str, pip: bool, modules: Iterable[str]) -> str:
    """Return the command that installs these modules where ``python`` finds them, with its ``pip`` if it has one.

    Without that, it is uv's, or another pip's: which of them is there, the user knows.
    """
    words = [_DISTRIBUTIONS.get(name, name) for name in modules]
    if pip:
        return suggest.line(python, "-m", "pip", "install", *words)
    by_uv = suggest.line("uv", "pip", "install", "--python", python, *words)
    return f"{by_uv}, or: {suggest.line('pip', '--python', python, 'install', *words)}"


def _apply(fixes: Sequence[str], request: Request) -> str:
    return suggest.command("apply", request, *(word for fix in fixes for word in ("--fix", fix)))


def text(shown: Report, *, colour: bool = False, width: int = 0, verbose: bool = False) -> str:
    """Return the answers as text: a line for each, or, at a terminal's width, a table for each fix.

    Below the table is what was seen in one case that shows the defect, and in each that is no success; with
    ``verbose`` in all of them.
    """
    head = [report.environment_line(shown.environment)]
    if shown.versions:
        python, torch = shown.versions["python"], shown.versions["torch"]
        head.append(f"run in {shown.python}: Python {python}, torch {torch}, {_device(shown)}")
    lines = [terminal.wrapped("\n".join(map(gate.line, head)), width)]
    places = groupby(shown.lines, key=lambda line: (line.upstream, line.version, line.location))
    for (upstream, version, location), group in places:
        lines += ["", terminal.wrapped(gate.line(f"{upstream} {version or '(version unknown)'}  {location}"), width)]
        if not width:
            lines += [_row(line, colour=colour) for line in group]
            continue
        for fix, rows in groupby(group, key=lambda it: it.fix):
            lines += table.drawn(catalog.fix(fix), list(rows), width, verbose=verbose, colour=colour)
    left = _NOT_ON_GPU if shown.gpus else _NOT_ON_CPU
    ending = [summary(shown.lines, left=left), *kept(shown), *after(shown.lines, shown.request), missing(shown)]
    return "\n".join([*lines, "", *(terminal.wrapped(gate.line(text), width) for text in ending if text)])


def _device(shown: Report) -> str:
    """Return where the ranks ran, and what they took of a GPU's memory."""
    if not shown.gpus:
        return "CPU only"
    sides = [side for line in shown.lines for side in (line.untouched, line.patched) if side]
    taken = max((side.gpu_bytes for side in sides), default=0) - min(gpu.used for gpu in shown.gpus)
    names = ", ".join(f"GPU {gpu.number} ({gpu.name})" for gpu in shown.gpus)
    memory = f", {max(taken, 0) / 2**30:.1f} GiB of a GPU's memory taken" if taken > 0 else ""
    return f"NCCL {shown.versions.get('nccl', '?')}, {names}{memory}"


def kept(shown: Report) -> list[str]:
    """Return the commands that diagnose what was kept of ranks that did not end well, each on a line of its own."""
    folders = [
        os.path.join(shown.keep, line.upstream, line.fix, name, line.case)
        for line in shown.lines
        for name, side in (("untouched", line.untouched), ("patched", line.patched))
        if shown.keep and side and side.status in (HUNG, CRASHED)
    ]
    commands = [f"  {suggest.line('unhang', 'diagnose', folder)}" for folder in dict.fromkeys(folders)]
    return ["what these ranks left is kept; to diagnose it:", *commands] if commands else []


def document(shown: Report) -> str:
    """Return the answers as JSON, in the format that docs/prove.md documents."""
    place = shown.environment
    content = {
        "schema": 1,
        "unhang": __version__,
        "environment": {"python": place.python, "prefix": place.prefix, "found_by": place.found_by},
        "interpreter": {"path": shown.python, **shown.versions},
        "gpus": [gpu._asdict() for gpu in shown.gpus],
        "topology": shown.topology and {**shown.topology._asdict(), "world_size": shown.topology.world},
        "warnings": list(shown.warnings),
        "results": [_result(line) for line in shown.lines],
    }
    return gate.document(content)


def _result(line: Line) -> dict[str, Any]:
    sides = {"untouched": line.untouched, "patched": line.patched}
    outcomes = {name: side and side._asdict() for name, side in sides.items()}
    return {**line._asdict(), **outcomes, **report.about(line.fix)}


def _row(line: Line, *, colour: bool) -> str:
    """Return an answer as one line, for a log: fields with two spaces between them."""
    grade = f" ({SAFEGUARD})" if line.grade == SAFEGUARD else ""
    parts = [f"{line.answer:<16}", f"{line.fix:<24}", f"{line.verdict}{grade}"]
    parts += [f"{line.case}: {line.topology}"] * bool(line.case)
    installed = {NEEDED: "untouched", APPLIED: "patched"}.get(line.verdict)
    for name, outcome in ("untouched", line.untouched), ("patched", line.patched):
        if outcome is not None:
            here = " (installed)" if name == installed else ""
            detail = "" if outcome.status == BROKEN else f": {outcome.detail}"
            parts.append(f"{name}{here} {outcome.status} ({outcome.seconds:.1f} s){detail}")
    text = "  ".join(["", *(gate.line(part) for part in (*parts, line.detail) if part)])
    return terminal.painted(text, line.answer, COLOURS[line.answer]) if colour else text


def _last(broken: Outcome) -> str:
    """Return the last line of a traceback."""
    return (broken.detail.strip().splitlines() or ["?"])[-1]


def _unknown(line: Line, why: str) -> Line:
    return line._replace(answer=UNKNOWN, detail=joined(line.detail, why))
