"""Renders and writes the files of the matrix: sorted, one entry on a line, so that a change can be reviewed."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from packaging.version import Version

from unhang.compat.sweep.outlines import Packed
from unhang.compat.sweep.sources import Release


class Facts(NamedTuple):
    """All that the sweep knows of a fix."""

    targets: Mapping[str, Sequence[str]]
    """The places of its functions, by upstream."""
    pulls: Mapping[str, str]
    """The commit of each pull request that its manifest names, by ref."""
    files: Mapping[str, Mapping[str, str | None]]
    """The shapes of its functions in each known file, by sha256."""
    shapes: Mapping[str, Mapping[str, Any]]
    """What is known of each shape, by function and digest."""
    releases: Mapping[str, Sequence[str | None]]
    """The shapes of an upstream's places in a release, by upstream and version."""
    outlines: Packed


_LONG = 1_990


def facts(known: Facts) -> str:
    """Return the text of a fix's file in compat/data."""
    releases = sorted(known.releases.items(), key=_by_version)
    return _text(
        {
            "targets": known.targets,
            "pulls": dict(sorted(known.pulls.items())),
            "files": {digest: dict(sorted(row.items())) for digest, row in sorted(known.files.items())},
            "shapes": dict(sorted(known.shapes.items())),
            "releases": dict(releases),
            "blocks": dict(sorted(known.outlines.blocks.items())),
            "kinds": dict(sorted(known.outlines.kinds.items())),
        }
    )


def releases(collected: Mapping[str, Mapping[str, Release]], others: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the text of releases.json: each release, by upstream and version, and whether it is yanked.

    ``others`` are the rows of it that stay as they are, unless they were collected.
    """
    rows = {
        f"{upstream} {version}": {"yanked": True} if release.yanked else {}
        for upstream, versions in collected.items()
        for version, release in versions.items()
    }
    return _text({"releases": dict(sorted({**others, **rows}.items(), key=_by_version))})


def wheels(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the text of wheels.json: the wheel that stands for each release, from pins or what offers have."""
    projects: dict[str, list[str]] = {}
    for found in rows:
        row = {name: found[name] for name in ("version", "file", "sha256", "python", "yanked")}
        projects.setdefault(found["project"], []).append(json.dumps(row))
    blocks = [f"{json.dumps(name)}: [\n   " + ",\n   ".join(of) + "\n  ]" for name, of in sorted(projects.items())]
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


def _by_version(row: tuple[str, Any]) -> tuple[str, Version]:
    upstream, version = row[0].split()
    return upstream, Version(version)


def _text(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a document of sections. An entry is on a line of its own, or on two if that were very long."""
    parts = ['{"schema": 1']
    for name, entries in sections.items():
        rows = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in entries.items())
        lines = ",\n ".join(it if len(it) < _LONG else it.replace(', "endstate"', ',\n  "endstate"') for it in rows)
        parts.append(f'"{name}": {{\n {lines}\n}}' if lines else f'"{name}": {{}}')
    return ",\n".join(parts) + "}\n"
