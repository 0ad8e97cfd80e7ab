"""The state of a shape, from what its function does, untouched and rewritten."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from unhang.compat.endstates import sandbox
from unhang.compat.endstates.compare import FAILS, Row
from unhang.compat.endstates.endstate import Source
from unhang.judge.decide import NO_REWRITE, REPAIRED, RIGHT, WRONG, codemod
from unhang.plugins import packs
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
    """The end state, if the fix has one."""


Run = Callable[[str, Source, Source | None, bool], Row]
"""Compares a function of a fix with its rewrite, as ``sandbox.run`` does."""


def classify(data: bytes, target: Target, as_written: bool = False, run: Run = sandbox.run) -> State:
    """Return the state of the target's function in this file. Raises SandboxError if the function does not return.

    ``affected``: the rewrite cures something, and no configuration becomes worse. ``fixed``: the untouched function
    passes every configuration. ``not-affected``: it does so without the feature that the fix is about.
    ``no-rewrite``: it fails, the codemod refuses it, and the manifest says what else to do. ``as_written``: the file
    has a pull request as written.

    A function that targets depend on is ``wrong`` if it fails somewhere; else it is ``repaired``, or, without the
    feature, ``right``. A target is run beside a wrong one.
    """
    sandbox.look_in(packs.folders("compat", "endstates"))
    endstate = sandbox.judge_of(target.fix, target.function)
    if endstate is None:
        module = f"compat/endstates/{target.fix.replace('-', '_')}.py"
        return State("undecided", None, (), f"no end state: write {module}, or decide it in the manifest")
    before, after = Source(data.decode(), target.function), None
    result, names, why = None, frozenset[str](), ""
    if target not in catalog.fix(target.fix).targets:
        row = run(target.fix, before, None, False)
        right = REPAIRED if endstate.has_feature(before) else RIGHT
        state = "undecided" if row.problems else WRONG if row.failed else right
        return State(state, None, (), "; ".join(row.problems), row)
    try:
        done = rewrite(data, [Step(target, None)])
        after, result = Source(done.data.decode(), target.function), done.shapes[0][1]
        names = codemod(target).names(before.function)
    except RewriteError as error:
        why = f"{error}; "
    row = run(target.fix, before, after, as_written)
    if after and not row.cured and not row.failed:  # nothing is wrong with it
        after, result, names = None, None, frozenset()
        row = run(target.fix, before, None, False)
    if not after and target.workaround and row.problems and all(map(_is_a_wrong_end, row.problems)):
        return State(NO_REWRITE, None, (), "", row)
    if row.problems:
        others = f", and {len(row.problems) - 1} other problems" if row.problems[1:] else ""
        return State("undecided", result, tuple(sorted(names)), f"{why}{row.problems[0]}{others}", row)
    if after:
        return State("affected", result, tuple(sorted(names)), "", row)
    return State("fixed" if endstate.has_feature(before) else "not-affected", None, (), "", row)


def _is_a_wrong_end(problem: str) -> bool:
    """Return whether a problem is what the function does; one that raises may only be unlike the stand-ins."""
    return problem.startswith(FAILS) and not any(it in problem for it in (": raises ", ": crashed: "))
