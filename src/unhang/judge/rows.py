"""What the scene of a fix shows of a function and of its rewrite: in how many settings each of them is right."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from unhang.judge import scene
from unhang.shapes import catalog, shape
from unhang.shapes.branches import branches
from unhang.shapes.catalog import Target
from unhang.shapes.shape import Function

WALL_S = 1500
BEFORE, AFTER = "before", "after"
FAILS = "fails with"
"""How the problem begins of a function without a rewrite that has the defect."""

Place = tuple[Target, Sequence[Path]]
"""The target whose function is played, and the folders that have its package and what goes with it."""


class Source(NamedTuple):
    """A whole source file that has a function."""

    text: str
    name: str
    """The function's qualified name."""

    @property
    def function(self) -> Function:
        return _function(self)


class Row(NamedTuple):
    """What is on record of one shape."""

    branches: list[str]
    configurations: int
    """In how many settings the function ran."""
    passed: int
    """How many pass before and after."""
    cured: int
    """How many pass only after."""
    failed: int
    """How many pass neither before nor after."""
    worse: int
    """How many pass only before."""
    problems: list[str]
    """One example of each kind of problem. There must be none."""
    failing: str = ""
    """A digest of the names of the settings that fail before and after; empty if none does."""


def run(fix: str, before: Source, after: Source | None, place: Place) -> Row:
    """Play the scene for a function and its rewrite, which is None if the fix has none. Raises SceneError."""
    texts = {BEFORE: before, **({AFTER: after} if after else {})}
    return row(fix, before, after, played(fix, texts, place, [*texts]))


def played(
    fix: str, texts: Mapping[str, Source], place: Place, watched: Sequence[str] = (), first: bool = False
) -> dict[str, Any]:
    """Return a ``Played`` for each text of one function, as a mapping. Raises SceneError.

    The conditions of the ``watched`` texts are followed; with ``first``, each stops at the first setting that fails.
    """
    target, folders = place
    features = {name: scene.has_feature(fix, text.function) for name, text in texts.items()}
    given = {name: text.text for name, text in texts.items()}
    question = scene.Question(
        fix, [*map(str, folders)], scene.module_of(target), target.function, given, features, watched, first
    )
    return scene.ask(sys.executable, question, WALL_S, without_network())


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


@cache
def without_network() -> list[str]:
    """Return the command that starts another one without a network.

    If this system permits none, say so on stderr, and return an empty one.
    """
    for options in ["--net"], ["--net", "--map-root-user"]:
        command = ["unshare", *options]
        if shutil.which("unshare") and subprocess.run([*command, "true"], capture_output=True).returncode == 0:
            return command
    print("this system permits no `unshare --net`: upstream's code has a network", file=sys.stderr)
    return []


@cache
def _function(source: Source) -> Function:
    (found,) = shape.find(shape.parse(source.text), source.name)
    return found
