"""Judges a function and its rewrite by the scene of the fix, in the tree of a release, as ``compare`` does others."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from unhang.compat.endstates.compare import FAILS, Row
from unhang.compat.endstates.endstate import Source
from unhang.judge import scene
from unhang.judge.scene import SceneError
from unhang.shapes import catalog
from unhang.shapes.branches import branches

__all__ = ["Scene", "SceneError", "of", "played", "row", "run"]

WALL_S = 1500
BEFORE, AFTER = "before", "after"


class Scene(NamedTuple):
    """The scene of a fix, where the sweep asks for an end state."""

    fix: str

    def has_feature(self, source: Source) -> bool:
        """Return whether the function has the feature that the fix is about."""
        return scene.has_feature(self.fix, source.function)


def of(fix: str, function: str) -> Scene | None:
    """Return the scene of a fix, if it has one and is about this function."""
    if scene.of(fix) is None or fix not in catalog.fixes():
        return None
    return Scene(fix) if function in {it.function for it in catalog.fix(fix).functions} else None


def run(fix: str, before: Source, after: Source | None, through: Sequence[str] = ()) -> Row:
    """Play the scene for a function and its rewrite. Raises SceneError."""
    texts = {BEFORE: before, **({AFTER: after} if after else {})}
    answer = played(fix, before, texts, [*texts], through=through)
    return row(fix, before, after, answer)


def played(
    fix: str,
    before: Source,
    texts: Mapping[str, Source],
    watched: Sequence[str] = (),
    first: bool = False,
    through: Sequence[str] = (),
) -> dict[str, Any]:
    """Play the scene for texts of one function, in the release that is closest to the untouched one."""
    from unhang.compat.sweep import trees  # only a checkout has it

    target, folders = trees.closest(fix, before)
    module = target.file.removesuffix(".py").replace("/", ".")
    features = {name: scene.has_feature(fix, text.function) for name, text in texts.items()}
    question = scene.Question(
        fix, [*map(str, folders)], module, before.name, {name: it.text for name, it in texts.items()}, features,
        watched, first,
    )  # fmt: skip
    return scene.ask(sys.executable, question, WALL_S, through)


def row(fix: str, before: Source, after: Source | None, answer: Mapping[str, Any]) -> Row:
    """Return the row of a shape from what was played. Pure."""
    grid = {case.name: case for case in scene.of(fix).GRID}
    first, then = answer[BEFORE], answer[AFTER if after else BEFORE]
    wrong, left = first["wrong"], then["wrong"]
    is_target = before.name in {target.function for target in catalog.fix(fix).targets}
    problems = {it: f"a new branch: {it}" for it in dict.fromkeys([*first["open"], *then["open"]])}
    if after and scene.has_feature(fix, before.function) and not scene.has_feature(fix, after.function):
        problems["feature"] = "the rewrite has lost the feature that the fix is about"
    for name, why in left.items():
        if name not in wrong:
            problems.setdefault("worse", f"worse with {name}: {why}")
        elif after:
            problems.setdefault("not cured", f"not cured with {name}: {why}")
        elif (is_target or grid[name].is_control) and not grid[name].options.get("beyond"):
            problems.setdefault(FAILS, f"{FAILS} {name}: {why}")
    cured, worse = len(wrong.keys() - left.keys()), len(left.keys() - wrong.keys())
    if after and not cured:
        problems["nothing"] = "nothing is cured"
    failed = len(left) - worse
    passed = first["ran"] - cured - failed - worse
    digest = hashlib.sha256("\n".join(sorted(wrong.keys() & left.keys())).encode()).hexdigest()[:16]
    found = branches(before.function)
    return Row(found, first["ran"], passed, cured, failed, worse, [*problems.values()], digest if failed else "")
