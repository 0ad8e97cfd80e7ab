"""Asks an interpreter that has torch to play the scene of a fix: see ``unhang.prove.scene``, which runs there."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, NamedTuple

from unhang.plugins import packs
from unhang.shapes import catalog
from unhang.shapes.catalog import Target

MARK = "unhang-scene:"
LIMITS = {"RLIMIT_CPU": 900, "RLIMIT_AS": 32 << 30, "RLIMIT_FSIZE": 1 << 26, "RLIMIT_CORE": 0}
"""Of each process: torch alone maps gigabytes, and the ranks meet through a file."""
_CHILD = """
import importlib.util, os, sys
folder = {folder!r}
spec = importlib.util.spec_from_file_location(
    "unhang_prove", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder])
sys.modules["unhang_prove"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["unhang_prove"])
from unhang_prove import scene
scene.main()
"""


class SceneError(Exception):
    """The interpreter gave no answer. The text says why."""


class NoTorchError(SceneError):
    """The interpreter has no torch."""


class Question(NamedTuple):
    """What is asked about one function: see ``unhang.prove.scene``."""

    fix: str
    path: Sequence[str]
    """What goes first on the import path: the folder that has the function's package."""
    module: str
    function: str
    texts: Mapping[str, str]
    features: Mapping[str, bool]
    watched: Sequence[str] = ()
    first: bool = False
    deadline_s: float = 2.0


def of(fix: str) -> Any:
    """Return the scene of a fix; None if the fix has none. Raises as ``proof``."""
    module = proof(fix)
    return module if hasattr(module, "GRID") else None


@packs.remembered
def proof(fix: str) -> Any:
    """Return the module of a fix in ``prove/fixes``, or in its pack, which imports no torch; None if it has none.

    Raises OSError, and whatever a pack's module raises.
    """
    if catalog.pack_of(fix).folder and os.path.lexists(path_of(fix)):
        packs.read(path_of(fix))  # the import system would read a file of any size
    room: Any = importlib.import_module("unhang.prove.fixes")
    room.__path__ = list(dict.fromkeys([*room.__path__, *packs.folders("prove")]))
    name = f"unhang.prove.fixes.{fix.replace('-', '_')}"
    return importlib.import_module(name) if find_spec(name) else None


def path_of(fix: str) -> str:
    """Return the file of the proof of a pack's fix, which may not be there."""
    above = os.path.join(catalog.pack_of(fix).folder, "prove", fix.replace("-", "_"))
    return os.path.join(above, "__init__.py") if os.path.isdir(above) else f"{above}.py"


def module_of(target: Target) -> str:
    """Return the name of the module that has a target."""
    return target.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def has_feature(fix: str, function: Any) -> bool:
    """Return whether a function, as a syntax tree, has what the fix is about."""
    return bool(getattr(of(fix), "has_feature", lambda _: True)(function))


def ask(python: str, question: Question, wall_s: float, through: Sequence[str] = ()) -> dict[str, Any]:
    """Return a ``Played`` for each text, as a mapping. ``through`` is a command that starts the interpreter.

    Raises SceneError: NoTorchError where the interpreter has no torch.
    """
    spec = find_spec("unhang.prove")
    folder = os.path.dirname(os.path.abspath((spec and spec.origin) or ""))
    command = [*through, python, "-I", "-B", "-W", "ignore", "-c", _CHILD.format(folder=folder)]
    more = {"packs": packs.folders("prove"), "limits": LIMITS, "is_cut_off": bool(through)}
    asked = {**question._asdict(), **more}
    with tempfile.TemporaryDirectory(prefix="unhang-") as home:
        environment = {"HOME": home, "TMPDIR": home, "PATH": os.defpath, "LC_ALL": "C.UTF-8", "OMP_NUM_THREADS": "1"}
        environment |= {"TORCHDYNAMO_DISABLE": "1"}  # to compile takes longer than to run
        environment |= {"CUDA_VISIBLE_DEVICES": "", "TORCHINDUCTOR_CACHE_DIR": home, "TRITON_CACHE_DIR": home}
        try:
            out, err, code = _run(command, json.dumps(asked).encode(), wall_s, home, environment)
        except subprocess.TimeoutExpired as error:
            raise SceneError(f"no answer within {wall_s:.0f} s") from error
        except OSError as error:
            raise SceneError(f"no child process: {error}") from error
    for line in reversed(out.decode("utf-8", "replace").splitlines()):
        if line.startswith(MARK):
            with suppress(ValueError, TypeError):
                answer: dict[str, Any] = json.loads(line.removeprefix(MARK))
                if "problem" in answer:
                    raise NoTorchError(answer["problem"])
                return answer
    raise SceneError(f"the child ended with {code}: {_told(err.decode('utf-8', 'replace'))}")


def _told(err: str) -> str:
    """Return the last traceback of what a child wrote, without what follows it; if there is none, the last lines."""
    tracebacks = re.findall(r"^Traceback .*\n(?:[ \t].*\n)*.*", err, re.MULTILINE)
    return "\n".join((tracebacks[-1] if tracebacks else err).splitlines()[-20:])


def _run(
    command: Sequence[str], given: bytes, wall_s: float, home: str, environment: Mapping[str, str]
) -> tuple[bytes, bytes, int]:
    """Return what a command says and its exit code. All that it has started ends with it."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, cwd=home, env=environment, start_new_session=True
    ) as child:
        try:
            out, err = child.communicate(given, wall_s)
        finally:
            with suppress(OSError):
                os.killpg(child.pid, signal.SIGKILL)
    return out, err, child.returncode
