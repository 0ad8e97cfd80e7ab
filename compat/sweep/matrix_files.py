"""Renders and writes the files of the matrix: sorted, one entry on a line, so that a change can be reviewed."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from packaging.version import Version

from unhang.compat.index import Offer
from unhang.compat.sweep.collect import Collection
from unhang.shapes.catalog import Target


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


class Upstream(NamedTuple):
    """The releases of one upstream."""

    targets: Sequence[str]
    """Each target as ``file::function``, once, however many fixes have it."""
    versions: Mapping[str, Mapping[str, Any]]
    """By version: the shapes in the order of the targets, and whether the release is yanked."""


def place(target: Target) -> str:
    """Return a target as releases.json names it."""
    return f"{target.file}::{target.function}"


def places(targets: Iterable[Target], upstream: str) -> list[str]:
    """Return the places of an upstream's targets, each of them once: several fixes may have the same target."""
    return list(dict.fromkeys(place(target) for target in targets if target.upstream == upstream))


def collected(collection: Collection) -> dict[str, Upstream]:
    """Return the releases of a collection, by upstream."""
    found = {}
    for upstream, versions in collection.releases.items():
        targets = {place(target): target for target in collection.targets if target.upstream == upstream}
        rows: dict[str, dict[str, Any]] = {}
        for version, release in versions.items():
            rows[version] = {"yanked": True} if release.yanked else {}
            rows[version]["shapes"] = [collection.shapes[upstream, version, target] for target in targets.values()]
        found[upstream] = Upstream([*targets], rows)
    return found


def releases(found: Mapping[str, Upstream]) -> str:
    """Return the text of releases.json: an upstream's targets once, then each release's shapes in that order."""
    upstreams = []
    for upstream, (targets, versions) in sorted(found.items()):
        names = json.dumps(targets)
        block = ",\n  ".join(f"{json.dumps(it)}: {json.dumps(versions[it])}" for it in sorted(versions, key=Version))
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
