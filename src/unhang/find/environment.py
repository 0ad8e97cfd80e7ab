"""Which Python environment, or which folder, to search: chosen in the order of uv's pip interface."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from unhang import gate
from unhang.errors import UnhangError
from unhang.records import Environment

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any, NoReturn

    from unhang.records import Request

# The answer is found behind this, whatever a .pth file or a sitecustomize prints before or after it.
_MARK = "unhang-answer:"
_SAY = f"\nimport json, sys; sys.stdout.write('\\n{_MARK}' + json.dumps(answer) + '\\n')"
_TIMEOUT_S = 120  # long enough for a cold interpreter on a busy network file system
_TOO_MUCH = 16 * 1024 * 1024  # bytes
_HINT = "name a working one with --python PY, or look at a folder with --target DIR or --source DIR"


def named(request: Request, cwd: str, environ: Mapping[str, str]) -> Environment:
    """Return the environment that a request names.

    Raises UnhangError ``not-a-folder`` for ``--target`` and ``--source``, and as ``choose``.
    """
    if request.target:
        return for_target(request.target)
    if request.source:
        return for_source(request.source)
    return choose(request.python, cwd, environ, request.evidence)


def choose(python: str | None, cwd: str, environ: Mapping[str, str], evidence: Collection[str] = ()) -> Environment:
    """Choose the environment to search.

    ``python`` is the value of ``--python``: the path of an interpreter or of an environment's folder, or a command on
    PATH (a bare name is a command first, as in a shell). Without it, the first of these is used: ``$VIRTUAL_ENV``,
    ``$CONDA_PREFIX``, ``.venv`` in ``cwd`` or the nearest folder above it (as in uv), our own interpreter. A ``.venv``
    is not taken from the folders of ``evidence``. Raises UnhangError ``no-interpreter`` if the first one has no
    interpreter (a broken one is not skipped), ``broken-interpreter`` if it does not run, and as ``program``.
    """
    if python is not None:
        return _named(python, cwd, environ.get("PATH", os.defpath))
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if folder := environ.get(variable):
            hint = f"unset {variable}, or {_HINT}"
            return _of_folder(folder, cwd, f"${variable}", f"${variable} names it", hint)
    tops = _folders(evidence)
    if folder := _dot_venv(os.path.abspath(cwd), tops):
        place = _of_folder(folder, cwd, ".venv", "it comes first", f"repair or remove it, or {_HINT}")
        above = os.path.dirname(folder)
        if any(is_inside(top, above) for top in tops):  # it may have come with them
            return place._replace(objection=f"the evidence is in {above} too")
        return place
    return Environment(sys.executable or None, sys.prefix, "own interpreter")


def left_out(cwd: str, evidence: Collection[str]) -> str | None:
    """Return the ``.venv`` that ``choose`` passes over, if there is one in the folders of the evidence."""
    first = _dot_venv(os.path.abspath(cwd), ())
    return first if first != _dot_venv(os.path.abspath(cwd), _folders(evidence)) else None


def _folders(evidence: Collection[str]) -> list[str]:
    return [path if os.path.isdir(path) else os.path.dirname(path) for path in map(os.path.abspath, evidence)]


def program(environment: Environment, why: str) -> str:
    """Return the interpreter of an environment, to be run because of ``why``.

    Raises UnhangError ``untrusted-environment`` if nobody has named it, and somebody else could have put it there.
    """
    assert environment.python is not None
    if environment.objection:
        from shlex import quote  # only here: it is slow to import

        message = f"its interpreter would have to be run ({why}), and nobody has named it: {environment.objection}"
        hint = f"if you trust it, name it with --python {quote(environment.python)}"
        raise UnhangError("untrusted-environment", message, path=environment.python, hint=hint)
    return environment.python


def is_own(python: str | None, prefix: str) -> bool:
    """Return whether an interpreter is the one that runs this: file and prefix, because each alone can be shared."""
    theirs = os.path.realpath(python or ""), os.path.realpath(prefix)
    return theirs == (os.path.realpath(sys.executable), os.path.realpath(sys.prefix))


def for_target(folder: str) -> Environment:
    """Return the environment that is just ``folder``, a site-packages folder. Raises UnhangError ``not-a-folder``."""
    return _folder(folder, "--target")


def for_source(folder: str) -> Environment:
    """Return the environment that is just ``folder``, the top of a checkout. Raises UnhangError ``not-a-folder``."""
    return _folder(folder, "--source")


def ask(python: str, source: str, *arguments: str, cwd: str, form: object) -> Any:
    """Run ``source`` with ``python`` and return what it assigns to its global ``answer``, passed as JSON.

    The source finds ``arguments`` in ``sys.argv[1:]``. Nothing is written, not even bytecode. Raises UnhangError
    ``broken-interpreter`` if no answer comes, with the last line of stderr, or if it has not this ``form``: ``str`` or
    None, a list of one form for all of its items, a tuple of the form of each, a dictionary by keys, a set of choices.
    """
    import json  # here: the common run asks no other interpreter, and both cost more than the whole search

    # -I: nothing of the working directory, of PYTHONPATH or of the user site is run
    command = [python, "-I", "-B", "-c", source + _SAY, *arguments]
    status, out, err = _run(command, python, cwd)
    for line in out.splitlines():
        if line.startswith(_MARK):
            try:
                answer = json.loads(line[len(_MARK) :])
            except (ValueError, RecursionError):
                answer = ...  # which has no form
            if not _fits(answer, form):
                raise _broken(python, "its answer is not one that Python gives")
            return answer
    lines = err.strip().splitlines()
    raise _broken(python, lines[-1].strip() if lines else f"exit status {status}, and no output")


def _run(command: list[str], python: str, cwd: str) -> tuple[int, str, str]:
    """Return exit status, stdout and stderr. Ends the process if it takes too long, or writes too much."""
    import selectors
    import subprocess
    import time

    deadline = time.monotonic() + _TIMEOUT_S
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, bufsize=0)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise _broken(python, getattr(error, "strerror", None) or str(error)) from None
    written: dict[Any, bytearray] = {process.stdout: bytearray(), process.stderr: bytearray()}
    with process, selectors.DefaultSelector() as selector:
        try:
            for stream in written:
                selector.register(stream, selectors.EVENT_READ)
            while selector.get_map():
                for key, _ in selector.select(max(deadline - time.monotonic(), 0)) or _late(python):
                    if part := os.read(key.fd, 65536):
                        written[key.fileobj] += part
                    else:
                        selector.unregister(key.fileobj)
                if sum(map(len, written.values())) > _TOO_MUCH:
                    raise _broken(python, f"it writes more than {_TOO_MUCH >> 20} MiB")
            status = process.wait(max(deadline - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            _late(python)
        finally:
            process.kill()
    out, err = (bytes(text).decode("utf-8", "replace") for text in written.values())
    return status, out, err


def _late(python: str) -> NoReturn:
    raise _broken(python, f"no answer within {_TIMEOUT_S} s")


def _fits(value: object, form: object) -> bool:
    """Return whether a value has a form of ``ask``."""
    if isinstance(form, dict):
        return isinstance(value, dict) and {*value} == {*form} and all(_fits(value[key], form[key]) for key in form)
    if isinstance(form, set):
        return any(_fits(value, choice) for choice in form)
    if isinstance(form, list):
        return isinstance(value, list) and all(_fits(item, form[0]) for item in value)
    if isinstance(form, tuple):
        return isinstance(value, list) and len(value) == len(form) and all(map(_fits, value, form))
    return value is None if form is None else isinstance(value, str) and _is_of_the_system(value)


def _is_of_the_system(text: str) -> bool:
    """Return whether a text can be a path, as all that an interpreter is asked for can."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:  # a lone surrogate, which JSON can express
        return False


def _broken(python: str, why: str) -> UnhangError:
    hint = f"unhang works with interpreters of Python 3.8 or later; {_HINT}"
    return UnhangError(
        "broken-interpreter", f"the interpreter does not answer: {gate.line(why)}", path=python, hint=hint
    )


def _folder(folder: str, found_by: str) -> Environment:
    folder = os.path.abspath(folder)
    try:
        os.stat(os.path.join(folder, "."))  # with the dot, the folder must let us into it
    except FileNotFoundError:
        raise _not_a_folder(folder, found_by, "does not exist", f"give {found_by} a folder") from None
    except NotADirectoryError:
        hint = f"give {found_by} a folder"
        if folder.endswith(".whl"):
            from shlex import quote  # only here: it is slow to import

            hint = f"to patch a wheel: unhang wheel {quote(folder)} -o DIR"
        raise _not_a_folder(folder, found_by, "is not a folder", hint) from None
    except OSError as error:
        message = f"the folder that {found_by} names cannot be read: {error.strerror}"
        hint = "run this as a user who may read it"
        raise UnhangError("unreadable", message, path=folder, hint=hint) from None
    return Environment(None, folder, found_by)


def _not_a_folder(folder: str, found_by: str, what: str, hint: str) -> UnhangError:
    return UnhangError("not-a-folder", f"what {found_by} names {what}", path=folder, hint=hint)


def _named(python: str, cwd: str, search_path: str) -> Environment:
    """Return the environment that ``--python`` names."""
    path = os.path.abspath(os.path.join(cwd, python))
    if os.path.isfile(os.path.join(path, "pyvenv.cfg")):  # before PATH, which has a program that is called env
        return _of_folder(path, cwd, "--python", "--python names it", _HINT)
    if os.path.basename(python) == python:
        for folder in search_path.split(os.pathsep):
            command = os.path.abspath(os.path.join(cwd, folder, python))
            if _is_executable(command):
                return _of(command, cwd, "--python")
    if os.path.isdir(path):
        return _of_folder(path, cwd, "--python", "--python names it", _HINT)
    if not os.path.isfile(path):
        raise UnhangError("no-interpreter", f"there is no interpreter here{_link(path)}", path=path, hint=_HINT)
    if not os.access(path, os.X_OK):
        raise UnhangError("no-interpreter", "not an interpreter: the file is not executable", path=path, hint=_HINT)
    return _of(path, cwd, "--python")


def _of_folder(folder: str, cwd: str, found_by: str, why: str, hint: str) -> Environment:
    """Return the environment of the interpreter in ``folder``."""
    folder = os.path.abspath(os.path.join(cwd, folder))
    for name in ("python", "python3"):
        python = os.path.join(folder, "bin", name)
        if _is_executable(python):
            return _of(python, cwd, found_by)
    python = os.path.join(folder, "bin", "python")
    message = f"this environment has no interpreter that can be run{_link(python)}, but {why}"
    raise UnhangError("no-interpreter", message, path=python, hint=hint)


def _is_executable(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def _link(path: str) -> str:
    """Return what to add about a dangling link: a virtual environment has one when its base Python is gone."""
    return f" (a link to {os.path.realpath(path)}, which is gone)" if os.path.islink(path) else ""


def _dot_venv(folder: str, evidence: Collection[str]) -> str | None:
    while True:
        venv = os.path.join(folder, ".venv")
        if os.path.isdir(venv) and not any(is_inside(place, top) for place in (folder, venv) for top in evidence):
            return venv
        if folder == os.path.dirname(folder):
            return None
        folder = os.path.dirname(folder)


def is_inside(folder: str, top: str) -> bool:
    """Return whether a folder is another one, or in it, whatever links lead there."""
    return os.path.join(os.path.realpath(folder), "").startswith(os.path.join(os.path.realpath(top), ""))


def _of(python: str, cwd: str, found_by: str) -> Environment:
    """Return the environment of an interpreter: read from its files where possible."""
    above = os.path.dirname(os.path.dirname(python))  # links not followed: so does the interpreter itself
    prefix = above
    if not os.path.isfile(os.path.join(above, "pyvenv.cfg")) and not os.path.isdir(os.path.join(above, "conda-meta")):
        prefix = sys.base_prefix if os.path.realpath(python) == os.path.realpath(sys.executable) else ""
    if found_by == "--python" or is_own(python, prefix):
        objection = ""
    else:
        from unhang.find import trust  # few runs ask

        objection = trust.objection(python, above, cwd if found_by == ".venv" else None)
    place = Environment(python, prefix, found_by, objection)
    return place if prefix else place._replace(prefix=_asked_prefix(place, cwd))


def _asked_prefix(environment: Environment, cwd: str) -> str:
    from unhang.find import reading  # most environments say it in a file

    assert environment.python is not None
    try:
        return reading.start(environment.python, ()).prefix
    except reading.MustAsk as error:
        python = program(environment, str(error))
        return str(ask(python, "import sys; answer = sys.prefix", cwd=cwd, form=str))
