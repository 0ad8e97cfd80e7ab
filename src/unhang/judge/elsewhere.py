"""Code elsewhere that decides what a rewrite does: what it depends on, and what runs in its place.

The manifest of its fix says where that is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from unhang import gate
from unhang.errors import joined
from unhang.find import overlays
from unhang.judge import recorded
from unhang.judge.decide import NEEDED, NO_REWRITE, Verdict
from unhang.judge.observe import file_of
from unhang.judge.recorded import codemods
from unhang.plugins import packs
from unhang.records import Installation
from unhang.shapes.catalog import Fix
from unhang.suggest import explain


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
    with _blamed(fix):
        pattern = re.compile(looks["pattern"].encode())
    return tuple(sentence for path in paths for sentence in _in_file(fix, path, pattern, read))


def instead(fix: Fix, read: Mapping[str, bytes | None], folders: Mapping[str, str]) -> tuple[str, ...]:
    """Return what each of these packages does that runs other code in place of a target of the fix, and where.

    ``read`` is as for ``notes``; ``folders`` has theirs by module. A file counts if the manifest's pattern is in it: a
    namesake, or a release that does not do so, has none.
    """
    with _blamed(fix):
        return tuple(
            f"{row['package']} {row['what']} ({place})"
            for row in fix.manifest.get("instead", ())
            if row["module"] in folders and (place := _matched(row, folders[row["module"]], read))
        )


def copied(fix: str, copies: Iterable[str]) -> Verdict:
    """Return the verdict where a function is right, and copies of it elsewhere in its upstream are not."""
    return Verdict(NEEDED, NO_REWRITE, joined(*copies), way_out(fix))


def way_out(fix: str) -> str:
    """Return what is said after ``instead``."""
    return f"unhang does not rewrite that: `{explain(fix)}`"


def _blamed(fix: Fix) -> packs.Blamed:
    """Return what blames the manifest of a fix, which has regular expressions, for an error."""
    return packs.Blamed(fix.pack, os.path.join(fix.folder, "manifest.json"))


def _matched(row: Mapping[str, Any], folder: str, read: Mapping[str, bytes | None]) -> str:
    """Return the first of a row's files that has the pattern, as imported, and the line; empty if none has."""
    depth = row["module"].count(".") + 1
    for file in row["files"]:
        path = os.path.join(folder, *file.split("/")[depth:])
        data = read.get(path) or overlays.read(path) or b""
        if match := re.search(row["pattern"].encode(), data):
            line = data.count(b"\n", 0, match.start()) + 1
            return f"{file}:{line}"
    return ""


def _in_file(fix: Fix, path: str, pattern: re.Pattern[bytes], read: Mapping[str, bytes | None]) -> Iterator[str]:
    data = read[path] if path in read else overlays.read(path)
    if data is None or not pattern.search(data):
        return
    from unhang.shapes import shape  # it imports ast

    try:
        tree = shape.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    with recorded.blamed(fix.id):
        found = [(int(line), str(what)) for line, what in codemods(fix.id).notes(tree)]
    for line, what in found:
        yield f"{path}:{line} {gate.line(what)}: `{explain(fix.id)}`"
