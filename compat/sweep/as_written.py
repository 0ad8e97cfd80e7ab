"""Upstream pull requests, applied as written to released files: the most common edit by hand."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from unhang.compat import upstreams
from unhang.compat.sweep.clones import Clone, Reader
from unhang.shapes import catalog, shape
from unhang.shapes.catalog import Target

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))?")


class Pull(NamedTuple):
    """What an upstream pull request changes of one target, or of what one depends on, as the fix's manifest has it."""

    target: Target
    project: str
    """The upstream whose clone has the pull request."""
    ref: str
    note: str
    """What a user who applied it should know."""


def pulls() -> list[Pull]:
    """Return the pull requests in the manifests of all fixes, one for each function that they change."""
    known = upstreams.projects()
    return [
        Pull(target, project, row["ref"], row["note"])
        for fix in catalog.fixes().values()
        for row in fix.manifest.get("as-written", ())
        for target in fix.functions
        if (target.file, target.function) == (row["file"], row["function"])
        for project in known
        if target.upstream in upstreams.of_project(project)
    ]


def hunks(clone: Clone, ref: str, path: str, function: str) -> str:
    """Return the part of a pull request's diff of one file that changes one function.

    Other hunks, such as sorted imports, are not the fix.
    """
    git, head = clone.repo.git, clone.commit(ref)
    base = git.merge_base(clone.commit("refs/heads/main"), head)
    diff = git.diff(base, head, "--", path, strip_newline_in_stdout=False)
    before = Reader(clone.repo).content(f"{base}:{path}")
    (node,) = shape.find(shape.parse(before.data if before else b""), function)
    head, *parts = re.split(r"^(?=@@ )", diff, flags=re.MULTILINE)
    mine = []
    for part in parts:
        start, length = (int(number or 1) for number in _HUNK.match(part).groups())  # type: ignore[union-attr]
        if start < (node.end_lineno or 0) and start + length > node.lineno:
            mine.append(part)
    return head + "".join(mine)


def applied(diff: str, data: bytes) -> bytes | None:
    """Return a file with a diff applied by GNU patch; None if some hunk is rejected."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "file.py")
        target.write_bytes(data)
        command = ["patch", "--silent", "--force", "--no-backup-if-mismatch", "--reject-file=-", str(target)]
        done = subprocess.run(command, input=diff.encode(), capture_output=True, check=False)
        return target.read_bytes() if done.returncode == 0 else None
