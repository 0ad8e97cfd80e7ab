"""``unhang pack sweep --pack DIR``: what a pack's fixes find in other releases.

Of an unproved one: whether its edits fit, and what they give. Of a proved one: what its scene shows of the functions
there, untouched and rewritten; this Python plays it, so it needs torch and what the upstream imports.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unhang import gate
from unhang.deliver import releases
from unhang.deliver.releases import Release
from unhang.draft import facts, pack_texts
from unhang.draft.facts import Edits, Tried
from unhang.errors import UnhangError
from unhang.plugins import packs
from unhang.records import Request
from unhang.shapes import catalog, shape
from unhang.shapes.catalog import Fix, Target
from unhang.tell import console, progress

if TYPE_CHECKING:
    from unhang.survey.classify import State


def run(options: argparse.Namespace) -> int:
    """Record the shapes of the releases; return 0, or 1 if a fix does not fit one, or a person must decide a shape.

    Raises UnhangError ``bad-option``, ``no-commit``, ``no-upstream``, and as ``releases.named``; what was recorded
    before it stays.
    """
    folder = os.path.realpath(options.pack[-1]) if options.pack else ""
    pack = next((it for it in packs.others() if it.folder == folder), None)
    if pack is None:
        raise UnhangError("bad-option", "a sweep writes to a pack", hint="name its folder: --pack DIR")
    fixes = [it for it in catalog.fixes().values() if it.pack == pack]
    if options.fix:
        wanted = {catalog.fix(name).id for name in options.fix}
        fixes = [it for it in fixes if it.id in wanted]
    if not fixes:
        raise UnhangError("bad-option", f"{pack} has no fix to sweep", hint="`unhang list` shows its fixes")
    fits = True
    with tempfile.TemporaryDirectory(prefix="unhang-") as work, progress.shown() as step:
        for release in _releases(options, fixes, work):
            step(f"reading {release.project} {release.version}")
            with tempfile.TemporaryDirectory(dir=work, prefix="tree-") as tree:
                for fix in fixes:
                    if any(packs.upstreams()[it.upstream].name in _held(release) for it in fix.targets):
                        fits = _swept(fix, release, Path(tree)) and fits
    return 0 if fits else 1


def _held(release: Release) -> set[str]:
    """Return the upstreams that a release may have."""
    return {it.name for it in packs.upstreams().values() if release.project in (it.name, it.within)}


def _releases(options: argparse.Namespace, fixes: list[Fix], work: str) -> Iterator[Release]:
    request = Request(options.python, options.target, options.source, options.script, upstreams=packs.names())
    for number, requirement in enumerate(options.releases):
        folder = os.path.join(work, str(number))
        os.mkdir(folder)
        yield releases.named(requirement, folder, request)
    for clone, pattern in options.from_clone:
        for tag in _tags(clone, pattern):
            for name in dict.fromkeys(releases.project(it.upstream) for fix in fixes for it in fix.targets):
                found = releases.of_clone(clone, tag, packs.upstreams()[name])
                version = re.search(r"\d+(\.\d+)+\S*$", tag)
                yield found._replace(version=version[0] if version else tag)
    if options.python or options.target or options.source or not (options.releases or options.from_clone):
        yield from releases.installed(request)


def _tags(clone: str, pattern: str) -> list[str]:
    try:
        done = subprocess.run(
            ["git", "-C", clone, "tag", "--list", "--sort=version:refname", pattern],
            stdin=subprocess.DEVNULL, capture_output=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError) as error:
        raise UnhangError("no-commit", "this is not a clone whose tags can be listed", path=clone) from error
    return done.stdout.decode("utf-8", "replace").split() or [pattern]


def _swept(fix: Fix, release: Release, tree: Path) -> bool:
    """Record what a fix finds in a release; return whether it fits, or is there already.

    ``tree`` is the folder in which the release's files are laid out, if a scene plays in it.
    """
    from unhang.judge import recorded

    shown = gate.line(f"{fix.id}: {release.project} {release.version} ({release.where})")
    path, known = recorded.path(fix.id), dict(catalog.facts(fix.id))
    if recorded.is_edited(fix.id, known.get("codemod")):
        console.say(f"{fix.id}: its codemod was edited: its record starts again from nothing")
        known = {}
    known = (known or facts.document(fix.targets)) | {"codemod": recorded.digests(packs.read(path), path)}
    files = dict.fromkeys(it.file for it in fix.targets)
    if doubts := [f"{gate.line(file)} {why}" for file in files if (why := release.unconfirmed(file))]:
        console.say(f"{shown}: not recorded, for {', '.join(doubts)}")
        return False
    unproved = fix.grade == catalog.UNPROVED
    is_recorded = _tried(fix, release, known, shown) if unproved else _played(fix, release, known, shown, tree)
    if is_recorded:
        assert fix.pack is not None
        _write(os.path.join(fix.pack.folder, "compat", "data", f"{fix.id}.json"), pack_texts.document(known))
        catalog.facts.cache_clear()
    return is_recorded


def _tried(fix: Fix, release: Release, known: dict[str, Any], shown: str) -> bool:
    """Add to ``known`` what an unproved fix's edits do to a release; return whether they fit, or are there already."""
    from unhang.judge import recorded

    edits: Edits = {target: recorded.edits(target) for target in fix.targets}
    found = facts.tried(edits, release.read, _results(fix, known))
    if found.in_place and known["releases"].get(f"{fix.targets[0].upstream} {release.version}"):
        console.say(f"{shown}: every edit is in place, in a copy of a release that is on record: nothing is recorded")
    elif found.in_place:
        facts.record_fixed(known, found.in_place, release.version)
        console.show(f"{shown}: upstream has every edit")
    elif found.misfits:
        console.say_each(_misfits(shown, found.misfits))
        return False
    else:
        new = _news(known, found)
        facts.record(known, edits, found, release.version)
        console.show(f"{shown}: fits, {console.count(new, 'new shape')}")
    return True


def _played(fix: Fix, release: Release, known: dict[str, Any], shown: str, tree: Path) -> bool:
    """Add to ``known`` what a proved fix's scene shows of a release; return whether it decides every shape."""
    from unhang.judge import rows
    from unhang.judge.scene import NoTorchError, SceneError
    from unhang.survey.classify import classify

    states: dict[Target, tuple[str, State]] = {}
    files: dict[str, dict[str, str]] = {}
    for target in fix.targets:
        data = release.read(target.file) or b""
        if b"# unhang " in data:
            console.say(f"{shown}: not recorded, for a rewrite of unhang is in {target.file}")
            return False
        try:
            found = shape.find(shape.parse(data), target.function)
            if len(found) == 1:
                release.lay_out(str(tree))
                run = partial(rows.run, place=(target, [tree]))
                states[target] = shape.digest(found[0]), classify(data, target, run)
        except (SyntaxError, ValueError, RecursionError, SceneError) as error:
            todo = f"; install torch for {sys.executable}" if isinstance(error, NoTorchError) else ""
            console.say(gate.line(f"{shown}: not recorded: {target.file}: {error}{todo}"))
            return False
        if target in states:
            files.setdefault(hashlib.sha256(data).hexdigest(), {})[target.function] = states[target][0]
    unclear = {target.function: state.why for target, (_, state) in states.items() if state.state == "undecided"}
    console.say_each(gate.line(f"{shown}: undecided, not recorded: {name}: {why}") for name, why in unclear.items())
    if unclear:
        return False
    known["files"].update({**files, **_patched(release, states)})
    facts.record_states(known, states, release.version)
    told = ", ".join(f"{it.function} is {state.state}" for it, (_, state) in states.items())
    console.show(f"{shown}: {told or 'it does not have the function'}")
    return True


def _patched(release: Release, states: Mapping[Target, tuple[str, State]]) -> dict[str, dict[str, str]]:
    """Return the shapes in each file with the fix in it, by the file's sha256: what `apply` writes is on record too."""
    from unhang.rewrite.one_file import Step, rewrite

    found: dict[str, dict[str, str]] = {}
    steps = [Step(target, state.result) for target, (_, state) in states.items() if state.result is not None]
    for file in {step.target.file for step in steps}:
        mine = [step for step in steps if step.target.file == file]
        done = rewrite(release.read(file) or b"", mine)
        shapes = {step.target.function: pair[1] for step, pair in zip(mine, done.shapes)}
        here = {it.function: digest for it, (digest, _) in states.items() if it.file == file}
        found[hashlib.sha256(done.data).hexdigest()] = {**here, **shapes}
    return found


def _results(fix: Fix, known: Mapping[str, Mapping[str, Mapping[str, str]]]) -> dict[Target, set[str]]:
    """Return the shapes that the edits give each target."""
    rows = [(key.partition(" ")[0], row) for key, row in known["shapes"].items() if "result" in row]
    return {target: {row["result"] for name, row in rows if name == target.function} for target in fix.targets}


def _news(known: Mapping[str, Mapping[str, object]], found: Tried) -> int:
    return sum(f"{target.function} {was}" not in known["shapes"] for target, (was, _) in found.shapes.items())


def _misfits(shown: str, misfits: Mapping[Target, str]) -> Iterator[str]:
    yield f"{shown}: does not fit, and nothing of it is recorded"
    for target, why in misfits.items():
        yield gate.line(f"  {target.file}  {target.function}: {why}")


def _write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(f"{path}.new", path)
