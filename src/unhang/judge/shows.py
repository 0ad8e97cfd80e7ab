"""Plays a function of an unknown shape, and its rewrite, in the scene of its fix: in a child, when asked."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import decode_source
from typing import Any, NamedTuple

from unhang.judge import scene
from unhang.judge.findings import Finding
from unhang.shapes import shape

WALL_S = 900
"""For all settings of both: torch alone takes seconds to import."""
DEFECT, NO_DEFECT, NOT_RUN = "defect", "no-defect", "not-run"


class Shown(NamedTuple):
    """What the scene of a fix shows of a function."""

    shows: str
    """``defect``, ``no-defect`` or ``not-run``."""
    after: str
    """The same of the rewritten function."""
    settings: int
    """In how many settings the function ran."""
    why: str

    @property
    def is_right(self) -> bool:
        """Whether the rewrite was seen to cure the function."""
        return (self.shows, self.after) == (DEFECT, NO_DEFECT)

    def sentence(self, function: str) -> str:
        """Return the same for people."""
        words = {DEFECT: "a defect", NO_DEFECT: "no defect", NOT_RUN: "nothing"}
        rewritten = f", and {words[self.after]} with the fix" if self.after != NOT_RUN else ""
        return f"a run shows {words[self.shows]} of {function}{rewritten}, in {self.settings} settings: {self.why}"


def run(finding: Finding, rewritten: bytes | None, python: str) -> Shown:
    """Play the scene for the function of a finding, and for that of the ``rewritten`` bytes, if there are any.

    ``python`` imports the function's package, and needs torch. The child has limits, and ends whatever the function
    does.
    """
    if scene.of(finding.target.fix) is None:
        return _not_run(f"{finding.target.fix} has no scene that could show what it does")
    target, texts = finding.target, {"before": decode_source(finding.seen.data or b"")}
    if rewritten is not None:
        texts["after"] = decode_source(rewritten)
    features = {}
    for name, text in texts.items():
        (function,) = shape.find(shape.parse(text.encode()), target.function)
        features[name] = scene.has_feature(target.fix, function)
    question = scene.Question(
        target.fix, [finding.installation.root], scene.module_of(target), target.function, texts, features, [*texts]
    )
    try:
        answer = scene.ask(python, question, WALL_S)
    except scene.NoTorchError as error:
        return _not_run(
            f"no-torch: {python} says {error}; install torch there, or choose an environment that has it with --python"
        )
    except scene.SceneError as error:
        return _not_run(str(error))
    shows, why = _said(answer["before"], features["before"])
    if "after" not in texts:
        return Shown(shows, NOT_RUN, answer["before"]["ran"], why)
    after, reason = _said(answer["after"], features["after"])
    if (shows, after) == (NOT_RUN, NO_DEFECT):  # what holds for the one may hold for the other
        after, reason = NOT_RUN, why
    return Shown(shows, after, answer["before"]["ran"], f"{why}; with the fix: {reason}")


def _said(played: Mapping[str, Any], feature: bool) -> tuple[str, str]:
    """Return what a scene shows of one text, and why."""
    wrong = [f"{setting}: {why}" for setting, why in played["wrong"].items()]
    if seen := [why for why in wrong if ": crashed: " not in why]:
        return DEFECT, seen[0]
    if wrong:  # it may be that the scene is not made for this code
        return NOT_RUN, wrong[0]
    if played["open"]:
        return NOT_RUN, f"no setting decides both ways: {played['open'][0]}"
    if not feature:
        return NOT_RUN, "what the fix is about is not in it, or not in a form that the scene knows"
    return NO_DEFECT, f"nothing is wrong in {played['ran']} settings"


def _not_run(why: str) -> Shown:
    return Shown(NOT_RUN, NOT_RUN, 0, why)
