"""Judges mutants by the end state: each runs in every configuration beside the untouched function."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import support.checkout  # noqa: F401 - makes unhang.compat.endstates importable
from unhang.compat.endstates import sandbox
from unhang.compat.endstates.compare import compare, tried
from unhang.compat.endstates.endstate import EndState, Outcome, Source
from unhang.shapes.shape import Function

PARTS = 12
FIGURES = ("passed", "cured", "failed", "worse")
UNFIT = re.compile(r"'(SimpleNamespace|types\.SimpleNamespace|Tensor|Torch|Group|Layer)' object|<lambda>")
"""What a stand-in that lacks something says. A mutant is not caught by that."""


class Part(EndState):
    """A part of the configurations of an end state, which runs the untouched function once only."""

    def __init__(self, whole: EndState, before: Source, number: int, known: dict[Any, Outcome]) -> None:
        self.whole, self.before, self.number, self.known = whole, before, number, known
        self.varied, self.held = whole.varied, whole.held  # type: ignore[misc]
        self.has_feature, self.concerned = whole.has_feature, whole.concerned  # type: ignore[method-assign]
        self.same, self.control, self.part = whole.same, whole.control, whole.part  # type: ignore[method-assign]

    def configurations(self, function: Function) -> Iterator[Any]:
        return iter(list(self.whole.configurations(function))[self.number :: PARTS])

    def observe(self, source: Source, configuration: Any) -> Outcome:
        if source is not self.before:
            return self.whole.observe(source, configuration)
        if configuration not in self.known:
            self.known[configuration] = tried(self.whole, source, configuration)
        return self.known[configuration]


class Judge:
    """Tells why a changed rewrite of a function is wrong."""

    def __init__(self, fix: str, before: Source, rewritten: Source) -> None:
        whole = sandbox.end_state(fix, before.name)
        assert whole is not None
        self.before, self.known = before, dict[Any, Outcome]()
        self.parts = [Part(whole, before, number, self.known) for number in range(PARTS)]
        self.figures: Counter[str] = Counter()
        problems = list(self._problems(rewritten, self.figures))
        assert not problems, problems

    def why(self, text: str) -> tuple[bool, str]:
        """Return whether the mutant is caught, and why it is or is not."""
        mutant, figures = Source(text, self.before.name), Counter[str]()
        if ast.dump(mutant.function) == ast.dump(self.before.function):
            return True, "nothing is rewritten"
        unfit = ""
        for problem in self._problems(mutant, figures):
            if not UNFIT.search(problem):
                return True, problem
            unfit = problem
        if unfit:
            return False, unfit
        fewer = {name: (figures[name], self.figures[name]) for name in FIGURES if figures[name] != self.figures[name]}
        return bool(fewer), "; ".join(f"{name} {own}, not {there}" for name, (own, there) in fewer.items())

    def _problems(self, after: Source, figures: Counter[str]) -> Iterator[str]:
        """Yield the problems of each part, and add up the figures."""
        for part in self.parts:
            row = compare(part, self.before, after)
            yield from (problem for problem in row.problems if problem != "nothing is cured")
            figures.update({name: getattr(row, name) for name in FIGURES})
