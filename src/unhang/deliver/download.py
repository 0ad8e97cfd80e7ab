"""Downloads wheels with pip. Where pip is not installed, uv provides it."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

from unhang.errors import UnhangError
from unhang.tell import console, terminal

# Tried in this order if a release has no wheel for the running Python: the upstreams publish wheels for one of these.
_PYTHONS = ("3.12", "3.10", "3.11", "3.13", "3.14")
# pip's words for: no wheel has matching tags; a wheel matches, but its Requires-Python does not.
_UNAVAILABLE = ("No matching distribution found", "requires a different Python")
# If an index cannot be reached, pip also says that it found no matching distribution.
_UNREACHABLE = "connection broken by"


class Options(NamedTuple):
    """How to download."""

    python_version: str | None
    """Take wheels for this Python only. None: for the running Python, or else for one that the release supports."""
    pip_options: tuple[str, ...]
    """Passed to pip unchanged: index, platform ..."""


class Download(NamedTuple):
    """The wheels of one request."""

    paths: tuple[str, ...]
    note: str | None
    """Says that they are for another Python than the running one."""


def fetch(request: Sequence[str], options: Options, folder: str) -> Download:
    """Download the wheels of one request (a requirement, or ``-r FILE``) into an empty folder.

    Raises UnhangError ``no-pip``, ``no-such-wheel``, ``download-failed``.
    """
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    others = [python for python in _PYTHONS if python != running]
    pythons = [options.python_version] if options.python_version else [None, *others]
    first_error = ""
    for python in pythons:
        command = [*_pip(), "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", folder]
        command += options.pip_options
        command += ["--python-version", python] if python else []
        done = subprocess.run(
            [*command, *request], stdin=subprocess.DEVNULL, stdout=sys.stderr, stderr=subprocess.PIPE, check=False
        )
        if done.returncode == 0:
            paths = sorted(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".whl"))
            note = None
            if python and not options.python_version:
                note = f"{' '.join(request)} has no wheel for Python {running}; this is its wheel for Python {python}"
            return Download(tuple(paths), note)
        error = done.stderr.decode("utf-8", "replace").strip()
        if _UNREACHABLE in error or not any(reason in error for reason in _UNAVAILABLE):
            raise _failed("download-failed", request, error)
        first_error = first_error or error
    raise _failed("no-such-wheel", request, first_error)


def _failed(code: str, request: Sequence[str], error: str) -> UnhangError:
    lines = [line.strip() for line in error.splitlines() if line.strip()] or ["pip gave no reason"]
    last = max((number for number, line in enumerate(lines) if line.startswith("ERROR:")), default=-1)
    if lines[last] == "ERROR: Exception:":  # a traceback of pip's follows
        last = -1
    reason = " ".join(lines[last:]).removeprefix("ERROR: ")  # the last error may take several lines
    hint = "check that the version exists; --platform and --python-version choose a wheel"
    if _UNREACHABLE in error:
        why = re.findall(r"\[Errno -?\d+\] ([^'\"()]+)", error) or ["-v shows what pip says"]
        reason = f"the index cannot be reached ({why[-1]})"
        hint = "check the network, or name an index with --index-url, or give the path of a wheel"
    if terminal.settings.verbose:
        console.say(*error.splitlines())
    return UnhangError(code, f"pip could not download {' '.join(request)}: {reason}", hint=hint)


def _pip() -> list[str]:
    quiet = ["--disable-pip-version-check", "--no-input"]
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-I", "-m", "pip", *quiet]
    if uv := shutil.which("uv"):  # `uv pip` has no download command
        return [uv, "run", "--quiet", "--no-project", "--python", sys.executable, "--with", "pip", "--",
                "python", "-I", "-m", "pip", *quiet]  # fmt: skip
    hint = "install pip or uv, or give the path of a wheel"
    raise UnhangError("no-pip", "downloading needs pip or uv, and neither is installed", hint=hint)
