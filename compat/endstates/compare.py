"""Compares what a function does before and after its rewrite, in every configuration."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable
from typing import Any, NamedTuple

from unhang.compat.endstates.endstate import EndState, Outcome, Source, described
from unhang.compat.endstates.standin import GAPS, Gap
from unhang.shapes.branches import branches


class Row(NamedTuple):
    """The end state of one shape."""

    branches: list[str]
    configurations: int
    passed: int
    """How many configurations pass before and after."""
    cured: int
    """How many pass only after."""
    failed: int
    """How many pass neither before nor after."""
    worse: int
    """How many pass before, and after it fail or, where the fix plays no part, differ."""
    problems: list[str]
    """One example of each kind of problem. There must be none."""
    failing: str = ""
    """Which configurations fail before and after, as a ``fingerprint``."""


def compare(endstate: EndState, before: Source, after: Source | None, as_written: bool = False) -> Row:
    """Run a shape of the function and its rewrite in every configuration.

    ``after`` is None if the fix does not rewrite this shape; then nothing may fail.
    ``as_written``: ``before`` has a pull request, which the rewrite takes back; then more than the fix may differ.
    """
    found = branches(endstate.part(before.function))
    problems = {name: f"a new branch: {name}" for name in found if name not in {*endstate.varied, *endstate.held}}
    if after and endstate.has_feature(before) and not endstate.has_feature(after):
        problems["feature"] = "the rewrite has lost the feature that the fix is about"  # nothing would hold it to that
    if after and _beside(endstate, before) != _beside(endstate, after):
        problems["beside"] = "the rewrite changes more than the part that runs"
    failing: list[tuple[Any, Outcome]] = []
    counts = dict.fromkeys(("passed", "cured", "failed", "worse"), 0)
    every = list(endstate.configurations(before.function))
    known: dict[Any, Outcome] = {}

    def untouched(configuration: Any) -> Outcome:
        if configuration not in known:
            known[configuration] = tried(endstate, before, configuration)
        return known[configuration]

    for configuration in every:
        first = untouched(configuration)
        then = tried(endstate, after, configuration) if after else first
        kind, why = _compared(endstate, configuration, first, then, as_written)
        counts[kind] += 1
        if kind == "failed":
            failing.append((configuration, then))
        control = endstate.control(configuration)
        gaps = [fault for fault in then.faults if fault.startswith(GAP)]
        if gaps:
            pass  # nothing is shown of it
        elif kind == "worse":
            problems.setdefault(f"worse {why}", f"worse with {described(configuration)}: {why}")
        elif then.faults and after and control is not None and not untouched(control).faults:
            problems.setdefault(f"not cured {why}", f"not cured with {described(configuration)}: {why}")
        elif then.faults and not after and not (endstate.concerned(configuration) and control is None):
            problems.setdefault(f"fails {why}", f"{FAILS} {described(configuration)}: {why}")
        for lacking in (*gaps, *(fault for fault in first.faults if fault.startswith((GAP, *LACKING)))):
            problems.setdefault(lacking, f"{UNFIT} {described(configuration)}: {lacking}")
    if after and not counts["cured"]:
        problems["nothing"] = "nothing is cured"
    return Row(found, len(every), **counts, problems=list(problems.values()), failing=fingerprint(failing))


def fingerprint(failing: Iterable[tuple[Any, Outcome]]) -> str:
    """Return a digest of the configurations that fail, each with its faults; empty if there are none.

    Of an error it has the class alone: its text differs between Pythons.
    """
    lines = []
    for configuration, outcome in failing:
        faults = sorted(fault.partition(":")[0] if fault.startswith("raises ") else fault for fault in outcome.faults)
        lines.append(f"{described(configuration)}: {faults}")
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16] if lines else ""


def _beside(endstate: EndState, source: Source) -> list[str]:
    """Return a dump of each statement that does not run."""
    part = endstate.part(source.function)
    return [] if part is source.function else [ast.dump(node) for node in source.function.body if node is not part]


FAILS = "fails with"
"""How the problem begins of a function without a rewrite that has the defect."""
UNFIT = "the stand-ins do not fit"
"""How a problem begins that is one of the model, and says nothing of the function."""
GAP = "the stand-ins lack"
"""How the fault begins of a function that asks a stand-in for something that it does not declare."""
LACKING = ("raises AttributeError", "raises NameError")
"""The faults of an untouched function that are taken for gaps in the stand-ins, not for upstream's."""


def tried(endstate: EndState, source: Source, configuration: Any) -> Outcome:
    """Run a function in a configuration; what it raises is a fault, and so is what the stand-ins lack."""
    GAPS.clear()
    try:
        outcome = endstate.observe(source, configuration)
    except (Exception, Gap) as error:
        outcome = Outcome(frozenset({f"raises {type(error).__name__}: {error}"}), ())
    return Outcome(frozenset({f"{GAP} {GAPS[0]}"}), ()) if GAPS else outcome


def _compared(
    endstate: EndState, configuration: Any, before: Outcome, after: Outcome, as_written: bool
) -> tuple[str, str]:
    """Return the kind of a configuration, and why it is not better."""
    if before.faults:
        return ("failed", ", ".join(sorted(after.faults))) if after.faults else ("cured", "")
    if after.faults:
        return "worse", ", ".join(sorted(after.faults))
    if not (as_written or endstate.concerned(configuration) or endstate.same(before.seen, after.seen)):
        return "worse", "something else is seen where the fix plays no part"
    return "passed", ""
