"""Judges mutants by the end state: each runs in every configuration beside the untouched function."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from typing import Any

from support.endstates import Some
from unhang.compat.endstates import sandbox
from unhang.compat.endstates.compare import UNFIT, compare
from unhang.compat.endstates.endstate import Outcome, Source

PARTS = 12
FIGURES = ("passed", "cured", "failed", "worse")


class Judge:
    """Tells why a changed rewrite of a function is wrong."""

    def __init__(self, fix: str, before: Source, rewritten: Source) -> None:
        whole = sandbox.end_state(fix, before.name)
        assert whole is not None
        self.before, known = before, dict[Any, Outcome]()
        every = [*whole.configurations(before.function)]
        self.parts = [Some(whole, every[number::PARTS], before, known) for number in range(PARTS)]
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
            if not problem.startswith(UNFIT):
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
