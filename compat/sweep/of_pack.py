"""Records what a pack's proved fix does to releases: ``python -m unhang.compat.sweep.of_pack PACK ID WHEEL...``.

The end state decides the state of each shape, as in our own sweep. (``unhang sweep`` is for fixes from a diff alone.)
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from unhang import packs
from unhang.compat.sweep.classify import classify
from unhang.deliver import archive, wheel
from unhang.draft import facts, pack_texts
from unhang.errors import UnhangError
from unhang.judge import recorded
from unhang.shapes import catalog, shape
from unhang.shapes.catalog import Target
from unhang.tell import report


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the fix's data anew; return 1 if a person must decide a shape, 2 if it could not run (then nothing is)."""
    parser = argparse.ArgumentParser(prog="python -m unhang.compat.sweep.of_pack", description=__doc__)
    parser.add_argument("pack")
    parser.add_argument("fix")
    parser.add_argument("wheels", nargs="+", metavar="wheel")
    options = parser.parse_args(arguments)
    try:
        packs.use([options.pack], True, {})
        return _run(os.path.realpath(options.pack), catalog.fix(options.fix).targets, options.wheels)
    except UnhangError as error:
        print(report.text_error(error), file=sys.stderr)
        return 2


def _run(pack: str, targets: Sequence[Target], paths: Sequence[str]) -> int:
    known, undecided = facts.document(targets), 0
    module = recorded.path(targets[0].fix)
    known["codemod"] = recorded.digests(packs.read(module), module)
    releases = sorted((wheel.load(path) for path in paths), key=lambda it: facts.version_key(it.version))
    for release in releases:
        members = release.installed()
        row: list[str | None] = []
        for target in targets:
            data = archive.read(release.path, members[target.file]) if target.file in members else b""
            found = shape.find(shape.parse(data), target.function)
            row.append(shape.digest(found[0]) if len(found) == 1 else None)
            if row[-1] is not None:
                undecided += _record(known, target, data, row[-1], release.version)
        known["releases"][f"{targets[0].upstream} {release.version}"] = row
    path = os.path.join(pack, "compat", "data", f"{targets[0].fix}.json")
    with open(path, "w", encoding="utf-8") as file:
        file.write(pack_texts.document(known))
    print(f"{len(releases)} releases, {len(known['shapes'])} shapes, {undecided} undecided")
    return 1 if undecided else 0


def _record(known: dict[str, Any], target: Target, data: bytes, digest: str, version: str) -> bool:
    """Add one release's function to what is known; return whether its state is undecided."""
    name, release = f"{target.function} {digest}", f"{target.upstream} {version}"
    if name in known["shapes"]:
        known["shapes"][name]["last"] = release
    else:
        state = classify(data, target)
        if state.state == "undecided":
            print(f"undecided: {release}: {name}: {state.why}", file=sys.stderr)
            return True
        entry: dict[str, Any] = {"state": state.state, "first": release, "last": release}
        if state.result is not None:
            entry |= {"result": state.result, "names": list(state.names)}
            known["shapes"][f"{target.function} {state.result}"] = {"state": "ours"}
        known["shapes"][name] = entry
    known["files"].setdefault(hashlib.sha256(data).hexdigest(), {})[target.function] = digest
    return False


if __name__ == "__main__":
    raise SystemExit(main())
