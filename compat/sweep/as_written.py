"""Upstream's own pull requests, as written, applied to what people have: the commonest edit by hand."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from typing import TYPE_CHECKING

from unhang.compat.sweep.clones import Reader, branch_ref
from unhang.shapes import shape

if TYPE_CHECKING:
    from git import Repo


def hunks(repo: Repo, ref: str, path: str, function: str) -> str:
    """The change that the pull request at this ref makes to one function, as a diff of that file.

    The hunks around it, such as sorted imports, are not the fix. Raises GitError where the clone has no such ref.
    """
    base = repo.git.merge_base(branch_ref(repo, "main"), ref)
    diff = repo.git.diff(base, ref, "--", path, strip_newline_in_stdout=False)
    before = Reader(repo).content(f"{base}:{path}")
    (node,) = shape.find(shape.parse(before.data if before else b""), function)
    head, *parts = re.split(r"^(?=@@ )", diff, flags=re.MULTILINE)
    mine = []
    for part in parts:
        start, length = (int(number or 1) for number in re.match(r"@@ -(\d+)(?:,(\d+))?", part).groups())  # type: ignore[union-attr]
        if start < (node.end_lineno or 0) and start + length > node.lineno:
            mine.append(part)
    return head + "".join(mine)


def applied(diff: str, data: bytes) -> bytes | None:
    """A file with a diff of it applied by GNU patch; None where it does not apply whole."""
    with tempfile.TemporaryDirectory() as folder:
        target = os.path.join(folder, "file.py")
        with open(target, "wb") as file:
            file.write(data)
        command = ["patch", "--silent", "--force", "--no-backup-if-mismatch", "--reject-file=-", target]
        done = subprocess.run(command, input=diff.encode(), capture_output=True, check=False)
        with open(target, "rb") as file:
            result = file.read()
    return result if done.returncode == 0 else None
