"""The line that keeps `.unhang/` out of a checkout's `git status`, put into .git/info/exclude and taken out exactly."""

from __future__ import annotations

import os
import re

from unhang.store import disk
from unhang.store.receipt import Exclude
from unhang.store.transaction import FileChange


def find(folder: str) -> tuple[str, bytes] | None:
    """Return the exclude file of the checkout around `folder`, and the line for `folder`/.unhang; None outside of git.

    Works for a sub-folder, a worktree and a submodule, without git. Raises UnhangError where git's files are unreadable
    (as `disk.refusal`).
    """
    top = folder
    while not os.path.lexists(os.path.join(top, ".git")):
        if top == os.path.dirname(top):
            return None
        top = os.path.dirname(top)
    git_dir = _follow(os.path.join(top, ".git"), b"gitdir: ", top)
    common = _follow(os.path.join(git_dir, "commondir"), b"", git_dir) if git_dir else None
    if common is None or not os.path.isfile(os.path.join(common, "HEAD")):
        return None
    relative = os.path.relpath(os.path.join(folder, ".unhang"), top)
    line = b"/" + re.sub(rb"([\\*?\[])", rb"\\\1", os.fsencode(relative)) + b"/"
    return None if b"\n" in line else (os.path.join(os.path.realpath(common), "info", "exclude"), line)


def _follow(path: str, lead: bytes, base: str) -> str | None:
    """The folder that a `.git` or `commondir` file names; a folder itself, and `base` where there is nothing."""
    if os.path.isdir(path):
        return path
    with disk.about(path):
        data = disk.read(path)
    if data is None:
        return base
    return os.path.join(base, os.fsdecode(data.removeprefix(lead).rstrip(b"\r\n"))) if data.startswith(lead) else None


def add(folder: str) -> tuple[FileChange, Exclude] | None:
    """Return the change that puts the line in, and how to take it out; None outside of git. Raises as `find`."""
    found = find(folder)
    if found is None:
        return None
    path, line = found
    with disk.about(path):
        before = disk.read(path)
    newline = bool(before) and not (before or b"").endswith(b"\n")
    after = (before or b"") + (b"\n" if newline else b"") + line + b"\n"
    return FileChange(path, before, after), Exclude(newline, before is None, not os.path.isdir(os.path.dirname(path)))


def take_out(folder: str, exclude: Exclude) -> FileChange | None:
    """Return the change that takes the line out again, None where it is not there any more. Raises as `find`."""
    found = find(folder)
    if found is None:
        return None
    path, line = found
    with disk.about(path):
        before = disk.read(path)
    if before is None:
        return None
    ours = (b"\n" if exclude.newline else b"") + line + b"\n"
    if before.endswith(ours):
        after = before[: -len(ours)]
    else:  # somebody wrote more below it: then only the line itself, the last if there are several
        lines = before.split(b"\n")
        if line not in lines:
            return None
        del lines[len(lines) - 1 - lines[::-1].index(line)]
        after = b"\n".join(lines)
    return FileChange(path, before, after if after or not exclude.created else None, exclude.made_dir)
