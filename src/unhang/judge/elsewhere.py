"""Code elsewhere on which a rewrite depends: the manifest of its fix says where, and its codemod what that means."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping

from unhang.judge.decide import codemods
from unhang.judge.observe import TOO_LARGE, file_of
from unhang.records import Installation
from unhang.shapes.catalog import Fix


def notes(
    fix: Fix, installations: Iterable[Installation], script: str | None, read: Mapping[str, bytes | None]
) -> tuple[str, ...]:
    """Return a sentence for each line, in these installations or in the job's script, that a user should know of.

    ``read`` holds the files that were read before, by path, and their bytes; None for one that is not there.
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
    return tuple(sentence for path in paths for sentence in _in_file(fix, path, pattern, read))


def _in_file(fix: Fix, path: str, pattern: re.Pattern[bytes], read: Mapping[str, bytes | None]) -> Iterator[str]:
    data = read[path] if path in read else _read(path)
    if data is None or not pattern.search(data):
        return
    from unhang.shapes import shape  # it imports ast

    try:
        tree = shape.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for line, what in codemods(fix.id).notes(tree):
        yield f"{path}:{line} {what}: `unhang explain {fix.id}`"


def _read(path: str) -> bytes | None:
    try:
        if not os.path.isfile(path) or os.path.getsize(path) > TOO_LARGE:  # opening a pipe would block
            return None
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None
