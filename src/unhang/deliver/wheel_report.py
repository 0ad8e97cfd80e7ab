"""Renders the results of ``unhang wheel``, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from packaging.utils import canonicalize_name

from unhang import __version__, gate
from unhang.deliver.wheel import Wheel
from unhang.deliver.wheel_output import Output, WheelPlan
from unhang.errors import UnhangError
from unhang.judge.decide import APPLIED
from unhang.tell import report, rows, terminal


class Result(NamedTuple):
    """The result for one wheel."""

    requirement: str
    """As the user gave it: ``verl==0.7.1``, ``-r FILE``, or a path."""
    wheel: Wheel
    plan: WheelPlan
    notes: tuple[str, ...]
    """About its download."""
    output: Output | None
    """None if nothing in it was rewritten."""


def text(result: Result, *, verbose: bool = False, colour: bool = False, width: int = 0) -> str:
    """Return the text for people: the wheel, a row for each fix that is in it or missing, and what was written."""
    lines, folded = [gate.line(result.wheel.file)], []
    for _, group in report.by_installation(result.plan.findings):
        for item in group:
            if verbose or item.verdict.verdict == APPLIED or not rows.is_settled(item):
                lines += rows.row(item, item.verdict.verdict, verbose=verbose, colour=colour, width=width)
            else:
                folded.append(item)
    lines += filter(None, [rows.folded_away(folded)])
    if result.output is None:
        end = f"  not written: {_why_not_written(result)}"
    else:
        end = f"  {'written' if result.output.written else 'there already'}: {result.output.path}"
    return "\n".join([*lines, terminal.wrapped(gate.line(end), width)])


def document(results: Sequence[Result], unmet: Sequence[str], failed: UnhangError | None = None) -> str:
    """Return the JSON document that docs/json.md describes. ``unmet``: as ``console.unmet`` returns it.

    ``failed``: why the wheels after these could not be written.
    """
    content = {
        "schema": 1,
        "unhang": __version__,
        "digest": report.digest([item for result in results for item in result.plan.findings]),
        "wheels": [_wheel(result) for result in results],
        "unmet": list(unmet),
        **({} if failed is None else {"error": report.fields(failed)}),
    }
    return gate.document(content)


def _wheel(result: Result) -> dict[str, Any]:
    wheel, output = result.wheel, result.output
    notes = [*result.notes] if output else [*result.notes, f"not written: {_why_not_written(result)}"]
    return {
        "requirement": result.requirement,
        "project": canonicalize_name(wheel.distribution),
        "version": wheel.version,
        "input": {"file": wheel.file, "sha256": wheel.sha256},
        "output": output and output._asdict(),
        "results": [report.result(item) for item in result.plan.findings],
        "blocked": [
            {"fix": item.fix, **report.about(item.fix), "file": item.target.file,
             "function": item.target.function, "reason": item.reason, "hint": item.hint}
            for item in result.plan.blocked
        ],
        "notes": notes,
    }  # fmt: skip


def _why_not_written(result: Result) -> str:
    return "nothing could be done" if result.plan.blocked else "it needs nothing"
