"""A checkout's commit and tag, read from git's own files: no verdict rests on them, and git is never run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from unhang.records import Installation

_LONGEST = 16 * 1024 * 1024  # bytes; packed-refs of a repository with 100,000 refs has seven million


def commits(installations: Iterable[Installation]) -> dict[str, str]:
    """Return, for each root that is the top of a checkout, what to show of it: ``git 1a2b3c4d5 (v0.7.1)``."""
    shown = {}
    for root in sorted({found.root for found in installations}):
        git_dir = _git_dir(root)
        if git_dir and (commit := _head(git_dir)):
            tags = sorted(tag for tag in _tags(git_dir, commit) if tag.isprintable())  # it goes to a terminal
            shown[root] = f"git {commit[:9]}" + (f" ({tags[-1]})" if tags else "")
    return shown


def work_tree(folder: str) -> str | None:
    """Return the top of the checkout that this folder is in, None if it is in none."""
    while _git_dir(folder) is None:
        if folder == os.path.dirname(folder):
            return None
        folder = os.path.dirname(folder)
    return folder


def _head(git_dir: str) -> str | None:
    """Return the commit that is checked out; None before the first commit."""
    head = _read(os.path.join(git_dir, "HEAD")).strip()
    ref = head.removeprefix("ref: ")
    if ref != head:
        if not ref.startswith("refs/") or ".." in ref.split("/"):  # a checkout's file is not trusted with paths
            return None
        loose = _read(os.path.join(_common(git_dir), *ref.split("/"))).strip()
        head = loose or next((commit for commit, name in _packed(git_dir) if name == ref), "")
    is_commit = len(head) in (40, 64) and set(head) <= set("0123456789abcdef")
    return head if is_commit else None


def _tags(git_dir: str, commit: str) -> Iterator[str]:
    """Yield the tags of a commit. An annotated tag is known if it is packed, as a clone leaves it."""
    for found, name in _packed(git_dir):
        if found == commit and name.startswith("refs/tags/"):
            yield name.removeprefix("refs/tags/")
    folder = os.path.join(_common(git_dir), "refs", "tags")
    for above, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(above, name)
            if _read(path).strip() == commit:
                yield os.path.relpath(path, folder)


def _packed(git_dir: str) -> Iterator[tuple[str, str]]:
    """Yield commit and name of each packed ref; an annotated tag comes with the commit that it leads to."""
    name = ""
    for line in _read(os.path.join(_common(git_dir), "packed-refs")).splitlines():
        if line.startswith("^"):
            yield line[1:], name
        elif not line.startswith("#"):
            commit, _, name = line.partition(" ")
            yield commit, name


def _git_dir(root: str) -> str | None:
    """Return git's folder of a checkout; a worktree and a submodule name it in a file."""
    path = os.path.join(root, ".git")
    if os.path.isdir(path):
        return path
    named = _read(path)
    return os.path.join(root, named.removeprefix("gitdir: ").strip()) if named.startswith("gitdir: ") else None


def _common(git_dir: str) -> str:
    """Return the folder of the refs that all worktrees share."""
    return os.path.join(git_dir, _read(os.path.join(git_dir, "commondir")).strip())


def _read(path: str) -> str:
    """Return a file's text; empty where there is no such file, or it is not a file of git's."""
    try:
        if not os.path.isfile(path) or os.path.getsize(path) > _LONGEST:
            return ""
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except (OSError, ValueError):  # ValueError: a NUL in a path
        return ""
