"""The state of a shape, from what its own file shows when it is rewritten."""

from __future__ import annotations

from typing import NamedTuple

from unhang.codemods.base import AnchorError
from unhang.judge.decide import codemod
from unhang.rewrite.one_file import RewriteError, Step, rewrite
from unhang.shapes import shape as shapes
from unhang.shapes.catalog import Target


class State(NamedTuple):
    """The state of a shape, as the matrix records it."""

    state: str
    """``affected``, ``fixed``, ``not-affected``, or ``undecided``: a person must decide."""
    result: str | None
    """The shape of our rewrite, if the shape is affected."""
    names: tuple[str, ...]
    """The global names that the rewrite uses."""
    why: str
    """Why the state is undecided."""


def classify(data: bytes, target: Target) -> State:
    """Return the state of the target's function in this file.

    ``affected``: its rewrite compiles, satisfies its post-condition and is a no-op the second time. ``fixed``:
    upstream's post-condition holds already. ``not-affected``: the function does not contain the feature.
    """
    (function,) = shapes.find(shapes.parse(data), target.function)
    change = codemod(target)
    if change.holds_upstream(function):
        return State("fixed", None, (), "")
    if change.lacks_feature(function):
        return State("not-affected", None, (), "")
    try:
        change.edits(function)
        done = rewrite(data, [Step(target, None)])
    except (AnchorError, RewriteError) as error:
        return State("undecided", None, (), str(error))
    return State("affected", done.shapes[0][1], tuple(sorted(change.names(function))), "")
