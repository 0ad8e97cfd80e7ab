"""Play the scene of a fix on one release, while both are written: nothing of it need be on record yet.

    nox -s fix -- ID play NAME==VERSION     each setting, on the untouched function and on its rewrite

Exits with 1 if a sweep would leave a function undecided, with 2 if nothing could be played.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from unhang.compat.sweep import trees
from unhang.errors import UnhangError
from unhang.judge import rows, scene
from unhang.judge.rows import Source
from unhang.plugins import packs
from unhang.rewrite.one_file import RewriteError, Step, rewrite
from unhang.shapes import catalog, shape
from unhang.shapes.catalog import Target
from unhang.tell import report

_SHOWN = {rows.BEFORE: "untouched", rows.AFTER: "rewritten"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Play what the fix rewrites in the release, function by function."""
    parser = argparse.ArgumentParser(prog="nox -s fix -- ID play", description=__doc__)
    parser.add_argument("fix", metavar="ID")
    parser.add_argument("release", metavar="NAME==VERSION", help="an upstream, and one of its releases")
    options = parser.parse_args(arguments)
    name, _, version = options.release.partition("==")
    try:
        targets = [it for it in catalog.fix(options.fix).targets if it.upstream == name]
        found = [problems(target, version) for target in targets]
    except scene.NoTorchError as error:
        print(f"{error}\nhint: run this once without nox's -R, which installs it", file=sys.stderr)
        return 2
    except (UnhangError, scene.SceneError) as error:
        print(report.text_error(error) if isinstance(error, UnhangError) else error, file=sys.stderr)
        return 2
    return 1 if any(found) else 0 if found else 2


def problems(target: Target, version: str) -> list[str]:
    """Print how each setting of a function ends, and what a sweep would find wrong; return that. Raises SceneError."""
    place = trees.place(target, version)
    file = Path(place[1][0], target.file)
    data = file.read_bytes() if file.is_file() else b""
    print(f"{target.upstream} {version}  {target.file}  {target.function}")
    if len(shape.find(shape.parse(data), target.function)) != 1:
        print("  this release does not have it")
        return []
    before, after = Source(data.decode(), target.function), None
    refused: RewriteError | None = None
    try:
        after = Source(rewrite(data, [Step(target, None)]).data.decode(), target.function)
    except RewriteError as error:
        refused = error
    texts = {rows.BEFORE: before, **({rows.AFTER: after} if after else {})}
    answer = rows.played(target.fix, texts, place, [*texts])
    if refused:
        if not answer[rows.BEFORE]["wrong"]:
            print("  right in every setting: it needs no rewrite")
            return []
        print(f"  the codemod refuses it: {refused}")
    for case in scene.of(target.fix).GRID:
        if target.function in case.options.get("of", [target.function]):
            ends = [f"{_SHOWN[name]} {each['wrong'].get(case.name, 'right')}" for name, each in answer.items()]
            print(f"  {case.name}: {'; '.join(ends)}")
    found = [*rows.row(target.fix, before, after, answer).problems, *too_long(target, before, after)]
    print("".join(f"  PROBLEM: {line}\n" for line in found), end="")
    return found


def too_long(target: Target, before: Source, after: Source | None) -> list[str]:
    """Return what to say of each line of a rewrite that is longer than the upstream's own lines may be."""
    width, own = packs.upstreams()[target.upstream].width, {*before.text.splitlines()}
    lines = enumerate(after.text.splitlines() if after else [], 1)
    return [
        f"line {at} of the rewrite has {len(line)} columns, {width} at most"
        for at, line in lines
        if len(line) > width and line not in own
    ]


if __name__ == "__main__":
    sys.exit(main())
