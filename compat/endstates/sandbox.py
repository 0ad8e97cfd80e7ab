"""Runs upstream's code in a child process: without network, tokens and home, and with limits on time and memory."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING

import unhang.compat
from unhang.compat.endstates.compare import Row, compare
from unhang.compat.endstates.endstate import EndState, Source

if TYPE_CHECKING:
    from unhang.compat.endstates.scenes import Scene

CPU_S, WALL_S, MEMORY = 300, 900, 2 << 30
_CHILD = """
import sys
sys.path[:] = {path!r}
import unhang.compat
unhang.compat.__path__ = {compat!r}  # the wheel lacks the end states
import unhang.compat.endstates
unhang.compat.endstates.__path__ = {endstates!r}  # those of packs, too
from unhang.compat.endstates import sandbox
sandbox.child()
"""


class SandboxError(Exception):
    """The child process did not answer."""


def look_in(folders: Iterable[str]) -> None:
    """Let the end states of these folders of packs be found, too."""
    package = sys.modules[__package__ or ""]
    package.__path__ = list(dict.fromkeys([*package.__path__, *folders]))


def judge_of(fix: str, function: str) -> EndState | Scene | None:
    """Return the scene of a target, or its end state, or None if the fix has neither yet."""
    from unhang.compat.endstates import scenes  # the child needs none

    return scenes.of(fix, function) or end_state(fix, function)


def end_state(fix: str, function: str) -> EndState | None:
    """Return the end state of a target, or None if the fix has none."""
    name = f"{__package__}.{fix.replace('-', '_')}"
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return None
    found: EndState | None = module.END_STATES.get(function)
    return found


def _places() -> list[str]:
    return list(sys.modules[__package__ or ""].__path__)


def run(fix: str, before: Source, after: Source | None, as_written: bool = False) -> Row:
    """Compare a function with its rewrite in a child process. Raises SandboxError."""
    from unhang.compat.endstates import scenes

    if scenes.of(fix, before.name):
        try:
            return scenes.run(fix, before, after, without_network())
        except scenes.SceneError as error:
            raise SandboxError(str(error)) from error
    code = _CHILD.format(path=sys.path, compat=list(unhang.compat.__path__), endstates=_places())
    command = [*without_network(), sys.executable, "-I", "-B", "-c", code]
    given = json.dumps({"fix": fix, "before": before, "after": after, "as_written": as_written})
    with tempfile.TemporaryDirectory(prefix="unhang-") as folder:
        environment = {"HOME": folder, "TMPDIR": folder, "PATH": os.defpath, "LC_ALL": "C.UTF-8"}
        try:
            done = subprocess.run(
                command, input=given, capture_output=True, text=True, cwd=folder, env=environment, timeout=WALL_S
            )
        except subprocess.TimeoutExpired as error:
            raise SandboxError(f"no answer within {WALL_S} s") from error
    if done.returncode != 0:
        raise SandboxError(f"the child ended with {done.returncode}: {done.stderr[-2000:]}")
    return Row(**json.loads(done.stdout))


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


def child() -> None:
    """Answer one question on stdin: the row of a function. Upstream's code starts after the limits are set."""
    import resource

    answers, given = os.dup(1), json.load(sys.stdin)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    before, after = (Source(*source) if source else None for source in (given["before"], given["after"]))
    assert before is not None
    endstate = end_state(given["fix"], before.name)
    assert endstate is not None
    for limit, value in (
        (resource.RLIMIT_CPU, CPU_S),
        (resource.RLIMIT_AS, MEMORY),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (value, value))
    row = compare(endstate, before, after, given["as_written"])
    os.write(answers, json.dumps(row._asdict()).encode())
