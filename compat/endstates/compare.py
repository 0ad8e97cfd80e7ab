"""Compares what a function does before and after its rewrite, in every configuration."""

from __future__ import annotations

import ast
from typing import Any, NamedTuple

from unhang.compat.endstates.branches import branches
from unhang.compat.endstates.endstate import EndState, Outcome, Source, described


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
        control = endstate.control(configuration)
        if kind == "worse":
            problems.setdefault(f"worse {why}", f"worse with {described(configuration)}: {why}")
        elif then.faults and after and control is not None and not untouched(control).faults:
            problems.setdefault(f"not cured {why}", f"not cured with {described(configuration)}: {why}")
        elif then.faults and not after and not (endstate.concerned(configuration) and control is None):
            problems.setdefault(f"fails {why}", f"fails with {described(configuration)}: {why}")
        for lacking in (fault for fault in first.faults if fault.startswith(LACKING)):
            problems.setdefault(lacking, f"the stand-ins do not fit {described(configuration)}: {lacking}")
    if after and not counts["cured"]:
        problems["nothing"] = "nothing is cured"
    return Row(found, len(every), **counts, problems=list(problems.values()))


def _beside(endstate: EndState, source: Source) -> list[str]:
    """Return a dump of each statement that does not run."""
    part = endstate.part(source.function)
    return [] if part is source.function else [ast.dump(node) for node in source.function.body if node is not part]


LACKING = ("raises AttributeError", "raises NameError")
"""The faults of an untouched function that are taken for gaps in the stand-ins, not for upstream's."""


def tried(endstate: EndState, source: Source, configuration: Any) -> Outcome:
    """Run a function in a configuration; what it raises is a fault."""
    try:
        return endstate.observe(source, configuration)
    except Exception as error:
        return Outcome(frozenset({f"raises {type(error).__name__}: {error}"}), ())


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
