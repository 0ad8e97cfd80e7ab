"""A made-up upstream that no pack has yet, its releases as wheels and as folders, and a diff of somebody's for one."""

import difflib
import zipfile
from collections.abc import Mapping
from pathlib import Path

from support import wheel_files

FILE = "widgets/core/engine.py"
ENGINE = """\
import os
from typing import Any, List

LIMIT = 3


class Engine:
    size: int = 1

    def run(self, job):
        # runs
        return job.go(LIMIT)


def main():
    print("widgets")
"""
PATCHED = """\
import os
import sys
from typing import Any, Dict, List

LIMIT = 4


class Engine:
    size: int = 1
    names: Dict[str, Any] = {}

    @property
    def run(self, job, *, again=False):
        # runs it
        return job.go(LIMIT, sys.argv, again)

    def stop(self):
        pass


def main():
    print("widgets")
"""
HEAD = """\
From 1111111111111111111111111111111111111111 Mon Sep 17 00:00:00 2001
From: A Person <a@example.org>
Subject: [PATCH] Let an engine stop

"""


def diff(after: str, before: str = ENGINE) -> str:
    """The diff between two states of the file, as in a repository that has its packages in a folder."""
    old, new = (it.splitlines(keepends=True) for it in (before, after))
    return "".join(difflib.unified_diff(old, new, f"a/src/{FILE}", f"b/src/{FILE}"))


DIFF = HEAD + diff(PATCHED)


def wheel(folder: Path, version: str = "1.0", engine: str = ENGINE, more: Mapping[str, str] = {}) -> Path:
    """Write a release as a wheel."""
    info = f"widgets-{version}.dist-info"
    files = {"widgets/__init__.py": "", "widgets/core/__init__.py": "", FILE: engine, **more}
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: widgets\nVersion: {version}\n"
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\n"
    return wheel_files.made(
        folder, f"widgets-{version}-py3-none-any.whl", {name: text.encode() for name, text in files.items()}
    )


def site(folder: Path, version: str = "1.0", engine: str = ENGINE, more: Mapping[str, str] = {}) -> Path:
    """Lay out a release as an installer does, with hashes in its RECORD."""
    import base64
    import hashlib

    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(wheel(folder / "wheels", version, engine, more)) as archive:
        archive.extractall(folder / "site")
    record = folder / "site" / f"widgets-{version}.dist-info" / "RECORD"
    rows = []
    for name in (row.partition(",")[0] for row in record.read_text().splitlines()):
        data = (folder / "site" / name).read_bytes()
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{name},,\n" if name.endswith("/RECORD") else f"{name},sha256={digest},{len(data)}\n")
    record.write_text("".join(rows))
    return folder / "site"
