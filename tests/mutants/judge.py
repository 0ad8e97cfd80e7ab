"""Judges mutants by the scene of their fix: in every setting beside our rewrite."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from unhang.compat.sweep import trees
from unhang.judge import rows, scene
from unhang.judge.rows import Source

SAME = "every rank returns the same as with our rewrite, in every setting"
"""Why a mutant is equivalent."""
BATCH = 96
"""How many mutants one child process plays."""


def judged(fix: str, before: Source, rewritten: Source, mutants: Sequence[str]) -> list[tuple[bool, str]]:
    """Return for each mutant whether it is caught, and why it is or is not."""
    answers: list[tuple[bool, str]] = []
    place, has_feature = trees.closest(fix, before), scene.has_feature(fix, before.function)
    for start in range(0, len(mutants), BATCH):
        texts = {str(number): Source(text, before.name) for number, text in enumerate(mutants[start : start + BATCH])}
        played = rows.played(fix, {"ours": rewritten, **texts}, place, first=True)
        ours = played["ours"]
        assert not ours["wrong"], ours
        for name, source in texts.items():
            wrong = [f"{setting}: {why}" for setting, why in played[name]["wrong"].items()]
            if ast.dump(source.function) == ast.dump(before.function):
                answers.append((True, "nothing is rewritten"))
            elif wrong:
                answers.append((True, wrong[0]))
            elif has_feature > scene.has_feature(fix, source.function):
                answers.append((True, "it has lost the feature that the fix is about"))
            else:
                answers.append((False, SAME if played[name]["seen"] == ours["seen"] else ""))
    return answers
