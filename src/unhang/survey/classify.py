"""The state of a shape, from what its function does, untouched and rewritten."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from unhang.judge import scene
from unhang.judge.decide import NO_REWRITE, REPAIRED, RIGHT, WRONG, codemod
from unhang.judge.rows import FAILS, Row, Source
from unhang.rewrite.one_file import RewriteError, Step, rewrite
from unhang.shapes import catalog
from unhang.shapes.catalog import Target


class State(NamedTuple):
    """The state of a shape, as the matrix records it."""

    state: str
    """``affected``, ``no-rewrite``, ``fixed``, ``not-affected``; of a function that targets depend on, ``right``,
    ``repaired`` or ``wrong``; or ``undecided``: a person must decide."""
    result: str | None
    """The shape of our rewrite, if the rewrite works."""
    names: tuple[str, ...]
    """The global names that the rewrite uses."""
    why: str
    """Why the state is undecided."""
    row: Row | None = None
    """What the scene shows, if the fix has one."""


Run = Callable[[str, Source, Source | None], Row]
"""Compares a function of a fix with its rewrite, as ``rows.run`` does in some place."""


def classify(data: bytes, target: Target, run: Run) -> State:
    """Return the state of the target's function in this file. Raises as ``run`` does.

    ``affected``: the rewrite cures something, and no setting becomes worse. ``fixed``: the untouched function passes
    every setting. ``not-affected``: it does so without the feature that the fix is about. ``no-rewrite``: it fails, the
    codemod refuses it, and the manifest says what else to do.

    A function that targets depend on is ``wrong`` if it fails somewhere; else it is ``repaired``, or, without the
    feature, ``right``. A target is run beside a wrong one.
    """
    if scene.of(target.fix) is None:
        return State("undecided", None, (), f"{target.fix} has no scene that could show its state")
    before, after = Source(data.decode(), target.function), None
    has_feature = scene.has_feature(target.fix, before.function)
    result, names, why = None, frozenset[str](), ""
    if target not in catalog.fix(target.fix).targets:
        row = run(target.fix, before, None)
        right = REPAIRED if has_feature else RIGHT
        state = "undecided" if row.problems else WRONG if row.failed else right
        return State(state, None, (), "; ".join(row.problems), row)
    try:
        done = rewrite(data, [Step(target, None)])
        after, result = Source(done.data.decode(), target.function), done.shapes[0][1]
        names = codemod(target).names(before.function)
    except RewriteError as error:
        why = f"{error}; "
    row = run(target.fix, before, after)
    if after and not row.cured and not row.failed:  # nothing is wrong with it
        after, result, names = None, None, frozenset()
        row = run(target.fix, before, None)
    if not after and target.workaround and row.problems and all(map(_is_a_wrong_end, row.problems)):
        return State(NO_REWRITE, None, (), "", row)
    if row.problems:
        return State("undecided", result, tuple(sorted(names)), why + "; ".join(row.problems), row)
    if after:
        return State("affected", result, tuple(sorted(names)), "", row)
    return State("fixed" if has_feature else "not-affected", None, (), "", row)


def _is_a_wrong_end(problem: str) -> bool:
    """Return whether a problem is what the function does; one that raises may only be unlike what the scene is for."""
    return problem.startswith(FAILS) and not any(it in problem for it in (": raises ", ": crashed: "))
