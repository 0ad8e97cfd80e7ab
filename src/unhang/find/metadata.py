"""What a package's own files state: its version, and the RECORD that lists it. They are read, never imported."""

from __future__ import annotations

import math
import os
import re
from functools import lru_cache
from typing import TYPE_CHECKING

from unhang.plugins import packs
from unhang.records import normal

if TYPE_CHECKING:
    from unhang.records import Upstream

_OF_A_VERSION = set("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.+!-_")
_CHAINED = re.compile(r"^(?:[A-Za-z_]\w*\s*=(?!=)\s*)+")  # of `__version__ = version = "1.0"`
_LONGEST_VERSION = 100
_TOO_LONG = 64 * 1024 * 1024  # characters; a RECORD of 60,000 files has six million


def installed(name: str) -> str:
    """Return where a member of a wheel is installed below site-packages, also one in its ``.data`` folder."""
    return re.sub(r"^[^/]+\.data/(?:purelib|platlib)/(?=.)", "", name)


def version(module: str, folder: str) -> str | None:
    """Return the version of a package in ``folder``; None where its source states none, or what cannot be one."""
    found = stated(module, folder)
    return found if found and is_version(found) else None


def release(upstream: Upstream, root: str, folder: str, is_linked: bool = False) -> tuple[str | None, str | None]:
    """Return the version of an upstream whose package is ``folder``, and the RECORD in ``root`` that lists it, if any.

    A package that is a link (``is_linked``) is in no RECORD.
    """
    found = version(upstream.module, folder)
    listing = None if is_linked else record(root, upstream.module, upstream.dist_info, found)
    # a file in no folder, which a checkout has, may be another project's where a RECORD lists the package
    if listing is not None and "/" not in upstream.version.get("file", ""):
        named = recorded_version(listing)
        found = named if is_version(named) else None
    return found, listing


def is_version(text: str) -> bool:
    """Return whether a text can be a version. What else a checkout states is not shown, or looked up, as one."""
    return len(text) <= _LONGEST_VERSION and set(text) <= _OF_A_VERSION


def stated(module: str, folder: str) -> str | None:
    """Return the version that the source of a package in ``folder`` states, as it stands; None where there is none."""
    upstream = packs.modules()[module]
    if "file" not in upstream.version:
        return None
    there = os.path.relpath(upstream.version["file"], os.path.join(*upstream.parts))
    path = os.path.normpath(os.path.join(folder, there))
    if "names" not in upstream.version:
        return read(path).strip() or None
    found = _constants(path)
    first, *others = (found.get(name, "") for name in upstream.version["names"])
    if not others:
        return first or None
    numbers, after = [first, *others[:-1]], others[-1]
    return ".".join(numbers) + after if all(map(str.isdigit, numbers)) else None


def record(root: str, module: str, distribution: str, version: str | None) -> str | None:
    """Return the RECORD in ``root`` that lists the package; a .dist-info folder left by another copy does not."""
    row = f"\n{module.replace('.', '/')}{'' if packs.modules()[module].is_file else '/__init__'}.py,"

    def lists_it(path: str) -> bool:
        text = read(path)
        return row in "\n" + text if text else _is_there(path)  # one that cannot be read may: who writes must know

    expected = os.path.join(root, f"{distribution}-{version}.dist-info", "RECORD")
    if lists_it(expected):
        return expected  # without listing the folder, which is slow in a crowded environment

    def is_of_it(name: str) -> bool:
        return name.startswith(distribution + "-") or normal(name.rpartition("-")[0]) == normal(distribution)

    suffix = ".dist-info"
    names = [name for name in os.listdir(root) if name.endswith(suffix) and is_of_it(name.removesuffix(suffix))]
    records = [path for name in names if lists_it(path := os.path.join(root, name, "RECORD"))]
    return max(records, key=_age, default=None)  # the newest: its install wrote the files


def is_of(record: str, version: str | None) -> bool:
    """Return whether a RECORD is that of this version, by the name of its .dist-info folder."""
    from packaging.version import InvalidVersion, Version  # few runs ask

    try:
        return version is not None and Version(recorded_version(record)) == Version(version)
    except InvalidVersion:
        return False


def recorded_version(record: str) -> str:
    """Return the version in the name of a RECORD's .dist-info folder."""
    return os.path.basename(os.path.dirname(record)).removesuffix(".dist-info").rpartition("-")[2]


def confirms(record: str, file: str, data: bytes) -> bool:
    """Return whether an installer's row of a RECORD has the hash and size of ``data``, a file's bytes.

    ``file`` is its path below the root. An installer quotes no plain path: see ``dist_info.quoted``.
    """
    import base64  # few runs ask
    import hashlib

    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return _rows(record, file) == [f"{file},sha256={digest},{len(data)}"]


def has_hash(record: str, file: str) -> bool:
    """Return whether a RECORD says what a file was, as ``confirms`` reads it."""
    return any(re.fullmatch(r"[^,]*,sha256=[\w-]+,\d+", row) for row in _rows(record, file))


def _rows(record: str, file: str) -> list[str]:
    return [row for row in read(record).splitlines() if row.partition(",")[0].strip('"') == file]


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
        value = _CHAINED.sub("", value.partition("#")[0].strip())
        if value[:1] in ("'", '"') and value[-1:] == value[:1]:
            value = value[1:-1]
        elif not value.isdigit():
            continue
        constants[name.partition(":")[0].rstrip()] = value  # an indented name keeps its indentation: another name
    return constants


def names(folder: str) -> list[str]:
    """Return the names in a folder; none if it cannot be listed."""
    try:
        return os.listdir(folder)
    except OSError:  # no such folder, the common case
        return []
