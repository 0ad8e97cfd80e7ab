"""``unhang pack new ID --upstream REQ --from-patch FILE``: a fix of one's own, begun from a diff or a commit."""

from __future__ import annotations

import argparse
import datetime
import keyword
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from packaging.utils import canonicalize_name

from unhang import gate
from unhang.compat import upstreams
from unhang.deliver import archive, download, wheel
from unhang.deliver.wheel import Wheel
from unhang.draft import drafted, origin, patch, skeleton
from unhang.draft.modules import Rewrite
from unhang.draft.origin import Commit
from unhang.draft.skeleton import Draft
from unhang.errors import UnhangError
from unhang.plugins import packs
from unhang.shapes import catalog
from unhang.suggest import explain
from unhang.tell import console, progress

_TOO_LONG = 16 * 1024 * 1024  # bytes


def run(options: argparse.Namespace) -> int:
    """Write the files of the fix; return 0, or 1 if a change of the diff is left to a person.

    Raises UnhangError ``bad-option``, ``fix-exists``, ``bad-patch``, ``no-commit``, ``patch-does-not-fit``,
    ``nothing-to-rewrite``, ``no-upstream``, and what ``download.fetch`` and ``wheel.load`` raise; OSError. Nothing is
    written then.
    """
    fix, limits = options.fix_id, catalog.manifest_schema()["properties"]
    _refuse_id(fix, limits["id"])
    if options.pack:
        from unhang.cli import pack_new

        commit = origin.commit(*options.from_commit) if options.from_commit else None
        text = commit.diff if commit else _read(options.from_patch)
        return pack_new.run(options, text, commit.head if commit else text)
    _refuse_existing(options.output, skeleton.paths(fix))
    commit = origin.commit(*options.from_commit) if options.from_commit else None
    text = commit.diff if commit else _read(options.from_patch)
    of = origin.of(commit.head if commit else text)
    with tempfile.TemporaryDirectory(prefix="unhang-") as folder, progress.shown() as step:
        step(f"reading {options.release}")
        source = _release(options.release, folder)
        upstream = canonicalize_name(source.distribution)
        if upstream not in packs.upstreams():
            raise UnhangError("no-upstream", f"{source.file} is none of {', '.join(packs.names())}")
        release = f"{upstream} {source.version}"
        result = patch.apply(text, lambda path: _places(source, path), release, _is_inside(commit))
    try:
        parts = [
            drafted.drafted(fix, upstreams.of_file(upstream, it.file), it, commit.read(it.diffed) if commit else None)
            for it in result.files
        ]
    except RecursionError as error:
        hint = "leave that change out of the diff"
        raise UnhangError("bad-patch", "a function is nested too deeply for a codemod", hint=hint) from error
    rewrites, twice = drafted.by_name(rewrite for part in parts for rewrite in part.rewrites)
    left = [*result.left, *result.out, *(line for part in parts for line in part.left), *twice]
    if not rewrites:
        why = "; ".join(left) or "it changes no statement of a function"
        raise UnhangError("nothing-to-rewrite", f"the diff has nothing for a codemod: {why}")
    begun = Draft(
        fix,
        skeleton.title(upstream, of, limits["title"]["maxLength"]),
        of,
        f"https://github.com/{upstreams.projects()[upstream]['repository']}",
        source.version,
        datetime.date.today().isoformat(),
        options.harness,
        "; ".join(dict.fromkeys(filter(None, (origin.notice(it.before) for it in result.files)))),
        rewrites,
    )
    _write(options.output, skeleton.files(begun))
    _tell(fix, rewrites, left)
    return 1 if left else 0


def _refuse_id(fix: str, limits: Mapping[str, Any]) -> None:
    """Raise UnhangError unless this can be the id of a new fix."""
    if not re.fullmatch(limits["pattern"], fix) or keyword.iskeyword(fix):
        raise UnhangError("bad-option", f"{fix!r} is not an id of a fix", hint="write it like `mtp-cp-deadlock`")
    if len(fix) > limits["maxLength"]:
        message = f"{fix!r} has {len(fix)} characters, and an id at most {limits['maxLength']}"
        raise UnhangError("bad-option", message, hint="choose a shorter one")
    if fix in catalog.fixes():
        raise UnhangError("fix-exists", f"there is a fix {fix} already", hint=f"`{explain(fix)}` shows it")


def _read(path: str) -> str:
    """Return the diff in a file, on stdin or of a pull request, with the line ends of a release's text."""
    if pull := re.fullmatch(r"(https://github\.com/[\w.-]+/[\w.-]+/pull/\d+)(?:/\w*)?", path):
        data = _fetched(f"{pull[1]}.patch")
    elif path.startswith(("https://", "http://")):
        hint = "name a pull request, https://github.com/ORG/REPO/pull/N; or save the diff, and name the file"
        raise UnhangError("bad-option", f"{path!r} is no pull request of GitHub's", hint=hint)
    else:
        with nullcontext(sys.stdin.buffer) if path == "-" else open(path, "rb") as file:
            data = file.read(_TOO_LONG)  # it may be a pipe
    if len(data) == _TOO_LONG:
        raise UnhangError("bad-patch", "this file is too large for a diff", path=path, hint="name a diff")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        hint = "write it as it is: `git diff --output=FILE`"
        raise UnhangError("bad-patch", "this diff is in UTF-16, as PowerShell's `>` writes", path=path, hint=hint)
    text = data.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    if patch.changes_ends(text):
        console.say("left out: how lines end: those of a file stay as they are")
    return text.replace("\r\n", "\n")


def _fetched(address: str) -> bytes:
    """Return what is at an address. Raises UnhangError ``download-failed``."""
    import urllib.request
    from http.client import HTTPException

    try:
        with urllib.request.urlopen(address, timeout=30) as answer:  # noqa: S310 - it begins with https
            found: bytes = answer.read(_TOO_LONG)
    except (OSError, HTTPException) as error:
        hint = "fetch it yourself, and name the file"
        raise UnhangError("download-failed", f"{address}: {gate.line(str(error))}", hint=hint) from error
    return found


def _release(requirement: str, folder: str) -> Wheel:
    """Return the wheel of a release, given by its path, or downloaded into the folder."""
    if requirement.endswith(".whl"):
        return wheel.load(requirement)
    if "==" not in requirement:
        hint = "name one release, as in `--upstream verl==0.7.1`, or the path of a wheel"
        raise UnhangError("bad-option", f"{requirement!r} does not say which release", hint=hint)
    (path,) = download.fetch([requirement], download.Options(None, ()), folder).paths
    return wheel.load(path)


def _places(source: Wheel, path: str) -> list[tuple[str, str]]:
    """Return where the wheel may have a file, each with its text, with the line ends ``\\n``.

    Where the release has no file of this path, any of the same name may be it.
    """
    members = source.installed()
    places = [path] if path in members else [it for it in members if it.endswith(f"/{path.rpartition('/')[2]}")]
    places = [it for it in places if it.endswith(".py")]
    texts = (archive.read(source.path, members[place]).decode("utf-8", "surrogateescape") for place in places)
    return [(place, text.replace("\r\n", "\n")) for place, text in zip(places, texts)]


def _is_inside(commit: Commit | None) -> Callable[[str, Iterable[int]], bool]:
    """Return what tells whether lines that a commit changes are in a function; of a bare diff, nobody knows."""

    def is_inside(path: str, numbers: Iterable[int]) -> bool:
        base = commit.base(path) if commit else None
        return base is None or drafted.is_inside(base, numbers)

    return is_inside


def _refuse_existing(folder: str, names: Iterable[str]) -> None:
    """Raise UnhangError if one of these files is there."""
    paths = [os.path.join(folder, *name.split("/")) for name in names]
    if there := [path for path in paths if os.path.lexists(path)]:
        raise UnhangError(
            "fix-exists", "this file is there already", path=there[0], hint="move it away, or name --output"
        )


def _write(folder: str, files: Mapping[str, str]) -> None:
    """Write the files below the folder."""
    for name, text in files.items():
        path = os.path.join(folder, *name.split("/"))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "x", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        console.show(f"wrote {path}")


def _tell(fix: str, rewrites: Sequence[Rewrite], left: Sequence[str]) -> None:
    for item in rewrites:
        target, count = item.target, console.count(len(item.replacements), "edit")
        console.show(f"{target.upstream}  {target.file}  {target.function}  {item.before} -> {item.after}  {count}")
    console.say_each(f"left to you: {line}" for line in left)
    console.note(
        "note: the codemod has upstream's own lines in it. Keep it in your own folder; before you share it, write its "
        "anchors and edits in your own words, as CONTRIBUTING.md says"
    )
    limits = catalog.manifest_schema()["properties"]
    title, when = (limits[key]["maxLength"] for key in ("title", "when"))
    console.note(
        f"next, in a checkout: `nox -s fix -- {fix}` says what to write, and runs every check in order. A title has at "
        f"most {title} characters, `when` {when}. Every shape stays drifted until its sweep lists it; until then "
        f"`unhang diff --unknown --fix {fix}` shows the rewrite of an installation, and the token that accepts it"
    )
