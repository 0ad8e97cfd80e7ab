"""Runs a function of an unknown shape, and its rewrite, in the settings of its fix: in a child, when asked."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import decode_source, find_spec
from typing import Any, NamedTuple

from unhang.judge import scene
from unhang.judge.decide import near
from unhang.judge.findings import Finding
from unhang.judge.nearest import ADDED, CHANGED, MISSING, MOVED, Nearest
from unhang.judge.observe import Observation
from unhang.plugins import packs
from unhang.shapes import catalog, shape
from unhang.shapes.catalog import Target

WALL_S, EACH_S = 300, 20
"""For all settings, and for one of them."""
SCENE_S = 900
"""For a scene: torch alone takes seconds to import."""
DEFECT, NO_DEFECT, NOT_RUN = "defect", "no-defect", "not-run"
_CHILD = """
import sys
sys.path[:] = {path!r}
import unhang.compat
unhang.compat.__path__ = {compat!r}
import unhang.compat.endstates
unhang.compat.endstates.__path__ += {endstates!r}
from unhang.compat.endstates import cage
cage.child({answers})
"""


class Shown(NamedTuple):
    """What the scene of a fix, or its end state, shows of a function."""

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
        rewritten = f", and {words[self.after]} of the rewritten one" if self.after != NOT_RUN else ""
        return f"a run shows {words[self.shows]} of {function}{rewritten}, in {self.settings} settings: {self.why}"


def run(finding: Finding, rewritten: bytes | None, python: str) -> Shown:
    """Run the function of a finding, and the same one in the ``rewritten`` bytes of its file; None if nothing fits.

    A fix with a scene needs an interpreter with torch: ``python``, which imports the function's package. For any other
    nothing of the environment is imported. The child ends whatever the function does.
    """
    if scene.of(finding.target.fix):
        return _played(finding, rewritten, python)
    target, other, beside = finding.target, finding.target.depends_on, None
    if finding.beside is not None and other is not None and finding.depends is not None:
        beside = other.function, _text(finding.depends), _unlike(_close(other, finding.depends))
    close = finding.verdict.nearest or _close(target, finding.seen)
    question = {
        "fix": target.fix,
        "name": target.function,
        "before": _text(finding.seen),
        "after": None if rewritten is None else decode_source(rewritten),
        "unlike": ((),) if finding.known else _unlike(close),
        "record": _record(target, close.shape if close else finding.seen.shape),
        "beside": beside,
        "each_s": EACH_S,
    }
    try:
        return _answer(json.dumps({**question, "nonce": (nonce := secrets.token_hex(16))}).encode(), nonce)
    except OSError as error:  # no temporary folder, no process
        return _not_run(f"no child process: {error}")


def _played(finding: Finding, rewritten: bytes | None, python: str) -> Shown:
    """Play the scene of the fix in the environment itself."""
    target, texts = finding.target, {"before": _text(finding.seen)}
    if rewritten is not None:
        texts["after"] = decode_source(rewritten)
    module, features = target.file.removesuffix(".py").replace("/", "."), {}
    for name, text in texts.items():
        (function,) = shape.find(shape.parse(text.encode()), target.function)
        features[name] = scene.has_feature(target.fix, function)
    question = scene.Question(
        target.fix, [finding.installation.root], module, target.function, texts, features, [*texts]
    )
    try:
        answer = scene.ask(python, question, SCENE_S)
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
    return Shown(shows, after, answer["before"]["ran"], f"{why}; rewritten: {reason}")


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


def _close(target: Target, seen: Observation) -> Nearest | None:
    """Return the known shape that is closest to an unknown one."""
    table = catalog.shape_table()
    if seen.data is None or (target.fix, target.function, seen.shape) in table.shapes:
        return None
    return near(target, seen.data, table, catalog.releases_of(target.fix, target.upstream))


def _unlike(close: Nearest | None) -> tuple[Sequence[int] | None, ...]:
    """Return the lines that differ from the closest known shape, as ``trial.Unlike``."""
    if close is None:
        return (None,)
    lines = ([it.line for it in close.differs if it.how == how] for how in (CHANGED, ADDED, MOVED, MISSING))
    added = {it.kind for it in close.differs if it.how == ADDED}
    gone = [it.line for it in close.differs if it.how == MISSING and it.kind not in ("else", "finally", *added)]
    return (*lines, gone)


def _record(target: Target, shape: str | None) -> tuple[int, int, str, bool] | None:
    """Return what is on record of a known shape's end state: the settings, in how many it fails, the feature."""
    shapes = catalog.shape_table().shapes
    known = shapes.get((target.fix, target.function, shape or ""))
    for key, entry in catalog.facts(target.fix).get("shapes", {}).items():
        function, digest = key.split(" ")
        if known is not None and "endstate" in entry and function == target.function:
            if shape in (digest, entry.get("result")):
                row, feature = entry["endstate"], known.state != "not-affected"
                return row["configurations"], row["failed"], row.get("failing", ""), feature
    return None


def _text(seen: Observation) -> str:
    """Return the text of an observed file; its function was parsed, so there is one."""
    return decode_source(seen.data or b"")


def _answer(question: bytes, nonce: str) -> Shown:
    """Ask a child process. It has limits, and must not keep this one waiting."""
    spec = find_spec("unhang.compat")
    if not sys.executable or not hasattr(os, "killpg"):
        return _not_run("this system has no such child process")
    with tempfile.TemporaryDirectory(prefix="unhang-") as home, tempfile.TemporaryFile() as answers:
        code = _CHILD.format(
            path=[path for path in sys.path if path],
            compat=[*((spec and spec.submodule_search_locations) or ())],
            endstates=packs.folders("compat", "endstates"),
            answers=answers.fileno(),
        )
        environment = {"HOME": home, "TMPDIR": home, "PATH": os.defpath, "LC_ALL": "C.UTF-8"}
        child = subprocess.Popen(
            [sys.executable, "-I", "-B", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, cwd=home, env=environment, pass_fds=[answers.fileno()], start_new_session=True,
        )  # fmt: skip
        try:
            child.communicate(question, WALL_S)
        except subprocess.TimeoutExpired:
            return _not_run(f"it does not end within {WALL_S} s")
        finally:
            with suppress(OSError):  # all that it has started, too
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        answers.seek(0)
        answer = answers.read(1 << 20).decode("utf-8", "replace")
    if not answer:
        return _not_run(_ended(child.returncode))
    mark, _, text = answer.partition("{")
    with suppress(ValueError, TypeError):
        shown = Shown(**json.loads("{" + text))
        if mark == nonce:
            return shown
    return _not_run("it wrote where only the answer belongs")


def _ended(code: int) -> str:
    if code >= 0:
        return f"it ended the process with {code}"
    if code == -signal.SIGALRM:
        return f"it does not return within {EACH_S} s"
    name = signal.Signals(-code).name if -code in {*signal.Signals} else f"signal {-code}"
    return f"its process was ended by {name}: it takes too long, needs too much memory, or kills it"


def _not_run(why: str) -> Shown:
    return Shown(NOT_RUN, NOT_RUN, 0, why)
