"""The state of a shape, by evidence: what its own file shows when it is rewritten, or a person's decision. No guess."""

from __future__ import annotations

from typing import NamedTuple

from unhang.codemods.base import AnchorError
from unhang.judge.decide import codemod
from unhang.rewrite.one_file import RewriteError, Step, rewrite
from unhang.shapes import shape as shapes
from unhang.shapes.catalog import Target


class State(NamedTuple):
    """What the matrix will say of a shape."""

    state: str
    """``affected``, ``fixed``, ``not-affected``, or ``undecided``: a person must decide."""
    result: str | None
    names: tuple[str, ...]
    why: str


def classify(data: bytes, target: Target) -> State:
    """The state of the target's function in this file.

    ``affected`` only if its rewrite compiles, holds its post-condition and is a no-op the second time; ``fixed`` only
    if upstream's post-condition holds as it is; ``not-affected`` only if the feature is not in the function at all.
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
