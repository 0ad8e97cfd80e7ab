"""Which Python environment, or which folder, to look at: chosen in the order of uv's pip interface."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from unhang.errors import UnhangError
from unhang.records import Environment

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

# The answer is found behind this, whatever a .pth file or a sitecustomize prints before or after it.
_MARK = "unhang-answer:"
_SAY = f"\nimport json, sys; sys.stdout.write('\\n{_MARK}' + json.dumps(answer) + '\\n')"
_TIMEOUT_S = 120  # a cold interpreter on a busy network file system, not a hung one
_HINT = "name a working one with --python PY, or look at a folder with --target DIR or --source DIR"


def choose(python: str | None, cwd: str, environ: Mapping[str, str]) -> Environment:
    """Choose the environment to look at.

    ``python`` is the value of ``--python``: the path of an interpreter or of an environment's folder, or a command on
    PATH (a bare name is a command first, as in a shell). Without it: ``$VIRTUAL_ENV``, ``$CONDA_PREFIX``, ``.venv`` in
    ``cwd`` or in the nearest folder above it (as uv does), our own interpreter. Raises UnhangError ``no-interpreter``
    where the first of these that is set has no interpreter (a broken one is never passed over in silence), and
    ``broken-interpreter`` where it does not run.
    """
    if python is not None:
        return _named(python, cwd, environ.get("PATH", os.defpath))
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if folder := environ.get(variable):
            hint = f"unset {variable}, or {_HINT}"
            return _of_folder(folder, cwd, f"${variable}", f"${variable} names it", hint)
    if folder := _dot_venv(os.path.abspath(cwd)):
        return _of_folder(folder, cwd, ".venv", "it comes first", f"repair or remove it, or {_HINT}")
    return _environment(sys.executable or None, sys.prefix, "own interpreter")


def for_target(folder: str) -> Environment:
    """Return the environment that is just ``folder``, a site-packages folder. Raises UnhangError ``not-a-folder``."""
    return _folder(folder, "--target")


def for_source(folder: str) -> Environment:
    """Return the environment that is just ``folder``, the top of a checkout. Raises UnhangError ``not-a-folder``."""
    return _folder(folder, "--source")


def ask(python: str, source: str, *arguments: str, cwd: str) -> Any:
    """Run ``source`` with ``python``, and return what it leaves in its global ``answer``, by way of JSON.

    The source finds ``arguments`` in ``sys.argv[1:]``. Nothing is written: no bytecode either. Raises UnhangError
    ``broken-interpreter``, with the last line of stderr, where no answer comes.
    """
    import json  # here, for the common run asks nobody else: both cost more than the whole search
    import subprocess

    command = [python, "-B", "-c", source + _SAY, *arguments]
    nothing = subprocess.DEVNULL
    try:
        run = subprocess.run(command, cwd=cwd, stdin=nothing, capture_output=True, timeout=_TIMEOUT_S, check=False)
    except OSError as error:
        raise _broken(python, error.strerror or str(error)) from None
    except subprocess.TimeoutExpired:
        raise _broken(python, f"no answer within {_TIMEOUT_S} s") from None
    for line in run.stdout.decode("utf-8", "replace").splitlines():
        if line.startswith(_MARK):
            return json.loads(line[len(_MARK) :])
    lines = run.stderr.decode("utf-8", "replace").strip().splitlines()
    raise _broken(python, lines[-1].strip() if lines else f"exit status {run.returncode}, and no output")


def _broken(python: str, why: str) -> UnhangError:
    hint = f"unhang asks interpreters of Python 3.8 or later; {_HINT}"
    return UnhangError("broken-interpreter", f"the interpreter does not answer: {why}", path=python, hint=hint)


def _environment(python: str | None, prefix: str, found_by: str) -> Environment:
    return Environment(python, prefix, found_by, os.path.join(prefix, "share", "unhang"))


def _folder(folder: str, found_by: str) -> Environment:
    folder = os.path.abspath(folder)
    if not os.path.isdir(folder):
        what = "is not a folder" if os.path.lexists(folder) else "does not exist"
        message = f"what {found_by} names {what}"
        raise UnhangError("not-a-folder", message, path=folder, hint=f"give {found_by} a folder")
    return Environment(None, folder, found_by, os.path.join(folder, ".unhang"))


def _named(python: str, cwd: str, search_path: str) -> Environment:
    """The environment that ``--python`` names."""
    path = os.path.abspath(os.path.join(cwd, python))
    if os.path.basename(python) == python:
        for folder in search_path.split(os.pathsep):
            command = os.path.abspath(os.path.join(cwd, folder, python))
            if os.path.isfile(command) and os.access(command, os.X_OK):
                path = command
                break
    if os.path.isdir(path):
        return _of_folder(path, cwd, "--python", "--python names it", _HINT)
    if not os.path.isfile(path):
        raise UnhangError("no-interpreter", f"there is no interpreter here{_link(path)}", path=path, hint=_HINT)
    if not os.access(path, os.X_OK):
        raise UnhangError("no-interpreter", "not an interpreter: the file is not executable", path=path, hint=_HINT)
    return _environment(path, _prefix(path, cwd), "--python")


def _of_folder(folder: str, cwd: str, found_by: str, why: str, hint: str) -> Environment:
    """The environment of the interpreter in ``folder``."""
    folder = os.path.abspath(os.path.join(cwd, folder))
    for name in ("python", "python3"):
        python = os.path.join(folder, "bin", name)
        if os.path.isfile(python) and os.access(python, os.X_OK):
            return _environment(python, _prefix(python, cwd), found_by)
    python = os.path.join(folder, "bin", "python")
    message = f"this environment has no interpreter that can be run{_link(python)}, yet {why}"
    raise UnhangError("no-interpreter", message, path=python, hint=hint)


def _link(path: str) -> str:
    """What to add about a dangling link, which a virtual environment has when its base Python has gone."""
    return f" (a link to {os.path.realpath(path)}, which is gone)" if os.path.islink(path) else ""


def _dot_venv(folder: str) -> str | None:
    while True:
        if os.path.isdir(os.path.join(folder, ".venv")):
            return os.path.join(folder, ".venv")
        if folder == os.path.dirname(folder):
            return None
        folder = os.path.dirname(folder)


def _prefix(python: str, cwd: str) -> str:
    """``sys.prefix`` of ``python``: from the files that tell it where there are any, for asking takes longer."""
    above = os.path.dirname(os.path.dirname(python))  # links not followed: so does the interpreter itself
    if os.path.isfile(os.path.join(above, "pyvenv.cfg")) or os.path.isdir(os.path.join(above, "conda-meta")):
        return above
    if os.path.realpath(python) == os.path.realpath(sys.executable):
        return sys.base_prefix
    return str(ask(python, "import sys; answer = sys.prefix", cwd=cwd))
