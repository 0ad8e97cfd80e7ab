"""Renders and writes the files of the matrix: sorted, one entry on a line, so that a change can be reviewed."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from packaging.version import Version

from unhang.compat.index import Offer
from unhang.compat.sweep.collect import Collection


def shapes(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of shapes.json."""
    return _text("shapes", [json.dumps(row) for row in rows], "[]")


def endstates(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of endstates.json."""
    return _text("endstates", [json.dumps(row) for row in rows], "[]")


def files(found: Mapping[str, Mapping[str, str | None]]) -> str:
    """Return the text of files.json."""
    lines = [f"{json.dumps(digest)}: {json.dumps(row, sort_keys=True)}" for digest, row in sorted(found.items())]
    return _text("files", lines, "{}")


def releases(collection: Collection) -> str:
    """Return the text of releases.json: an upstream's targets once, then each release's shapes in that order."""
    upstreams = []
    for upstream, versions in sorted(collection.releases.items()):
        targets = [target for target in collection.targets if target.upstream == upstream]
        names = json.dumps([f"{target.file}::{target.function}" for target in targets])
        lines = []
        for version in sorted(versions, key=Version):
            item: dict[str, Any] = {"yanked": True} if versions[version].yanked else {}
            item["shapes"] = [collection.shapes[upstream, version, target] for target in targets]
            lines.append(f"{json.dumps(version)}: {json.dumps(item)}")
        block = ",\n  ".join(lines)
        upstreams.append(f'{json.dumps(upstream)}: {{"targets": {names}, "versions": {{\n  {block}\n }}}}')
    return _text("releases", upstreams, "{}")


def wheels(offered: Iterable[Offer]) -> str:
    """Return the text of wheels.json: the wheel that stands for each release."""
    projects: dict[str, list[str]] = {}
    for offer in offered:
        row = {name: getattr(offer, name) for name in ("version", "file", "sha256", "python", "yanked")}
        projects.setdefault(offer.project, []).append(json.dumps(row))
    blocks = [f"{json.dumps(name)}: [\n   " + ",\n   ".join(rows) + "\n  ]" for name, rows in sorted(projects.items())]
    return '{\n "schema": 1,\n "wheels": {\n  ' + ",\n  ".join(blocks) + "\n }\n}\n"


def swept(commits: Mapping[str, Mapping[str, str]]) -> str:
    """Return the text of swept.json: the commits that the sweep reads, by upstream and ref."""
    blocks = []
    for name, refs in sorted(commits.items()):
        rows = ",\n   ".join(f"{json.dumps(ref)}: {json.dumps(commit)}" for ref, commit in sorted(refs.items()))
        blocks.append(f"{json.dumps(name)}: {{\n   {rows}\n  }}")
    return '{\n "schema": 1,\n "swept": {\n  ' + ",\n  ".join(blocks) + "\n }\n}\n"


def write(texts: Mapping[str, str]) -> None:
    """Write these files, by path: first all of them to temporary folders beside, then rename each into place."""
    with ExitStack() as stack:
        ready = []
        for path, text in texts.items():
            folder = os.path.dirname(path)
            os.makedirs(folder, exist_ok=True)
            beside = stack.enter_context(tempfile.TemporaryDirectory(dir=folder, prefix=".new-"))
            temporary = os.path.join(beside, os.path.basename(path))
            with open(temporary, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
            ready.append((temporary, path))
        for temporary, path in ready:
            os.replace(temporary, path)


def _text(key: str, lines: Sequence[str], brackets: str) -> str:
    return f'{{"schema": 1, "{key}": {brackets[0]}\n ' + ",\n ".join(lines) + f"\n{brackets[1]}}}\n"
