"""Judges mutants by the scene of their fix: in every setting beside our rewrite."""

from __future__ import annotations

import ast
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from unhang.compat.sweep import trees
from unhang.judge import rows, scene
from unhang.judge.rows import Source

SAME = "every rank returns the same as with our rewrite, in every setting"
"""Why a mutant is equivalent."""
BATCH = 96
"""How many texts one child process plays at most."""


def judged(
    fix: str, before: Source, rewritten: Source, mutants: Sequence[str], cores: Sequence[int] = ()
) -> list[tuple[bool, str]]:
    """Return for each mutant whether it is caught, and why it is or is not.

    One child process at a time plays on each of these processor cores; without any, on whichever are free.
    """
    sources = [rewritten, *(Source(text, before.name) for text in mutants)]
    beside = max(1, len(cores))
    count = max(min(beside, len(sources)), -(-len(sources) // BATCH))
    place = trees.closest(fix, before)

    def played(part: int) -> dict[str, Any]:
        texts = {str(number): sources[number] for number in range(part, len(sources), count)}
        return rows.played(fix, texts, place, first=True)

    free = [*cores]

    def stay() -> None:
        if free:  # ranks that talk to each other are faster on one core than on several that others use too
            os.sched_setaffinity(0, {free.pop()})  # of this thread and what it starts

    with ThreadPoolExecutor(beside, initializer=stay) as threads:
        found = [*threads.map(played, range(count))]
    ours, *shown = (found[number % count][str(number)] for number in range(len(sources)))
    assert not ours["wrong"], ours
    untouched, has_feature = ast.dump(before.function), scene.has_feature(fix, before.function)
    answers: list[tuple[bool, str]] = []
    for source, one in zip(sources[1:], shown):
        wrong = [f"{setting}: {why}" for setting, why in one["wrong"].items()]
        if ast.dump(source.function) == untouched:
            answers.append((True, "nothing is rewritten"))
        elif wrong:
            answers.append((True, wrong[0]))
        elif has_feature > scene.has_feature(fix, source.function):
            answers.append((True, "it has lost the feature that the fix is about"))
        else:
            answers.append((False, SAME if one["seen"] == ours["seen"] else ""))
    return answers
