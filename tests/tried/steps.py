"""One patch, tried: what its owner's way does on a release, and what a fix of a pack does, in the same three cases."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tried import child, trees
from tried.originals import GIT, Original

APPLIED, DRIFTED, REVERTED = "applied", "drifted", "reverted"


class Ran(NamedTuple):
    """How a command ended."""

    code: int
    text: str


class Seen(NamedTuple):
    """What happened in one case."""

    code: int
    files: str
    """Of what the case is about: ``as the patch``, ``untouched``, ``changed otherwise``."""
    said: str
    """Its last line, or the line that says why."""


class Tried(NamedTuple):
    """What came of one patch."""

    original: Original
    lines: int
    """How many lines its difference adds and takes away."""
    new: Ran
    """How ``unhang pack new`` ended."""
    targets: Sequence[str]
    """What the fix binds; nothing where there is none."""
    left: Sequence[str]
    """What it leaves to a person."""
    ours: Mapping[str, Seen]
    theirs: Mapping[str, Seen]


def run(*command: str, cwd: Path | None = None) -> Ran:
    """Run a command with none of the settings of this environment."""
    env = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "LC_ALL": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=env, timeout=600)
    return Ran(done.returncode, done.stdout + done.stderr)


def unhang(*arguments: str) -> Ran:
    """Run our command."""
    return run(sys.executable, "-m", "unhang", *arguments)


def apply_theirs(original: Original, source: Path, root: Path) -> Ran:
    """Apply a patch to a tree as its owner does; ``source`` is the patch, or the module that has it."""
    if original.call == GIT:
        return run("git", "apply", str(source), cwd=root)
    return run(sys.executable, "-I", child.__file__, str(source), str(root), original.call)


def tried(original: Original, source: Path, pristine: Path, pack: Path, work: Path) -> Tried:
    """Try a patch on a release's tree, which is then as before. The fix is begun in the pack; ``work`` is a new folder.

    What the patch changes is found out on the whole tree, and all else is tried on copies of what that needs.
    """
    before = trees.contents(pristine)
    first = apply_theirs(original, source, pristine)
    after = trees.contents(pristine)
    trees.write(pristine, before)
    diff = trees.diff(before, after)
    if not diff:
        nothing = Seen(first.code, "untouched", said(first))
        return Tried(original, 0, Ran(0, "the patch changes nothing here"), (), (), {}, {APPLIED: nothing})
    changed = [path for path in after if before.get(path) != after[path]]
    pristine = trees.reduced(pristine, changed, work / "pristine")
    kept = trees.contents(pristine)
    before, after = ({path: text for path, text in it.items() if path in kept} for it in (before, after))
    patched = trees.copied(pristine, work / "theirs")
    apply_theirs(original, source, patched)
    (work / "change.diff").write_text(diff, encoding="utf-8", errors="surrogateescape")
    again = apply_theirs(original, source, patched)
    theirs = {
        APPLIED: Seen(first.code, "as the patch", said(first)),
        REVERTED: Seen(again.code, _state(trees.contents(patched), before, after), said(again)),
    }
    drifted = trees.copied(pristine, work / "drifted")
    moved = dict(before)
    for path in changed:
        moved[path] = trees.drifted(before[path], after[path])
    trees.write(drifted, moved)
    theirs_drifted = trees.copied(drifted, work / "theirs-drifted")
    ran = apply_theirs(original, source, theirs_drifted)
    theirs[DRIFTED] = Seen(ran.code, _state(trees.contents(theirs_drifted), moved, after), said(ran))
    new, targets, left, ours = _ours(original, before, after, moved, pristine, drifted, pack, work)
    count = sum(line[:1] in "+-" and line[:3] not in ("+++", "---") for line in diff.splitlines())
    return Tried(original, count, new, targets, left, ours, theirs)


def _ours(
    original: Original,
    before: Mapping[str, str],
    after: Mapping[str, str],
    moved: Mapping[str, str],
    pristine: Path,
    drifted: Path,
    pack: Path,
    work: Path,
) -> tuple[Ran, list[str], list[str], dict[str, Seen]]:
    upstream, fix = original.upstream, original.fix
    command = ["new", fix, "--pack", str(pack), "--upstream", f"{upstream.project}=={upstream.version}"]
    command += ["--import-name", upstream.imports, "--from-patch", str(work / "change.diff"), "--target", str(pristine)]
    command += [word for name, value in original.values.items() for word in ("--set", f"{name}={value}")]
    new = unhang(*command)
    left = [line.removeprefix("left to you: ") for line in new.text.splitlines() if line.startswith("left to you: ")]
    path = pack / "patches" / fix / "manifest.json"
    if not path.exists():
        return new, [], left, {}
    manifest = json.loads(path.read_text(encoding="utf-8"))
    targets = [f"{it['file']} {it.get('function') or it['text']}" for it in manifest["targets"]]
    own = trees.copied(pristine, work / "ours")
    common = ["--pack", str(pack), "--fix", fix, "--target"]
    values = [word for name, value in original.values.items() for word in ("--set", f"{name}={value}")]
    applied = unhang("apply", *common, str(own), *values, "--require", fix)
    seen = {APPLIED: Seen(applied.code, _state(trees.contents(own), before, after), said(applied))}
    back = unhang("revert", *common, str(own))
    seen[REVERTED] = Seen(back.code, _state(trees.contents(own), before, after), said(back))
    refused = unhang("apply", *common, str(drifted), *values, "--require", fix)
    seen[DRIFTED] = Seen(refused.code, _state(trees.contents(drifted), moved, after), said(refused))
    return new, targets, left, seen


def _state(now: Mapping[str, str], before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Return what a tree is like: ``before``, ``after`` but for our comments, or neither."""
    if now == before:
        return "untouched"
    changed = [path for path in after if before.get(path) != after[path]]
    alike = all(_code(now[path]) == _code(after[path]) for path in changed)
    others = all(now.get(path) == before[path] for path in before if path not in changed)
    return "as the patch" if alike and others else "changed otherwise"


def _code(text: str) -> str:
    """Return a file as Python reads it; where it does not parse, its text."""
    import ast

    try:
        return ast.dump(ast.parse(text))
    except SyntaxError:
        return text


def said(ran: Ran) -> str:
    """Return the line that says most, without the folders of this run: an error or a warning, else the last one."""
    lines = [re.sub(r"/\S*/unhang-tried-\w+/", "", line) for line in ran.text.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"(?i)error|warning|drifted|not in place|raises|could not", line)]
    return (telling or lines or [""])[-1].strip()
