"""Judges mutants by the scene of their fix, or by its end state: in every setting beside the untouched function."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from support.endstates import Some
from unhang.compat.endstates import sandbox, scenes
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


SAME = "every rank returns the same as with our rewrite, in every setting"
"""Why a mutant is equivalent, as a scene finds it."""
BATCH = 32
"""How many mutants one child process plays."""


def by_scene(fix: str, before: Source, rewritten: Source, mutants: Sequence[str]) -> list[tuple[bool, str]]:
    """Return for each mutant whether it is caught, and why it is or is not."""
    answers: list[tuple[bool, str]] = []
    for start in range(0, len(mutants), BATCH):
        texts = {str(number): Source(text, before.name) for number, text in enumerate(mutants[start : start + BATCH])}
        played = scenes.played(fix, before, {"ours": rewritten, **texts}, first=True)
        ours = played["ours"]
        assert not ours["wrong"], ours
        for name, source in texts.items():
            wrong = [f"{setting}: {why}" for setting, why in played[name]["wrong"].items()]
            if ast.dump(source.function) == ast.dump(before.function):
                answers.append((True, "nothing is rewritten"))
            elif wrong:
                answers.append((True, wrong[0]))
            elif scenes.Scene(fix).has_feature(before) > scenes.Scene(fix).has_feature(source):
                answers.append((True, "it has lost the feature that the fix is about"))
            else:
                answers.append((False, SAME if played[name]["seen"] == ours["seen"] else ""))
    return answers
