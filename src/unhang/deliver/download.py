"""Downloads wheels: by pip, or by a pip that uv brings where there is none of our own."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from unhang.errors import UnhangError

# Tried in turn for a release that has no wheel for the Python that runs this: the upstreams publish for one of these.
_PYTHONS = ("3.12", "3.10", "3.11", "3.13", "3.14")
# No wheel of this Python's tags; and one that would do, but whose Requires-Python says no.
_UNAVAILABLE = ("No matching distribution found", "requires a different Python")
# Then pip says that it found none, too: it did not ask all who could have it.
_UNREACHABLE = "connection broken by"


class Wanted(NamedTuple):
    """What a download is to be like, in pip's own words."""

    python_version: str | None
    """Fetch for this Python alone; None: for our own, else for one that the release has a wheel for."""
    options: tuple[str, ...]
    """Handed to pip as they are: index, platform ..."""


def fetch(what: Sequence[str], wanted: Wanted, folder: str, say: Callable[[str], None]) -> list[str]:
    """Download the wheels of one request (a requirement, or ``-r FILE``) into an empty folder; gives their paths.

    Says so where it is for another Python than ours. Raises UnhangError ``no-pip``, ``no-such-wheel``,
    ``download-failed``.
    """
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    tries = [wanted.python_version] if wanted.python_version else [None, *(it for it in _PYTHONS if it != own)]
    first = ""
    for python in tries:
        words = [*_pip(), "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", folder, *wanted.options]
        words += ["--python-version", python] if python else []
        done = subprocess.run(
            [*words, *what], stdin=subprocess.DEVNULL, stdout=sys.stderr, stderr=subprocess.PIPE, check=False
        )
        error = done.stderr.decode("utf-8", "replace").strip()
        first = first or error
        if done.returncode == 0:
            if python and not wanted.python_version:
                say(f"{' '.join(what)} has no wheel for Python {own}; this is its wheel for Python {python}")
            return sorted(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".whl"))
        if _UNREACHABLE in error or not any(reason in error for reason in _UNAVAILABLE):
            raise _failed("download-failed", what, error)
    raise _failed("no-such-wheel", what, first)


def _failed(code: str, what: Sequence[str], error: str) -> UnhangError:
    lines = [line.strip() for line in error.splitlines() if line.strip()] or ["it said nothing"]
    unreachable = [line for line in lines if _UNREACHABLE in line]
    last = max((number for number, line in enumerate(lines) if line.startswith("ERROR:")), default=-1)
    why = unreachable[-1] if unreachable else " ".join(lines[last:])  # with all that belongs to the last error
    hint = "see that the version exists and the index can be reached; --platform and --python-version choose a wheel"
    return UnhangError(code, f"pip could not download {' '.join(what)}: {why}", hint=hint)


def _pip() -> list[str]:
    quiet = ["--disable-pip-version-check", "--no-input"]
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", *quiet]
    if uv := shutil.which("uv"):  # which has no download of its own
        return [uv, "run", "--quiet", "--no-project", "--python", sys.executable, "--with", "pip", "--",
                "python", "-m", "pip", *quiet]  # fmt: skip
    hint = "install pip or uv, or give the path of a wheel that is here already"
    raise UnhangError("no-pip", "there is neither pip nor uv here to download with", hint=hint)
