"""Writes advisories to disk: a file for each, and the zip of all of them that osv-scanner reads without a network."""

from __future__ import annotations

import io
import os
import re
import zipfile
from collections.abc import Mapping

from unhang.deliver.wheel_output import prepare, write_whole
from unhang.errors import UnhangError
from unhang.store import disk

_DATABASES = ("osv-scanner", "osv-scalibr")
"""The folder in which osv-scanner looks below its --local-db-path: up to 2.4, and from 2.5 on."""
_ADVISORY = re.compile(r"x_.+\.json|\.x_.+\.json\.new")  # or what a killed run left of one


def write(folder: str, advisories: Mapping[str, str]) -> None:
    """Write these advisories, by id, in place of those that an earlier run wrote into the folder.

    Raises UnhangError ``not-a-folder``, ``not-empty`` if the folder holds anything else, and as ``disk.refusal`` does.
    """
    folder = os.path.abspath(folder)
    prepare(folder)
    with disk.about(folder):
        found = os.listdir(folder) if os.path.isdir(folder) else []
    earlier = {name for name in found if _ADVISORY.fullmatch(name)}
    if found and ({*found} - earlier - {*_DATABASES} or not earlier):  # osv-scanner's own cache has none
        hint = "give an empty folder, or a new path: advisories need a folder of their own"
        raise UnhangError("not-empty", f"{folder} is neither empty nor a folder of advisories", path=folder, hint=hint)
    files = {f"{name}.json": text.encode() for name, text in advisories.items()}
    for name, data in files.items():  # first, for the next run knows by them whose folder it is
        write_whole(os.path.join(folder, name), data)
    for database in _DATABASES:
        write_whole(os.path.join(folder, database, "PyPI", "all.zip"), _zipped(files))
    for name in earlier - {*files}:
        with disk.about(os.path.join(folder, name)):
            disk.remove(os.path.join(folder, name))  # what a killed run left may be gone by now


def _zipped(files: Mapping[str, bytes]) -> bytes:
    """Return the zip of these files. They are stored: compressed bytes depend on Python's zlib."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in files.items():
            info = zipfile.ZipInfo(name)  # of 1980: no time of this run
            info.create_system, info.external_attr = 3, 0o100644 << 16
            archive.writestr(info, data)
    return out.getvalue()
