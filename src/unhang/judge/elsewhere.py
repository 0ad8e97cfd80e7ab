"""Code elsewhere on which a rewrite depends: the manifest of its fix says where, and its codemod what that means."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator

from unhang.judge.decide import codemods
from unhang.judge.observe import TOO_LARGE, file_of
from unhang.records import Installation
from unhang.shapes.catalog import Fix


def notes(fix: Fix, installations: Iterable[Installation], script: str | None) -> tuple[str, ...]:
    """Return a sentence for each line, in these installations or in the job's script, that a user should know of.

    A file is parsed only if the manifest's pattern is in it, which no release has. What cannot be read is left out.
    """
    looks = fix.manifest.get("looks-at")
    if looks is None:
        return ()
    paths = [
        file_of(found, item["file"])
        for found in installations
        for item in looks["files"]
        if item["upstream"] == found.upstream
    ]
    if script is not None:
        paths.append(os.path.abspath(script))
    pattern = re.compile(looks["pattern"].encode())
    return tuple(sentence for path in paths for sentence in _in_file(fix, path, pattern))


def _in_file(fix: Fix, path: str, pattern: re.Pattern[bytes]) -> Iterator[str]:
    try:
        if not os.path.isfile(path) or os.path.getsize(path) > TOO_LARGE:  # opening a pipe would block
            return
        with open(path, "rb") as file:
            data = file.read()
    except OSError:
        return
    if not pattern.search(data):
        return
    from unhang.shapes import shape  # it imports ast

    try:
        tree = shape.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for line, what in codemods(fix.id).notes(tree):
        yield f"{path}:{line} {what}: `unhang explain {fix.id}`"
