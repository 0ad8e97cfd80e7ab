"""Reads a lock file or an SBOM: a regular file of a bounded size, in a format that its content shows."""

from __future__ import annotations

import os
import re
import stat
from typing import NamedTuple

from unhang.errors import UnhangError
from unhang.pins.values import MOST, DamagedError, Table
from unhang.records import Names, Pin

LARGEST = 64 << 20
"""Bytes. An SBOM of a large image has twenty million."""
_FORMATS = (
    "uv.lock, pylock.toml, poetry.lock, pdm.lock, conda-lock.yml, requirements.txt, or a CycloneDX or SPDX SBOM in JSON"
)


class Locked(NamedTuple):
    """What one file pins."""

    path: str
    pins: tuple[Pin, ...]
    nameless: tuple[Pin, ...] = ()
    """URLs and paths that may be any package."""
    unread: tuple[str, ...] = ()
    """Other files that it includes, by path."""


def read(path: str, names: Names) -> Locked:
    """Return the pins of these distributions in a file.

    Raises UnhangError ``bad-lock``, ``no-lock-reader``, ``unreadable``.
    """
    content = _content(path)
    unread: list[str] = []
    try:
        pins = _pins(path, content, names, unread)
    except DamagedError as error:
        raise _bad(path, str(error)) from error
    except (ValueError, RecursionError, MemoryError) as error:  # of a parser: no TOML, no JSON, nested too deeply
        raise _bad(path, " ".join(str(error).split())) from error
    if len(pins) > MOST:
        found = sorted({pin.distribution or "what has no name" for pin in pins})
        raise _bad(path, f"it has over {MOST} pins of {', '.join(found)}")
    named, nameless = (tuple(pin for pin in pins if bool(pin.distribution) is it) for it in (True, False))
    return Locked(path, named, nameless, tuple(os.path.join(os.path.dirname(path), name) for name in unread))


def _pins(path: str, content: str, names: Names, unread: list[str]) -> list[Pin]:
    """Return the pins; add to ``unread`` what it includes. Raises ValueError, RecursionError, and as ``read``."""
    name = os.path.basename(path).lower()
    if content.lstrip()[:1] == "{":
        import json

        from unhang.pins import sbom

        return sbom.pins(content, json.loads(content), names)
    if name.endswith((".yml", ".yaml")):
        from unhang.pins import conda

        return conda.pins(content, names)
    if name.endswith((".toml", "uv.lock", "poetry.lock", "pdm.lock")) or re.search(r"^\[\[package", content, re.M):
        from unhang.pins import toml

        return _of_toml(content, toml.parsed(content), names)
    if name.endswith((".json", ".xml", ".lock")) and not re.search(r"^[\w.-]+(\[[^\]\n]*\])? *==", content, re.M):
        raise DamagedError(f"it is none of {_FORMATS}")
    from unhang.pins import requirements

    unread += requirements.included(content)
    return requirements.pins(content, names)


def _of_toml(content: str, document: Table, names: Names) -> list[Pin]:
    metadata = document.get("metadata")
    keys = metadata if isinstance(metadata, dict) else {}
    if "lock-version" in document:
        from unhang.pins import pylock

        return pylock.pins(content, document, names)
    if "lock_version" in keys:
        from unhang.pins import pdm

        return pdm.pins(content, document, names)
    if "lock-version" in keys or "content-hash" in keys:
        from unhang.pins import poetry

        return poetry.pins(content, document, names)
    if isinstance(document.get("version"), int):
        from unhang.pins import uv

        return uv.pins(content, document, names)
    raise DamagedError(f"it is none of {_FORMATS}")


def _content(path: str) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe is not waited for
        with open(descriptor, "rb") as file:
            about = os.fstat(descriptor)
            if not stat.S_ISREG(about.st_mode):
                raise _bad(path, "it is no regular file")
            data = file.read(LARGEST + 1)
    except OSError as error:
        hint = "give the path of a lock file that you can read"
        raise UnhangError("unreadable", error.strerror or str(error), path=path, hint=hint) from error
    if len(data) > LARGEST:
        raise _bad(path, f"it has more than {LARGEST >> 20} MiB")
    try:
        text = data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise _bad(path, "it is not UTF-8") from error
    return re.sub("\r\n?", "\n", text)


def _bad(path: str, why: str) -> UnhangError:
    hint = f"make it again with the tool that wrote it, or have a tool write one of {_FORMATS}"
    return UnhangError("bad-lock", f"this lock file cannot be read: {why}", path=path, hint=hint)
