"""What a package's own files state: its version, and the RECORD that lists it. They are read, never imported."""

from __future__ import annotations

import math
import os
from functools import lru_cache

_OF_A_VERSION = set("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.+!-_")
_TOO_LONG = 64 * 1024 * 1024  # characters; a RECORD of 60,000 files has six million


def version(module: str, folder: str) -> str | None:
    """Return the version of a package in ``folder``; None where its source states none, or what cannot be one."""
    found = stated(module, folder)
    return found if found and is_version(found) else None


def is_version(text: str) -> bool:
    """Return whether a text can be a version. What else a checkout states is not shown, or looked up, as one."""
    return set(text) <= _OF_A_VERSION


def stated(module: str, folder: str) -> str | None:
    """Return the version that the source of a package in ``folder`` states, as it stands; None where there is none."""
    if module == "verl":
        return read(os.path.join(folder, "version", "version")).strip() or None
    if module == "swift":
        return _constants(os.path.join(folder, "version.py")).get("__version__")
    core = _constants(os.path.join(os.path.dirname(folder), "core", "package_info.py"))
    numbers = [core.get(name, "") for name in ("MAJOR", "MINOR", "PATCH")]
    return ".".join(numbers) + core.get("PRE_RELEASE", "") if all(map(str.isdigit, numbers)) else None


def record(root: str, module: str, distribution: str, version: str | None) -> str | None:
    """Return the RECORD in ``root`` that lists the package; a .dist-info folder left by another copy does not."""
    row = f"\n{module.replace('.', '/')}/__init__.py,"

    def lists_it(path: str) -> bool:
        text = read(path)
        return row in "\n" + text if text else _is_there(path)  # one that cannot be read may: who writes must know

    expected = os.path.join(root, f"{distribution}-{version}.dist-info", "RECORD")
    if lists_it(expected):
        return expected  # without listing the folder, which is slow in a crowded environment
    names = [name for name in os.listdir(root) if name.startswith(distribution + "-") and name.endswith(".dist-info")]
    records = [path for name in names if lists_it(path := os.path.join(root, name, "RECORD"))]
    return max(records, key=_age, default=None)  # the newest: its install wrote the files


def _is_there(path: str) -> bool:
    """Return whether there is a file that is not empty, as far as we may see."""
    try:
        return os.stat(path).st_size > 0
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def _age(path: str) -> float:
    try:
        return os.path.getmtime(path)
    except OSError:
        return math.inf


@lru_cache(maxsize=8)  # for the length of a search: two upstreams share a RECORD, which may be long
def read(path: str) -> str:
    """Return a file's text; empty where it cannot be read. ``read.cache_clear()`` starts a new search."""
    try:
        if not os.path.isfile(path):  # opening a pipe would wait forever
            return ""
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_TOO_LONG)
    except OSError:
        return ""


def _constants(path: str) -> dict[str, str]:
    """Return the numbers and plain strings that the file's top level assigns to names."""
    constants = {}
    for line in read(path).splitlines():
        name, _, value = line.partition("=")
        value = value.partition("#")[0].strip()
        if value[:1] in ("'", '"') and value[-1:] == value[:1]:
            value = value[1:-1]
        elif not value.isdigit():
            continue
        constants[name.partition(":")[0].rstrip()] = value  # an indented name keeps its indentation: another name
    return constants
