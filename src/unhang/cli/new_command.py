"""``unhang new ID --upstream REQ --from-patch FILE``: a fix of one's own, begun from a diff."""

from __future__ import annotations

import argparse
import datetime
import os
import re
import tempfile
from collections.abc import Mapping, Sequence

from packaging.utils import canonicalize_name

from unhang.deliver import archive, download, wheel
from unhang.deliver.wheel import Wheel
from unhang.draft import patch, skeleton
from unhang.draft.drafted import drafted
from unhang.draft.skeleton import Draft, Rewrite
from unhang.errors import UnhangError
from unhang.records import UPSTREAMS
from unhang.shapes import catalog
from unhang.tell import console, progress


def run(options: argparse.Namespace) -> int:
    """Write the files of the fix; return 0, or 1 if a change of the diff is left to a person.

    Raises UnhangError ``bad-option``, ``fix-exists``, ``bad-patch``, ``patch-does-not-fit``, ``nothing-to-rewrite``,
    ``no-upstream``, and what ``download.fetch`` and ``wheel.load`` raise; OSError. Nothing is written then.
    """
    fix = options.fix_id
    if not re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", fix):
        raise UnhangError("bad-option", f"{fix!r} is no id of a fix", hint="write it like `mtp-cp-deadlock`")
    if fix in catalog.fixes():
        raise UnhangError("fix-exists", f"there is a fix {fix} already", hint=f"`unhang explain {fix}` shows it")
    with open(options.from_patch, encoding="utf-8", errors="surrogateescape", newline="") as file:
        text = file.read()
    with tempfile.TemporaryDirectory(prefix="unhang-") as folder, progress.shown() as step:
        step(f"reading {options.release}")
        source = _release(options.release, folder)
        upstream = canonicalize_name(source.distribution)
        if upstream not in UPSTREAMS:
            raise UnhangError("no-upstream", f"{source.file} is none of {', '.join(UPSTREAMS)}")
        release = f"{upstream} {source.version}"
        result = patch.apply(text, lambda path: _text(source, path), release)
    parts = [drafted(fix, _upstream_of(upstream, changed.file), changed) for changed in result.files]
    rewrites = tuple(rewrite for part in parts for rewrite in part.rewrites)
    left = [*result.left, *(line for part in parts for line in part.left)]
    if not rewrites:
        why = "; ".join(left) or "it changes no statement of a function"
        raise UnhangError("nothing-to-rewrite", f"the diff has nothing for a codemod: {why}")
    today = datetime.date.today().isoformat()
    title = result.title or f"TODO: one line, what is wrong in {upstream}"
    _write(options.output, skeleton.files(Draft(fix, title, source.version, today, rewrites)))
    _tell(fix, rewrites, left)
    return 1 if left else 0


def _release(requirement: str, folder: str) -> Wheel:
    """Return the wheel of a release, given by its path, or downloaded into the folder."""
    if requirement.endswith(".whl"):
        return wheel.load(requirement)
    if "==" not in requirement:
        hint = "name one release, as in `--upstream verl==0.7.1`, or the path of a wheel"
        raise UnhangError("bad-option", f"{requirement!r} does not say which release", hint=hint)
    (path,) = download.fetch([requirement], download.Options(None, ()), folder).paths
    return wheel.load(path)


def _text(source: Wheel, path: str) -> str | None:
    """Return a file of the wheel as text, with its line ends as ``\\n``; None if there is none."""
    member = source.installed().get(path)
    return None if member is None else archive.read(source.path, member).decode("utf-8").replace("\r\n", "\n")


def _upstream_of(upstream: str, path: str) -> str:
    """Return the upstream of a file: the wheels of megatron-core hold Megatron-LM's ``megatron/training`` too."""
    return "megatron-lm" if upstream == "megatron-core" and not path.startswith("megatron/core/") else upstream


def _write(folder: str, files: Mapping[str, str]) -> None:
    """Write the files below the folder; all of them are new, or nothing is written."""
    paths = {os.path.join(folder, *name.split("/")): text for name, text in files.items()}
    if there := [path for path in paths if os.path.lexists(path)]:
        raise UnhangError(
            "fix-exists", "this file is there already", path=there[0], hint="move it away, or name --output"
        )
    for path, text in paths.items():
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
        print(f"wrote {path}")


def _tell(fix: str, rewrites: Sequence[Rewrite], left: Sequence[str]) -> None:
    for target, before, after, replaced, _ in rewrites:
        count = console.count(len(replaced), "edit")
        print(f"{target.upstream}  {target.file}  {target.function}  {before} -> {after}  {count}")
    console.say_each(f"left to you: {line}" for line in left)
    console.note(
        "note: the codemod has upstream's own lines in it. Keep it in your own folder; before you share it, write its "
        "anchors and edits in your own words, as CONTRIBUTING.md says"
    )
    console.note(
        "next: write what each TODO asks for. Every shape stays drifted until `nox -s sweep` lists it; until then "
        f"`unhang diff --unknown --fix {fix}` shows the rewrite of an installation, and the token that accepts it"
    )
